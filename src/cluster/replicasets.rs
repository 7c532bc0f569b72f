//! Writes to ReplicaSets.

use kube::core::params::Patch;
use kube::{Client, Error};
use serde_json::{Value, json};

use super::request_path::ResourcePath;

/// Sets `spec.replicas` through the subresource `scale`, if the ReplicaSet still has this UID and the resourceVersion
/// `version`. Otherwise the error has code 409.
pub async fn patch_replicas(
    client: &Client,
    (namespace, name): (&str, &str),
    uid: &str,
    version: u64,
    replicas: u32,
) -> Result<(), Error> {
    let patch = Patch::Merge(json!({
        "metadata": { "uid": uid, "resourceVersion": version.to_string() },
        "spec": { "replicas": replicas },
    }));
    let sets = ResourcePath::from_parts("/apis/apps/v1", namespace, "replicasets")?;
    let request = sets.patch(name, Some("scale"), &patch)?;
    client.request::<Value>(request).await.map(drop)
}
