//! Graceful to the last request: real HTTP servers behind a real proxy, and a load that runs while their Pods are updated,
//! scaled in, deleted and drained.
//!
//! kwok's Pods run nothing, so a process on a loopback address stands in for the container of each Pod. It gets SIGTERM
//! when the deletion of its Pod begins or its container restarts, and then ends as common servers do: at once for new
//! connections ([`testbed::containers`]).

use std::time::Duration;

use kube::ResourceExt;
use serde_json::{Value, json};
use testbed::containers::{self, Containers};
use testbed::edge::{Edge, GROUP};
use testbed::kubectl::DRAINED;
use testbed::load::{Limits, Load, LoadReport};
use testbed::{Bed, Scope, ports, wait};

use crate::fixtures::Employer;
use crate::sets::Set;

/// Requests of the load: four at a time, of at most so many in each second.
const LIMITS: Limits = Limits {
    workers: 4,
    per_second: 200,
    timeout: Duration::from_secs(10),
    longest: Duration::from_secs(240),
};

/// Starts three servers that call the bridge on a port.
async fn bed(bridge: u16) -> Bed {
    let dir = tempfile::tempdir().unwrap().keep();
    let file = dir.join("traffic.yaml");
    let config = json!({ "adapters": [{
        "name": "edge", "type": "http",
        "settings": { "url": format!("http://127.0.0.1:{bridge}"), "drainSeconds": 20 },
    }] });
    std::fs::write(&file, config.to_string()).unwrap();
    let file: &str = Box::leak(file.to_str().unwrap().to_owned().into_boxed_str());
    let flags = vec!["--traffic-config", file];
    Bed::own_with_serving(
        &["--feature-gates", "GraceDeleteWebhook=true"],
        flags.leak(),
    )
    .await
}

/// A set of four servers.
async fn set<'a>(scope: &'a Scope, name: &'static str, port: u16) -> Set<'a> {
    let mut template = containers::template(&format!("{name}:1"), port);
    let labels = json!({ "app": name, "drain": &scope.namespace, "set": name });
    json_patch::merge(&mut template, &json!({ "metadata": { "labels": labels } }));
    Set::unsettled(scope, name, 4, json!({ "template": template })).await
}

/// An update of the image in place, a scale-in, a deletion, and a drained node.
async fn disturb(bed: &Bed, scope: &Scope, set: &Set<'_>) {
    let mut template = serde_json::to_value(set.get().await.spec.template).unwrap();
    template["spec"]["containers"][0]["image"] = json!(format!("{}:2", set.name));
    set.edit(json!({ "template": template })).await;
    set.settled().await;
    set.edit(json!({ "replicas": 3 })).await;
    set.settled().await;
    let pod = set.pods().await.into_values().next().unwrap();
    let is_there = async || scope.pods().get_opt(&pod.name_any()).await.unwrap();
    wait::until("the Pod to be deleted", async || {
        let _ = scope.delete(&pod.name_any()).await; // it is held until the Pod is off traffic
        is_there()
            .await
            .is_none_or(|present| present.uid() != pod.uid())
    })
    .await;
    set.settled().await;
    bed.drain(
        DRAINED,
        &format!("drain={},set={}", scope.namespace, set.name),
    )
    .await;
    set.settled().await;
    bed.uncordon(DRAINED).await;
}

#[tokio::test]
async fn no_request_fails_while_pods_are_updated_scaled_in_deleted_and_drained() {
    let [bridge, port, plain_port] = ports::free().unwrap();
    let bed = bed(bridge).await;
    let scope = bed.scope("traffic-graceful").await;
    let namespace = scope.namespace.as_str();
    let edge = Edge::start(bridge, &[(namespace, "web"), (namespace, "plain")])
        .await
        .unwrap();
    let _containers = Containers::start(&scope.client, &[namespace]).unwrap();
    let part = json!({
        "metadata": { "annotations": {
            "resource-consist.kusionstack.io/adapter": "edge",
            "resource-consist.kusionstack.io/drain-seconds": Value::Null,
        } },
        "spec": { "ports": [{ "name": GROUP, "port": 80, "targetPort": port }] },
    });
    let service = Employer::new(&scope, "web", part).await;
    let web = set(&scope, "web", port).await;
    let plain = set(&scope, "plain", plain_port).await;
    let _follower = edge
        .follow_readiness(&scope.client, (namespace, "plain"), "app=plain", plain_port)
        .unwrap();
    web.settled().await;
    plain.settled().await;
    service.consistent(4).await;

    let managed = Load::start(&edge.url(0), LIMITS).unwrap();
    let unmanaged = Load::start(&edge.url(1), LIMITS).unwrap();
    disturb(&bed, &scope, &web).await;
    service.consistent(3).await;
    disturb(&bed, &scope, &plain).await;
    let (managed, unmanaged): (LoadReport, LoadReport) =
        tokio::join!(managed.stop(), unmanaged.stop());
    println!("with the adapter: {managed}");
    println!("without: {unmanaged}");
    assert_eq!(managed.failed(), 0, "{managed}");
    assert!(
        unmanaged.failed() > 0,
        "the comparison shows nothing: {unmanaged}"
    );
}
