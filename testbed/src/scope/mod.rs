//! The objects and requests of a test in its namespace.
#![allow(clippy::unwrap_used, clippy::panic)] // a test fails by a panic

mod kubelet;
mod rules;
mod stored;

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{NamespaceResourceScope, Status};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};

use crate::pods::{is_available, labels, names};
use crate::{keys, wait};

pub use kubelet::PAUSED;
pub use rules::{availability, claims};

/// The namespace of a test.
#[derive(Clone)]
pub struct Scope {
    /// The client of the test.
    pub client: Client,
    /// Its name.
    pub namespace: String,
}

impl Scope {
    /// The objects of any kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The Pods of the namespace.
    pub fn pods(&self) -> Api<Pod> {
        self.api()
    }

    /// The Deployments of the namespace.
    pub fn deployments(&self) -> Api<Deployment> {
        self.api()
    }

    /// A Deployment of managed Pods labelled `app=<name>`; `extra` is merged into the template.
    pub async fn deploy(&self, name: &str, replicas: usize, extra: Value) {
        let mut template = json!({
            "metadata": {"labels": labels(name)},
            "spec": {
                "containers": [{"name": "main", "image": "web:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        });
        json_patch::merge(&mut template, &extra);
        let deployment: Deployment = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": name}},
                "template": template,
            },
        }))
        .unwrap();
        self.deployments()
            .create(&PostParams::default(), &deployment)
            .await
            .unwrap();
    }

    /// Creates a Deployment `web` and a rule `web`, and waits until all Pods are available. Returns the names
    /// of the Pods.
    pub async fn web_under_rule(&self, replicas: usize, max_unavailable: Value) -> Vec<String> {
        self.deploy("web", replicas, json!({})).await;
        let pods = names(&self.all_available("app=web", replicas).await);
        self.rule("web", json!({"app": "web"}), max_unavailable)
            .await;
        self.until_at_rest("web", i32::try_from(replicas).unwrap())
            .await;
        pods
    }

    /// As [`Scope::deploy`], on nodes that [`Scope::open_nodes`] and [`Scope::close_nodes`] open and close
    /// for this namespace. While they are closed, a lost Pod is not replaced, however long the test takes.
    pub async fn deploy_where_open(&self, name: &str, replicas: usize) {
        self.open_nodes().await;
        let selector = json!({"spec": {"nodeSelector": {self.namespace.clone(): "open"}}});
        self.deploy(name, replicas, selector).await;
    }

    /// Opens the nodes for new Pods of this namespace.
    pub async fn open_nodes(&self) {
        self.label_nodes(json!("open")).await;
    }

    /// Closes the nodes for new Pods of this namespace. Running Pods go on.
    pub async fn close_nodes(&self) {
        self.label_nodes(Value::Null).await;
    }

    async fn label_nodes(&self, value: Value) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let label = Patch::Merge(json!({"metadata": {"labels": {self.namespace.clone(): value}}}));
        for node in nodes.list(&ListParams::default()).await.unwrap() {
            nodes
                .patch(&node.name_any(), &PatchParams::default(), &label)
                .await
                .unwrap();
        }
    }

    /// A managed Pod without an owner.
    pub async fn pod(&self, name: &str, extra: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "labels": labels(name)},
            "spec": {
                "containers": [{"name": "main", "image": "web:1"}],
                "terminationGracePeriodSeconds": 1,
            },
        });
        json_patch::merge(&mut pod, &extra);
        self.pods()
            .create(
                &PostParams::default(),
                &serde_json::from_value(pod).unwrap(),
            )
            .await
            .unwrap()
    }

    /// All Pods that carry labels such as `app=web`.
    pub async fn list(&self, selector: &str) -> Vec<Pod> {
        self.pods()
            .list(&ListParams::default().labels(selector))
            .await
            .unwrap()
            .items
    }

    /// Waits until exactly `count` Pods carry the labels and all of them are available.
    pub async fn all_available(&self, selector: &str, count: usize) -> Vec<Pod> {
        let last = std::sync::Mutex::new(String::new());
        let description = format!("{count} available Pods {selector}");
        let looking = wait::value(&description, async || {
            let pods = self.list(selector).await;
            let available = pods.iter().filter(|p| is_available(p)).count();
            *last.lock().unwrap() = format!("{available} of {}", pods.len());
            (available == count && pods.len() == count).then_some(pods)
        });
        looking.await
    }

    /// Deletes a Pod.
    pub async fn delete(&self, pod: &str) -> kube::Result<()> {
        self.pods()
            .delete(pod, &DeleteParams::default())
            .await
            .map(drop)
    }

    /// Evicts a Pod.
    pub async fn evict(&self, pod: &str) -> kube::Result<()> {
        self.pods()
            .evict(pod, &EvictParams::default())
            .await
            .map(drop)
    }

    /// Applies a merge patch to a Pod.
    pub async fn patch(&self, pod: &str, patch: Value) -> kube::Result<Pod> {
        self.pods()
            .patch(pod, &PatchParams::default(), &Patch::Merge(patch))
            .await
    }

    /// Applies a merge patch to the labels of a Pod.
    pub async fn label(&self, pod: &str, labels: Value) -> kube::Result<Pod> {
        self.patch(pod, json!({"metadata": {"labels": labels}}))
            .await
    }

    /// Begins the operation `id` of type `id` on a Pod.
    pub async fn begin(&self, pod: &str, id: &str) -> kube::Result<Pod> {
        self.label(
            pod,
            json!({keys::operation("operating", id): "1", keys::operation("operation-type", id): id}),
        )
        .await
    }

    /// Finishes the operation `id`.
    pub async fn finish(&self, pod: &str, id: &str) -> kube::Result<Pod> {
        self.label(pod, json!({keys::operation("operating", id): null}))
            .await
    }

    /// The stored Pod.
    pub async fn get(&self, pod: &str) -> Pod {
        self.pods().get(pod).await.unwrap()
    }

    /// Waits until a Pod has the wanted state.
    pub async fn until_pod(
        &self,
        pod: &str,
        description: &str,
        wanted: impl Fn(&Pod) -> bool,
    ) -> Pod {
        wait::value(&format!("{pod}: {description}"), async || {
            self.pods()
                .get_opt(pod)
                .await
                .ok()
                .flatten()
                .filter(|p| wanted(p))
        })
        .await
    }

    /// Waits until a Pod is gone.
    pub async fn until_gone(&self, pod: &Pod) {
        let name = pod.name_any();
        wait::until(&format!("{name} to be deleted"), async || {
            let found = self.pods().get_opt(&name).await;
            found.is_ok_and(|p| p.is_none_or(|p| p.metadata.uid != pod.metadata.uid))
        })
        .await;
    }

    /// The StatefulSets of the namespace.
    pub fn stateful_sets(&self) -> Api<StatefulSet> {
        self.api()
    }

    /// Creates a StatefulSet `web` of managed Pods labelled `app=web`, which all start at once.
    pub async fn stateful_set(&self, replicas: usize) -> StatefulSet {
        let set = json!({
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas, "serviceName": "web", "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": labels("web")},
                    "spec": {"containers": [{"name": "main", "image": "web:1"}], "terminationGracePeriodSeconds": 1},
                },
            },
        });
        let set = serde_json::from_value(set).unwrap();
        let sets = self.stateful_sets();
        sets.create(&PostParams::default(), &set).await.unwrap()
    }

    /// Deletes the namespace, and waits until it is gone.
    pub async fn delete_namespace(&self) {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let delete = DeleteParams::default();
        namespaces.delete(&self.namespace, &delete).await.unwrap();
        wait::until("the namespace to be deleted", async || {
            let found = namespaces.get_opt(&self.namespace).await;
            found.is_ok_and(|n| n.is_none())
        })
        .await;
    }

    /// Changes the number of replicas of a Deployment.
    pub async fn scale(&self, deployment: &str, replicas: usize) -> kube::Result<()> {
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        self.deployments()
            .patch(deployment, &PatchParams::default(), &patch)
            .await
            .map(drop)
    }
}

/// The Status of a refusal.
pub fn refusal<T: std::fmt::Debug>(outcome: kube::Result<T>) -> Status {
    match outcome {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("a refusal by the API server, not {other:?}"),
    }
}

/// The Status of a refusal by a used-up budget. Panics if the message does not have these figures.
pub fn budget_refusal<T: std::fmt::Debug>(outcome: kube::Result<T>, figures: &str) -> Status {
    let status = refusal(outcome);
    let is_held = status.code == 429 && status.reason == "TooManyRequests";
    assert!(
        is_held && status.message.contains(figures),
        "{figures}, not {status:?}"
    );
    status
}
