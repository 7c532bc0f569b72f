//! Pods leave their load balancer before an operation begins.

mod objects;
mod rollout;

use anyhow::Result;
use kube::ResourceExt;
use serde_json::json;
use testbed::wait;

use super::super::Stage;
use super::super::workload::{NAME, REPLICAS};
use objects::{Objects, PATIENCE};

/// Beginning of the finalizers that protect Pods.
const PROTECTION: &str = "prot.podopslifecycle.kusionstack.io/";

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
        "With the label kusionstack.io/control on their Service, Pods get a finalizer when their endpoints are\n\
         ready, and no operation begins before the finalizer is removed; this is the adapter `endpoints`.",
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
    let has_protection = |pod: &&k8s_openapi::api::core::v1::Pod| {
        let finalizers = pod.finalizers().iter();
        finalizers.into_iter().any(|f| f.starts_with(PROTECTION))
    };
    Ok(pods.iter().filter(has_protection).count())
}
