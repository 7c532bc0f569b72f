//! The objects of a run. Neither the scheduler nor a kubelet processes the Pods.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use testbed::plane::Plane;

use super::super::workload::{self, AVAILABLE};

/// Number of parallel requests.
const AT_ONCE: usize = 24;
/// Number of Pods of a ReplicaSet, and of old ReplicaSets of a Deployment.
const OF_ONE: usize = 10;
/// Number of ReplicaSets of managed Pods in a namespace, and of rules; the first namespaces are filled first.
const SETS: usize = 10;
/// Timeout for the control plane after a step.
const PATIENCE: Duration = Duration::from_secs(20 * 60);
const MANAGED: &str = "kusionstack.io/control=true";

/// The objects of a run.
pub struct Crowd {
    client: Client,
    namespaces: Vec<String>,
    sets: usize,
}

impl Crowd {
    /// The namespaces for this number of managed Pods.
    pub async fn new(plane: &Plane, pods: usize) -> Result<Self> {
        let all = (0..pods.div_ceil(OF_ONE * SETS).max(1)).map(|_| plane.namespace("crowd"));
        let namespaces = stream::iter(all).buffer_unordered(8).try_collect().await?;
        Ok(Self {
            client: plane.client()?,
            namespaces,
            sets: 0,
        })
    }

    fn namespace(&self, index: usize) -> &str {
        &self.namespaces[index % self.namespaces.len()]
    }

    /// Creates managed Pods with their ReplicaSets and rules until there are `pods`, and makes them
    /// available.
    pub async fn managed(&mut self, pods: usize) -> Result<()> {
        eprintln!("{pods} managed Pods");
        let new = self.sets..pods.div_ceil(OF_ONE);
        self.sets = new.end;
        let create = new.map(|index| {
            let namespace = self.namespace(index / SETS);
            let sets: Api<ReplicaSet> = Api::namespaced(self.client.clone(), namespace);
            let rules = workload::rules(self.client.clone(), namespace);
            async move {
                rules.create(&PostParams::default(), &rule(index)?).await?;
                let set = managed_set(index)?;
                sets.create(&PostParams::default(), &set).await?;
                Ok::<_, anyhow::Error>(())
            }
        });
        at_once(create).await?;
        let target = self.sets * OF_ONE;
        self.reach("all Pods to be there", || async {
            Ok(self.names(MANAGED).await?.len() >= target)
        })
        .await?;
        let waiting = format!("{MANAGED},!{AVAILABLE}");
        let waiting_pods = self.names(&waiting).await?;
        let serve = waiting_pods.into_iter().map(|(namespace, name)| {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            async move {
                let patch = Patch::Strategic(status(&name));
                pods.patch_status(&name, &PatchParams::default(), &patch)
                    .await?;
                Ok(())
            }
        });
        at_once(serve).await?;
        let available = format!("{MANAGED},{AVAILABLE}");
        self.reach("all Pods to be available", || async {
            Ok(self.names(&available).await?.len() >= target)
        })
        .await
    }

    /// Creates Pods that are not managed.
    pub async fn unmanaged(&self, count: usize) -> Result<()> {
        eprintln!("{count} unmanaged Pods");
        at_once((0..count).map(|index| {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), self.namespace(index));
            async move {
                let mut pod = json!({"metadata": {"name": format!("plain-{index}"), "labels": {"app": "plain"}}});
                pod["spec"] = pod_spec();
                let pod = serde_json::from_value(pod)?;
                pods.create(&PostParams::default(), &pod).await?;
                Ok(())
            }
        }))
        .await
    }

    /// Creates ReplicaSets without Pods, as Deployments leave them behind.
    pub async fn old_sets(&self, count: usize) -> Result<()> {
        eprintln!("{count} old ReplicaSets");
        at_once((0..count / OF_ONE).map(|index| {
            let namespace = self.namespace(index);
            let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
            let sets: Api<ReplicaSet> = Api::namespaced(self.client.clone(), namespace);
            async move {
                let new = deployments
                    .create(&PostParams::default(), &deployment(index)?)
                    .await?;
                let uid = new.uid().context("a UID")?;
                for revision in 0..OF_ONE {
                    let set = old_set(index, revision, &uid)?;
                    sets.create(&PostParams::default(), &set).await?;
                }
                Ok(())
            }
        }))
        .await
    }

    /// Up to `count` managed Pods, taken evenly from all, as they are in a review.
    pub async fn samples(&self, count: usize) -> Result<Vec<Value>> {
        let all = self.names(MANAGED).await?;
        let step = (all.len() / count).max(1);
        let read = all.into_iter().step_by(step).map(|(namespace, name)| {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            async move {
                let mut pod = serde_json::to_value(pods.get(&name).await?)?;
                (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
                Ok::<_, anyhow::Error>(pod)
            }
        });
        stream::iter(read)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    async fn names(&self, labels: &str) -> Result<Vec<(String, String)>> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let found = pods
            .list_metadata(&ListParams::default().labels(labels))
            .await?;
        let names = found
            .items
            .iter()
            .map(|p| (p.namespace().unwrap_or_default(), p.name_any()));
        Ok(names.collect())
    }

    /// Checks every two seconds, because each check lists all Pods.
    async fn reach<F: Future<Output = Result<bool>>>(
        &self,
        description: &str,
        probe: impl Fn() -> F,
    ) -> Result<()> {
        let end = tokio::time::Instant::now() + PATIENCE;
        while tokio::time::Instant::now() < end {
            if probe().await? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
        anyhow::bail!("waited {PATIENCE:?} for {description}")
    }
}

async fn at_once<F: Future<Output = Result<()>>>(all: impl Iterator<Item = F>) -> Result<()> {
    stream::iter(all)
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// A Pod of a typical size.
fn pod_spec() -> Value {
    let environment: Vec<_> = (0..20)
        .map(|n| json!({"name": format!("VARIABLE_{n}"), "value": "a value of some length"}))
        .collect();
    let resources = json!({
        "requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"},
    });
    json!({
        "schedulingGates": [{"name": "operating.kusionstack.io/bench"}],
        "containers": [
            {"name": "main", "image": "registry.example.com/team/web:v1.20.3", "env": environment,
             "resources": resources, "ports": [{"containerPort": 8080, "name": "http"}],
             "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080}}},
            {"name": "side", "image": "registry.example.com/mesh/proxy:v1.4.0", "resources": resources},
        ],
    })
}

fn template(labels: &Value) -> Value {
    json!({"metadata": {"labels": labels, "annotations": {"note": "x".repeat(500)}}, "spec": pod_spec()})
}

fn managed_set(index: usize) -> Result<ReplicaSet> {
    let app = format!("web-{index}");
    let labels = json!({
        "app": app, "app.kubernetes.io/version": "v1.20.3", "tier": "bench", "kusionstack.io/control": "true",
    });
    Ok(serde_json::from_value(json!({
        "metadata": {"name": app},
        "spec": {
            "replicas": OF_ONE,
            "selector": {"matchLabels": {"app": app}},
            "template": template(&labels),
        },
    }))?)
}

fn rule(index: usize) -> Result<DynamicObject> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "PodTransitionRule",
        "metadata": {"name": format!("web-{index}")},
        "spec": {
            "selector": {"matchLabels": {"app": format!("web-{index}")}},
            "rules": [{"name": "none", "availablePolicy": {"maxUnavailableValue": 0}}],
        },
    }))?)
}

/// The status that a kubelet writes for an available Pod.
fn status(name: &str) -> Value {
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let kinds = [
        "Initialized",
        "ContainersReady",
        "Ready",
        "pod.kusionstack.io/service-ready",
    ];
    let digit = |n: usize| format!("{:0>64}", format!("{name}{n}"));
    let container = |(n, (name, image)): (usize, (&str, &str))| {
        json!({
            "name": name, "image": image, "ready": true, "restartCount": 0,
            "imageID": format!("{image}@sha256:{:064}", n),
            "containerID": format!("containerd://{}", digit(n)),
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        })
    };
    let containers = [
        ("main", "registry.example.com/team/web:v1.20.3"),
        ("side", "registry.example.com/mesh/proxy:v1.4.0"),
    ];
    let containers: Vec<_> = containers.into_iter().enumerate().map(container).collect();
    json!({"status": {
        "phase": "Running", "conditions": kinds.map(condition), "containerStatuses": containers,
    }})
}

/// Paused and without Pods: its controller leaves it and its ReplicaSets as they are.
fn deployment(index: usize) -> Result<Deployment> {
    let labels = json!({"app": format!("old-{index}")});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("old-{index}")},
        "spec": {
            "replicas": 0, "paused": true, "revisionHistoryLimit": 100,
            "selector": {"matchLabels": labels}, "template": template(&labels),
        },
    }))?)
}

fn old_set(index: usize, revision: usize, owner: &str) -> Result<ReplicaSet> {
    let name = format!("old-{index}");
    let labels = json!({"app": name, "pod-template-hash": revision.to_string()});
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": format!("{name}-{revision}"), "labels": labels,
            "annotations": {"deployment.kubernetes.io/revision": (revision + 1).to_string()},
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": owner,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template(&labels)},
    }))?)
}
