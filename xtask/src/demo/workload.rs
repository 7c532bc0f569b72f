//! The Deployment of the demo, its rule and its Pods.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, ResourceExt};
use serde_json::json;
use testbed::wait;

/// The label of an available Pod.
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";
/// Name of the Deployment and of its rule.
pub const NAME: &str = "web";
/// Replicas of the Deployment.
pub const REPLICAS: usize = 10;
/// 30% of them.
pub const LIMIT: usize = 3;
/// Timeout for all Pods to be available; a real cluster pulls an image first.
const PATIENCE: Duration = Duration::from_secs(180);

/// Whether rules count a Pod as available.
pub fn is_available(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && pod.labels().contains_key(AVAILABLE)
}

/// The Deployment `web` in a namespace.
#[derive(Clone)]
pub struct Workload {
    client: Client,
    /// The namespace.
    pub namespace: String,
    /// Its Pods.
    pub pods: Api<Pod>,
    /// Rules of its namespace.
    pub rules: Api<DynamicObject>,
}

impl Workload {
    /// Describes the Deployment without creating it.
    pub fn new(client: Client, namespace: &str) -> Self {
        let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "PodTransitionRule");
        let rule = ApiResource::from_gvk_with_plural(&kind, "podtransitionrules");
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            rules: Api::namespaced_with(client.clone(), namespace, &rule),
            namespace: namespace.to_owned(),
            client,
        }
    }

    /// Label of the nodes for its Pods, with the namespace in it, because other demos may run.
    fn node_label(&self) -> String {
        format!("demo.operating.kusionstack.io/{}", self.namespace)
    }

    fn deployment(&self) -> Result<Deployment> {
        Ok(serde_json::from_value(json!({
            "metadata": {"name": NAME},
            "spec": {
                "replicas": REPLICAS,
                "selector": {"matchLabels": {"app": NAME}},
                "template": {
                    "metadata": {"labels": {"app": NAME, "kusionstack.io/control": "true"}},
                    "spec": {
                        "nodeSelector": {self.node_label(): "true"},
                        "terminationGracePeriodSeconds": 5,
                        "containers": [{"name": "main", "image": "registry.k8s.io/pause:3.10"}],
                    },
                },
            },
        }))?)
    }

    /// Creates the Deployment.
    pub async fn create(&self) -> Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let create = PostParams::default();
        deployments.create(&create, &self.deployment()?).await?;
        Ok(())
    }

    /// Creates the rule as soon as the API server calls the new webhooks.
    pub async fn create_rule(&self) -> Result<()> {
        let rule: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1",
            "kind": "PodTransitionRule",
            "metadata": {"name": NAME},
            "spec": {
                "selector": {"matchLabels": {"app": NAME}},
                "rules": [{"name": "availability", "availablePolicy": {"maxUnavailableValue": "30%"}}],
            },
        }))?;
        self.rules.create(&PostParams::default(), &rule).await?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        wait::within("the rule to be in force", PATIENCE, || async {
            let namespace = namespaces.get(&self.namespace).await?;
            let marked = namespace
                .labels()
                .contains_key("podtransitionrule.kusionstack.io/enforced");
            let rule = self.rules.get(NAME).await?;
            Ok(marked && rule.data["status"]["unavailableLimit"] == LIMIT)
        })
        .await
    }

    /// Waits until the API server calls the webhooks for new Pods.
    pub async fn webhooks_called(&self) -> Result<()> {
        let template = self.deployment()?.spec.context("a spec")?.template;
        let pod = Pod {
            metadata: kube::core::ObjectMeta {
                name: Some("probe".to_owned()),
                ..template.metadata.unwrap_or_default()
            },
            spec: template.spec,
            status: None,
        };
        let dry_run = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        wait::within("the API server to ask the webhooks", PATIENCE, || async {
            let made = self.pods.create(&dry_run, &pod).await?;
            Ok(made.spec.is_some_and(|s| s.readiness_gates.is_some()))
        })
        .await
    }

    /// Labels the nodes so that new Pods of the workload may run on them, or removes the label. Running Pods go on.
    pub async fn set_nodes_schedulable(&self, schedulable: bool) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let value = schedulable.then_some("true");
        let patch = json!({"metadata": {"labels": {self.node_label(): value}}});
        for node in nodes.list(&ListParams::default()).await? {
            let params = PatchParams::default();
            let patch = Patch::Merge(&patch);
            nodes
                .patch_metadata(&node.name_any(), &params, &patch)
                .await?;
        }
        Ok(())
    }

    /// All its Pods.
    pub async fn list(&self) -> Result<Vec<Pod>> {
        Ok(self.pods.list(&ListParams::default()).await?.items)
    }

    /// Waits until the status of the rule shows that no further Pod may become unavailable; the status
    /// follows a moment later.
    pub async fn used_up(&self) -> Result<()> {
        wait::within("the rule's status to catch up", PATIENCE, || async {
            let status = &self.rules.get(NAME).await?.data["status"];
            Ok(status["disruptionsAllowed"] == 0 && status["unavailablePods"] == LIMIT)
        })
        .await
    }

    /// Waits until exactly [`REPLICAS`] Pods exist and are available, and the rule says so.
    pub async fn whole(&self) -> Result<Vec<Pod>> {
        wait::within("all Pods to be available", PATIENCE, || async {
            let pods = self.list().await?;
            if pods.len() != REPLICAS || !pods.iter().all(is_available) {
                let available = pods.iter().filter(|p| is_available(p)).count();
                bail!("{available} of {} Pods are available", pods.len());
            }
            let rule = self.rules.get_opt(NAME).await?;
            Ok(rule.is_none_or(|r| r.data["status"]["disruptionsAllowed"] == LIMIT))
        })
        .await?;
        self.list().await
    }
}
