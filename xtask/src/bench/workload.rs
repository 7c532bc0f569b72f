//! A Deployment of managed Pods on simulated nodes, with a rule that allows all of them to be unavailable.

use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use testbed::plane::Plane;
use testbed::wait;

/// The label of an available Pod.
pub const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Timeout of waits on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Name of the Deployment and of the rule.
pub const NAME: &str = "web";

/// See the module.
pub struct Workload {
    /// Its namespace.
    pub namespace: String,
    /// Its Pods.
    pub pods: Api<Pod>,
    /// Rules of its namespace.
    pub rules: Api<DynamicObject>,
    client: Client,
    size: usize,
}

/// The rules of a namespace.
pub fn rules(client: Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "PodTransitionRule");
    let rule = ApiResource::from_gvk_with_plural(&kind, "podtransitionrules");
    Api::namespaced_with(client, namespace, &rule)
}

/// Creates a rule over all Pods of a namespace, and waits until its status is there.
pub async fn create_rule(rules: &Api<DynamicObject>, max_unavailable: Value) -> Result<()> {
    let rule: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "PodTransitionRule",
        "metadata": {"name": NAME},
        "spec": {
            "selector": {},
            "rules": [{
                "name": "availability",
                "availablePolicy": {"maxUnavailableValue": max_unavailable},
            }],
        },
    }))?;
    rules.create(&PostParams::default(), &rule).await?;
    wait::within("the rule to be observed", PATIENCE, || async {
        let rule = rules.get(NAME).await?;
        Ok(rule.data["status"]["observedGeneration"] == 1)
    })
    .await
}

impl Workload {
    /// Creates the Deployment and its rule, and waits until all Pods are available.
    pub async fn create(plane: &Plane, prefix: &str, size: usize) -> Result<Self> {
        let namespace = plane.namespace(prefix).await?;
        let client = plane.client()?;
        let workload = Self {
            pods: Api::namespaced(client.clone(), &namespace),
            rules: rules(client.clone(), &namespace),
            namespace,
            client,
            size,
        };
        create_rule(&workload.rules, json!("100%")).await?;
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": NAME},
            "spec": {
                "replicas": size,
                "selector": {"matchLabels": {"app": NAME}},
                "template": {
                    "metadata": {"labels": {"app": NAME, "kusionstack.io/control": "true"}},
                    "spec": {"containers": [{"name": "main", "image": "web:1"}]},
                },
            },
        }))?;
        workload
            .deployments()
            .create(&PostParams::default(), &deployment)
            .await?;
        workload.whole().await?;
        Ok(workload)
    }

    fn deployments(&self) -> Api<Deployment> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until all Pods are available, the rule says so, and no claim is left.
    pub async fn whole(&self) -> Result<Vec<Pod>> {
        let size = self.size;
        wait::within("all Pods to be available", PATIENCE, || async {
            let pods = self.pods.list(&ListParams::default()).await?.items;
            let available = |p: &&Pod| {
                p.metadata.deletion_timestamp.is_none() && p.labels().contains_key(AVAILABLE)
            };
            let available = pods.iter().filter(available).count();
            if available != size || pods.len() != size {
                bail!("{available} of {} Pods are available", pods.len());
            }
            let rule = self.rules.get(NAME).await?;
            Ok(rule.data["status"]["disruptionsAllowed"] == size)
        })
        .await?;
        Ok(self.pods.list(&ListParams::default()).await?.items)
    }

    /// Deletes the rule and the Deployment, and waits until the Pods are gone.
    pub async fn end(self) -> Result<()> {
        self.rules.delete(NAME, &DeleteParams::default()).await?;
        let background = DeleteParams::background();
        self.deployments().delete(NAME, &background).await?;
        wait::within("the Pods to go", PATIENCE, || async {
            Ok(self
                .pods
                .list(&ListParams::default())
                .await?
                .items
                .is_empty())
        })
        .await
    }
}
