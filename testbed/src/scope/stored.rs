//! Objects as they are stored, written without the types of the server.

use kube::api::{Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Scope;
use crate::keys;

impl Scope {
    /// Creates an object from JSON.
    pub async fn store<K>(&self, object: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Serialize
            + Clone
            + std::fmt::Debug,
    {
        let object = serde_json::from_value(object).unwrap();
        let api = self.api::<K>();
        api.create(&PostParams::default(), &object).await.unwrap()
    }

    /// Merges a status into that of a stored object.
    pub async fn store_status<K>(&self, name: &str, status: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + DeserializeOwned
            + Clone
            + std::fmt::Debug,
    {
        let status = Patch::Merge(json!({ "status": status }));
        let api = self.api::<K>();
        api.patch_status(name, &PatchParams::default(), &status)
            .await
            .unwrap();
    }

    /// Creates a Pod from JSON and sets the condition of its readiness gate to True, as the lifecycle does.
    pub async fn store_serving_pod(&self, pod: Value) {
        let pod: k8s_openapi::api::core::v1::Pod = self.store(pod).await;
        let gate = json!({ "status": { "conditions": [{
            "type": keys::SERVICE_READY, "status": "True", "message": "updated by PodOpsLifecycle",
        }] } });
        let (name, params) = (pod.name_any(), PatchParams::default());
        self.pods()
            .patch_status(&name, &params, &Patch::Strategic(gate))
            .await
            .unwrap();
    }
}
