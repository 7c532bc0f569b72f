//! Creates any number of managed Pods at low cost: neither the scheduler nor a kubelet processes them.

use anyhow::Result;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use testbed::wait;

use super::workload::{self, AVAILABLE, PATIENCE};

/// Number of parallel requests.
pub const AT_ONCE: usize = 16;

/// The Pods of one namespace under one rule.
pub struct Herd {
    /// The API of the Pods in the namespace.
    pub pods: Api<Pod>,
    namespace: String,
    client: Client,
    size: usize,
    groups: usize,
}

/// Label with the group of a Pod: a number from 0.
pub const GROUP: &str = "group";

/// A patch with the status of an available Pod, as a kubelet writes it in this `round`.
pub fn serving(round: usize) -> Value {
    let condition = |kind: &str| {
        json!({"type": kind, "status": "True", "message": format!("round {round}"),
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let kinds = [
        "Initialized",
        "ContainersReady",
        "Ready",
        "pod.kusionstack.io/service-ready",
    ];
    json!({"status": {
        "phase": "Running",
        "podIP": format!("10.1.{}.{}", round / 250 % 250, round % 250 + 1),
        "conditions": kinds.map(condition),
    }})
}

impl Herd {
    /// An empty herd.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self {
            pods: Api::namespaced(client.clone(), namespace),
            namespace: namespace.to_owned(),
            client,
            size: 0,
            groups: 1,
        }
    }

    /// An empty herd. The Pods that it creates form `groups` groups of equal size.
    pub fn in_groups(client: Client, namespace: &str, groups: usize) -> Self {
        Self {
            groups,
            ..Self::new(client, namespace)
        }
    }

    /// The namespace of the Pods.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Begins an operation on each Pod.
    pub async fn begin(&self, id: &str) -> Result<()> {
        let domain = "podopslifecycle.kusionstack.io";
        let labels = json!({
            format!("operating.{domain}/{id}"): "1", format!("operation-type.{domain}/{id}"): id,
        });
        let patch = json!({"metadata": {"labels": labels}});
        stream::iter(0..self.size)
            .map(|index| {
                let (pods, patch) = (self.pods.clone(), Patch::Merge(&patch));
                async move {
                    pods.patch(&name(index), &PatchParams::default(), &patch)
                        .await
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        Ok(())
    }

    /// How many Pods exist.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Creates the rule: one Pod may be unavailable, so while no Pod is available, all are held.
    pub async fn rule(&self) -> Result<()> {
        let rules = workload::rules(self.client.clone(), &self.namespace);
        workload::create_rule(&rules, json!(1)).await
    }

    /// Creates Pods until there are `size`.
    pub async fn grow(&mut self, size: usize) -> Result<()> {
        let params = PostParams::default();
        let groups = self.groups;
        stream::iter(self.size..size)
            .map(|index| {
                let (pods, params) = (self.pods.clone(), params.clone());
                async move {
                    pods.create(&params, &pod(index, index % groups)?).await?;
                    Ok::<_, anyhow::Error>(())
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.size = size;
        Ok(())
    }

    /// Makes all Pods Ready, and waits until they are available.
    pub async fn serve(&self) -> Result<()> {
        self.write_status(0, 0..self.size).await?;
        let serving = ListParams::default().labels(AVAILABLE);
        wait::within("the Pods to be available", PATIENCE, || async {
            Ok(self.pods.list_metadata(&serving).await?.items.len() == self.size)
        })
        .await
    }

    /// Writes the status of each Pod once, as a kubelet does.
    pub async fn write_status(&self, round: usize, which: std::ops::Range<usize>) -> Result<()> {
        let status = serving(round);
        stream::iter(which)
            .map(|index| {
                let (pods, status) = (self.pods.clone(), status.clone());
                async move {
                    let patch = Patch::Strategic(&status);
                    pods.patch_status(&name(index), &PatchParams::default(), &patch)
                        .await
                }
            })
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        Ok(())
    }

    /// A Pod in the form of a review, with the labels of an available Pod.
    pub async fn sample(&self) -> Result<Value> {
        let pod = self.pods.get(&name(0)).await?;
        let uid = pod.uid();
        let mut value = serde_json::to_value(pod)?;
        value["apiVersion"] = json!("v1");
        value["kind"] = json!("Pod");
        value["metadata"]["uid"] = json!(uid);
        value["metadata"]["labels"][AVAILABLE] = json!("1");
        value["status"] = serving(0)["status"].clone();
        Ok(value)
    }
}

fn name(index: usize) -> String {
    format!("pod-{index}")
}

/// A Pod of a typical size that is never scheduled.
fn pod(index: usize, group: usize) -> Result<Pod> {
    let environment: Vec<_> = (0..20)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "a value of some length"}))
        .collect();
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name(index),
            "labels": {
                "kusionstack.io/control": "true", "app": "herd", "tier": "bench",
                GROUP: group.to_string(),
            },
            "annotations": {"note": "x".repeat(500)},
        },
        "spec": {
            "schedulingGates": [{"name": "operating.kusionstack.io/bench"}],
            "containers": [
                {"name": "main", "image": "web:1", "env": environment},
                {"name": "side", "image": "side:1"},
            ],
        },
    }))?)
}
