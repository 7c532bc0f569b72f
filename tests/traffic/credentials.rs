//! Credentials that end while Pods serve: nothing is concluded from refused calls, and new files have their effect without
//! a restart of the server.

use std::time::Duration;

use operating::api::keys;
use serde_json::json;
use testbed::slb_double::Listener;
use testbed::wait;

use crate::bed;
use crate::fixtures::{Employer, addresses, names, serving_by};
use crate::sets::Set;

#[tokio::test]
async fn token_that_changes_while_a_pod_drains_is_read_again() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("traffic-token").await;
    let (web, set) = serving_by(&scope, "guarded", 2).await;
    let pods = names(&set).await;
    bed.guarded.state().token = Some("token-2".to_owned());
    scope.begin(&pods[0], "manual").await.unwrap();
    let report = web
        .until("the refusal", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(error.contains("401"), "{error}");
    assert!(!error.contains("token-1"), "{error}");
    assert!(web.protects(&scope.get(&pods[0]).await));
    assert_eq!(bed.guarded.serving(&scope.namespace), pods);
    bed.write("token", "token-2");
    web.marks(&pods[0], (true, false)).await;
    assert_eq!(bed.guarded.serving(&scope.namespace), pods[1..]);
    scope.finish(&pods[0], "manual").await.unwrap();
    web.consistent(2).await;
    assert!(bed.guarded.state().cut.is_empty());
}

/// The cloud controller takes the Pod off while nobody can read that.
#[tokio::test]
async fn temporary_key_that_expires_while_a_pod_drains_is_replaced() {
    let bed = bed::shared().await;
    let scope = bed.bed.scope("traffic-expired").await;
    let listener = Listener::tcp(80, None);
    bed.rotating.state().add_listener("lb-0", listener);
    let part = json!({
        "metadata": {
            "labels": { "service.k8s.alibaba/loadbalancer-id": "lb-0" },
            "annotations": { (keys::CONSIST_ADAPTER): "slb-rotating" },
        },
        "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] },
    });
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::unsettled(&scope, "web", 2, json!({})).await;
    let all = addresses(&set, 2).await;
    let registered: Vec<_> = all.iter().map(|(_, address)| address.clone()).collect();
    let controller = bed.rotating.cloud_controller();
    controller.set("lb-0", &registered, 8080);
    web.consistent(2).await;
    set.settled().await;

    bed.rotating.state().people.expire();
    let before = bed.rotating.calls().len();
    let (name, _) = &all[0];
    scope.begin(name, "manual").await.unwrap();
    controller.set("lb-0", &registered[1..], 8080);
    let report = web
        .until("the refusal", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(error.contains("InvalidSecurityToken.Expired"), "{error}");
    assert!(!error.contains("temporary"), "{error}");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(web.protects(&scope.get(name).await), "nobody could read");
    let calls = bed.rotating.calls().len() - before;
    assert!(calls <= 20, "{calls} calls with a key that has expired");
    bed.issue_key();
    web.marks(name, (true, false)).await;
    scope.finish(name, "manual").await.unwrap();
    controller.set("lb-0", &registered, 8080);
    web.consistent(2).await;
    wait::until("the Pod to be protected", async || {
        web.protects(&scope.get(name).await)
    })
    .await;
}
