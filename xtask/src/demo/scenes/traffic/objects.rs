//! The Services, CollaSets and rules of the scene.

use std::time::Duration;

use anyhow::Result;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use serde_json::{Value, json};
use testbed::containers;
use testbed::wait;

use super::super::super::Stage;
use crate::collasets;

/// Timeout of a step on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The APIs of the namespace of the demo.
pub struct Objects {
    services: Api<Service>,
    sets: Api<DynamicObject>,
    rules: Api<DynamicObject>,
    pods: Api<Pod>,
}

impl Objects {
    /// The APIs.
    pub fn of(stage: &Stage<'_>) -> Result<Self> {
        let client = stage.cluster.plane.client()?;
        let namespace = &stage.workload.namespace;
        Ok(Self {
            services: Api::namespaced(client.clone(), namespace),
            sets: collasets::api(&client, namespace),
            rules: stage.workload.rules.clone(),
            pods: Api::namespaced(client, namespace),
        })
    }

    /// Creates a Service whose traffic is managed, for the Pods with its name in the label `app`. `part` is merged into
    /// the Service.
    pub async fn create_service(&self, name: &str, part: Value) -> Result<()> {
        let object = json!({
            "metadata": { "name": name, "labels": { "kusionstack.io/control": "true" } },
            "spec": { "selector": { "app": name } },
        });
        let service: Service = serde_json::from_value(merged(object, part))?;
        self.services
            .create(&PostParams::default(), &service)
            .await?;
        Ok(())
    }

    /// Deletes a Service, and waits until it is gone.
    pub async fn delete_service(&self, name: &str) -> Result<()> {
        self.services.delete(name, &DeleteParams::default()).await?;
        wait::within("the Service to be gone", PATIENCE, || async {
            Ok(self.services.get_opt(name).await?.is_none())
        })
        .await
    }

    /// Creates a CollaSet whose Pods are processes that listen on `port`, and a rule that lets one Pod at a time be
    /// unavailable.
    pub async fn create_set(&self, name: &str, pods: usize, port: u16) -> Result<()> {
        let labels = json!({ "metadata": { "labels": { "app": name } } });
        let set = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1",
            "kind": "CollaSet",
            "metadata": { "name": name },
            "spec": {
                "replicas": pods,
                "selector": { "matchLabels": { "app": name } },
                // With an update in place, kwok ends the old process late enough for members that follow readiness.
                "updateStrategy": { "podUpgradePolicy": "Recreate" },
                "template": merged(containers::template(&image(name, 1), port), labels),
            },
        }))?;
        self.sets.create(&PostParams::default(), &set).await?;
        let rule = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1",
            "kind": "PodTransitionRule",
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": { "app": name } },
                "rules": [{ "name": "one", "availablePolicy": { "maxUnavailableValue": 1 } }],
            },
        }))?;
        self.rules.create(&PostParams::default(), &rule).await?;
        self.reached(name).await?;
        wait::within("the rule to be observed", PATIENCE, || async {
            let rule = self.rules.get(name).await?;
            Ok(rule.data["status"]["observedGeneration"] == 1)
        })
        .await
    }

    /// Gives a set the second image, and waits until all its Pods have it and are available.
    pub async fn update(&self, name: &str) -> Result<()> {
        // A merge would replace the list of containers as a whole.
        let path = "/spec/template/spec/containers/0/image";
        let change = json!([{ "op": "replace", "path": path, "value": image(name, 2) }]);
        let patch = Patch::Json::<()>(serde_json::from_value(change)?);
        self.sets
            .patch(name, &PatchParams::default(), &patch)
            .await?;
        self.reached(name).await
    }

    async fn reached(&self, name: &str) -> Result<()> {
        collasets::reached(&self.sets, name, PATIENCE).await
    }

    /// Deletes a set and its rule, and waits until its Pods are gone.
    pub async fn delete_set(&self, name: &str) -> Result<()> {
        self.rules.delete(name, &DeleteParams::default()).await?;
        self.sets.delete(name, &DeleteParams::background()).await?;
        let of_set = ListParams::default().labels(&format!("app={name}"));
        wait::within("the Pods to be gone", PATIENCE, || async {
            Ok(self.pods.list_metadata(&of_set).await?.items.is_empty())
        })
        .await
    }
}

fn image(name: &str, version: u32) -> String {
    format!("{name}:{version}")
}

fn merged(mut object: Value, part: Value) -> Value {
    json_patch::merge(&mut object, &part);
    object
}
