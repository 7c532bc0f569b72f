//! The JSON form of a PodDecoration, and the form that its cache keeps.

use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use super::ObjectCaches;
use super::cached_kind::CachedKind;
use super::object_cache::ObjectCache;
use super::readable_part::{ReadablePart, read_object};
use crate::api::poddecoration::PodDecoration;
use crate::cluster::changes::Change;
use crate::cluster::kind::WatchedKind;
use crate::domain::pod::PodMetadata;

/// A PodDecoration in the cache. One that can't be read stays in the cache: if it were absent, the CollaSets would
/// remove the decoration from all Pods that have it.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedDecoration {
    /// The PodDecoration without `managedFields`. If its spec or status can't be read, it has only its metadata.
    pub object: Arc<PodDecoration>,
    /// Why the spec or the status can't be read. `None` if both were read.
    pub unreadable: Option<String>,
}

/// A PodDecoration.
#[derive(Debug)]
pub struct DecorationObject {
    metadata: PodMetadata,
    cached: CachedDecoration,
}

impl<'de> Deserialize<'de> for DecorationObject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let ReadablePart {
            metadata,
            object,
            unreadable,
        } = read_object(d, "Pods that have it keep it, and no other Pod gets it,")?;
        Ok(DecorationObject {
            metadata,
            cached: CachedDecoration {
                object: Arc::new(object),
                unreadable,
            },
        })
    }
}

impl CachedKind for DecorationObject {
    type Cached = CachedDecoration;
    const LABEL_SELECTOR: Option<&'static str> = None;
    const KIND: WatchedKind = WatchedKind::PodDecoration;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<CachedDecoration> {
        &objects.decorations
    }

    fn metadata(&self) -> &PodMetadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<CachedDecoration> {
        Some(self.cached)
    }

    /// The PodDecoration itself. CollaSets read the value that its controller publishes, so they are not affected.
    fn affected(metadata: &PodMetadata, _: &ObjectCaches) -> Vec<Change> {
        vec![Change::PodDecoration(
            metadata.namespace.clone(),
            metadata.name.clone(),
        )]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn read(spec: Value) -> CachedDecoration {
        let object = json!({
            "metadata": {
                "namespace": "n", "name": "log", "uid": "u", "resourceVersion": "7", "generation": 3,
                "managedFields": [{ "manager": "kubectl" }], "finalizers": ["a/b"],
            },
            "spec": spec,
        });
        let object: DecorationObject = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(object.object_key().version, 7);
        object.into_cached().unwrap()
    }

    #[test]
    fn decoration_is_cached_without_managed_fields() {
        let cached = read(json!({ "weight": 2 }));
        assert_eq!(cached.unreadable, None);
        assert_eq!(cached.object.spec.weight, Some(2));
        assert_eq!(cached.object.metadata.generation, Some(3));
        assert_eq!(cached.object.metadata.managed_fields, None);
    }

    #[test]
    fn unreadable_decoration_stays_with_its_metadata() {
        let cached = read(json!({ "weight": "two" }));
        let fault = cached.unreadable.unwrap();
        assert!(fault.contains("two"), "{fault}");
        let metadata = &cached.object.metadata;
        assert_eq!(metadata.generation, Some(3));
        assert_eq!(metadata.finalizers, Some(vec!["a/b".to_owned()]));
        assert_eq!(metadata.managed_fields, None);
    }
}
