//! Alibaba Cloud SLB, behind a double that speaks its wire protocol.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::slb_double::Listener;
use testbed::wait;

use crate::bed;
use crate::doubles::WRITER;
use crate::fixtures::Employer;
use crate::sets::Set;

fn service(load_balancer: &str) -> Value {
    json!({
        "metadata": { "labels": { "service.k8s.alibaba/loadbalancer-id": load_balancer } },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    })
}

/// The addresses of Pods by their names.
async fn addresses(set: &Set<'_>) -> Vec<(String, String)> {
    let pods = set.pods().await;
    let address = |pod: &k8s_openapi::api::core::v1::Pod| {
        let address = pod.status.as_ref().unwrap().pod_ip.clone();
        (pod.name_any(), address.unwrap_or_default())
    };
    pods.values().map(address).collect()
}

/// The cloud controller of the cluster registers Pods; the server waits for it.
#[tokio::test]
async fn observed_load_balancer_is_waited_for() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("slb-observe").await;
    bed.slb
        .state()
        .add_listener("lb-0", Listener::tcp(80, None));
    let web = Employer::new(&scope, "web", service("lb-0")).await;
    let set = Set::unsettled(&scope, "web", 2, json!({})).await;
    wait::until("two Pods with addresses", async || {
        let all = addresses(&set).await;
        all.len() == 2 && all.iter().all(|(_, address)| !address.is_empty())
    })
    .await;
    let report = web
        .until("two pending members", |report| report.pending == 2)
        .await;
    assert_eq!(report.adapter, "slb");
    let all = addresses(&set).await;
    let registered: Vec<_> = all.iter().map(|(_, address)| address.clone()).collect();
    let controller = bed.slb.cloud_controller();
    controller.set("lb-0", &registered, 8080);
    web.consistent(2).await;
    set.settled().await;
    let (name, _) = &all[0];
    scope.begin(name, "manual").await.unwrap();
    web.until("the wait", |report| report.draining == 1).await;
    assert!(web.protects(&scope.get(name).await));
    controller.set("lb-0", &registered[1..], 8080);
    web.marks(name, (true, false)).await;
    scope.finish(name, "manual").await.unwrap();
    web.until("the Pod to be pending", |report| report.pending == 1)
        .await;
    controller.set("lb-0", &registered, 8080);
    web.marks(name, (true, true)).await;
    web.consistent(2).await;
}

/// The server registers Pods itself, and stops new requests by the weight 0 before it removes them.
#[tokio::test]
async fn written_load_balancer_follows_pods() {
    let bed = bed::shared().await;
    let scope = bed.named_scope(WRITER).await;
    bed.slb
        .state()
        .add_listener("lb-1", Listener::tcp(80, None));
    let mut part = service("lb-1");
    part["metadata"]["annotations"] = json!({
        (keys::CONSIST_ADAPTER): "slb-write", (keys::CONSIST_DRAIN_SECONDS): "3",
    });
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::unsettled(&scope, "web", 2, json!({})).await;
    let mut known = Vec::new();
    wait::until("the members to serve", async || {
        for (name, address) in addresses(&set).await {
            if !address.is_empty() && !known.contains(&address) {
                bed.slb
                    .state()
                    .add_interface(&address, &format!("eni-{name}"));
                known.push(address);
            }
        }
        web.report()
            .await
            .is_some_and(|report| report.registered == 2)
    })
    .await;
    set.settled().await;
    let all = addresses(&set).await;
    let weights = || -> Vec<(String, u32)> {
        let backends = bed.slb.backends("lb-1").into_iter();
        backends
            .map(|backend| (backend.ip, backend.weight))
            .collect()
    };
    assert_eq!(weights().len(), 2);
    let (name, address) = &all[0];
    scope.begin(name, "manual").await.unwrap();
    wait::until("the weight 0", async || {
        weights().contains(&(address.clone(), 0))
    })
    .await;
    assert!(
        web.protects(&scope.get(name).await),
        "requests may still be open"
    );
    web.marks(name, (true, false)).await;
    assert!(
        weights()
            .iter()
            .all(|(registered, _)| registered != address)
    );
    scope.finish(name, "manual").await.unwrap();
    web.marks(name, (true, true)).await;
    assert_eq!(weights().len(), 2);
    web.delete().await;
    web.gone().await;
    assert_eq!(weights(), []);
}
