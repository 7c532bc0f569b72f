//! Pods leave their load balancer before an operation begins.

mod objects;
mod rollout;

use anyhow::Result;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use testbed::{keys, wait};

use super::super::Stage;
use super::super::workload::{NAME, REPLICAS};
use objects::{Objects, PATIENCE};

/// Plays the scene.
pub async fn play(stage: &mut Stage<'_>) -> Result<()> {
    stage
        .narrator
        .scene("Traffic: a Pod leaves its load balancer before an operation begins");
    follow_endpoints(stage).await?;
    match stage.cluster.bridge {
        Some(bridge) => rollout::play(stage, bridge).await,
        None => {
            stage.narrator.say(
                "The part with a real proxy is left out: it needs Pods on loopback addresses of this machine,\n\
                 and an existing cluster has none.",
            );
            Ok(())
        }
    }
}

/// Shows what the label does to a Service, and to the Pods of the Deployment.
async fn follow_endpoints(stage: &mut Stage<'_>) -> Result<()> {
    stage.narrator.say(
        "A Service with the label kusionstack.io/control gives its Pods a finalizer: by the adapter `endpoints`, no\n\
         operation on a Pod begins before its endpoints are not ready any more and the drain time has passed.",
    );
    let objects = Objects::of(stage)?;
    objects
        .create_service(NAME, json!({ "spec": { "ports": [{ "port": 80 }] } }))
        .await?;
    wait::within("all Pods to be protected", PATIENCE, || async {
        Ok(protected(stage).await? == REPLICAS)
    })
    .await?;
    let count = protected(stage).await?;
    let expected = format!("the finalizer on all {REPLICAS} Pods");
    let seen = format!("on {count}");
    stage.narrator.check(&expected, seen, count == REPLICAS);
    objects.delete_service(NAME).await?;
    wait::within("no Pod to be protected", PATIENCE, || async {
        Ok(protected(stage).await? == 0)
    })
    .await
}

/// Number of Pods with a finalizer of a Service.
async fn protected(stage: &Stage<'_>) -> Result<usize> {
    let pods = stage.workload.list().await?;
    let has_protection = |pod: &&Pod| {
        let mut finalizers = pod.finalizers().iter();
        finalizers.any(|finalizer| finalizer.starts_with(keys::PROTECTION))
    };
    Ok(pods.iter().filter(has_protection).count())
}
