//! Reads objects that stay in their cache when their spec or status can't be read.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tracing::warn;

use crate::domain::pod::PodMetadata;

/// An object of the kind `K`, as far as it can be read.
pub(super) struct ReadablePart<K> {
    pub metadata: PodMetadata,
    /// The object without `managedFields`. If its spec or status can't be read, it has only its metadata.
    pub object: K,
    /// Why the spec or the status can't be read. `None` if both were read.
    pub unreadable: Option<String>,
}

/// Reads an object. If its spec or status can't be read, logs this with `consequence`, which says what the server does
/// until the object is corrected.
///
/// # Errors
/// If the metadata can't be read.
pub(super) fn read_object<'de, K, D>(d: D, consequence: &str) -> Result<ReadablePart<K>, D::Error>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Default,
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    struct Bare<M> {
        metadata: M,
    }
    let raw = Box::<RawValue>::deserialize(d)?;
    let error = serde::de::Error::custom::<serde_json::Error>;
    let Bare::<PodMetadata> { metadata } = serde_json::from_str(raw.get()).map_err(error)?;
    let (mut object, unreadable) = match serde_json::from_str::<K>(raw.get()) {
        Ok(object) => (object, None),
        Err(e) => {
            let (namespace, name) = (&metadata.namespace, &metadata.name);
            let kind = K::kind(&());
            warn!(%namespace, %name, error = %e, "the {kind} can't be read; {consequence} until the {kind} is corrected");
            let bare: Bare<ObjectMeta> = serde_json::from_str(raw.get()).map_err(error)?;
            let mut object = K::default();
            *object.meta_mut() = bare.metadata;
            (object, Some(e.to_string()))
        }
    };
    object.meta_mut().managed_fields = None; // often larger than all other fields
    Ok(ReadablePart {
        metadata,
        object,
        unreadable,
    })
}
