//! Addresses that two Pods have, at the same time or one after the other.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys;
use serde_json::{Value, json};
use testbed::scope::PAUSED;
use testbed::{Scope, wait};

use crate::bed::alone;
use crate::doubles::Doubles;
use crate::fixtures::{Employer, edge};

/// A Pod whose status only the test writes.
async fn pod(scope: &Scope, name: &str) -> Pod {
    let metadata = json!({ "labels": { "app": "web" }, "annotations": { (PAUSED): "true" } });
    scope.pod(name, json!({ "metadata": metadata })).await;
    let scheduled = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.is_some();
    scope.until_pod(name, "a node", scheduled).await
}

/// Reports a Pod as the kubelet does.
async fn report(scope: &Scope, name: &str, phase: &str, address: &str) {
    let ready = match phase {
        "Running" => "True",
        _ => "False",
    };
    let status = json!({
        "phase": phase, "podIP": address, "podIPs": [{ "ip": address }],
        "conditions": [{ "type": "Ready", "status": ready }],
    });
    let patch = Patch::Strategic(json!({ "status": status }));
    let params = PatchParams::default();
    scope
        .pods()
        .patch_status(name, &params, &patch)
        .await
        .unwrap();
}

/// The UIDs of the Pods of the members of a namespace.
fn members(doubles: &Doubles, scope: &Scope) -> Vec<String> {
    let state = doubles.http.state();
    let members = state.members.iter();
    let ours = members.filter(|(key, _)| key.0 == scope.namespace);
    ours.map(|(_, member)| member.pod_uid.clone()).collect()
}

fn lane(value: &str) -> Value {
    json!({ "metadata": { "labels": { "app": value } } })
}

/// The new Pod gets the address while the load balancer still has the member of the Pod that has ended, and cannot be
/// changed. The end of the former Pod then takes nobody off.
#[tokio::test]
async fn address_of_an_ended_pod_belongs_to_the_new_pod() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-reuse").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let old = pod(&scope, "web-0").await;
    report(&scope, "web-0", "Running", "10.99.0.1").await;
    web.consistent(1).await;
    web.marks("web-0", (true, true)).await;

    bed.http.state().down = true;
    report(&scope, "web-0", "Succeeded", "10.99.0.1").await;
    let new = pod(&scope, "web-1").await;
    report(&scope, "web-1", "Running", "10.99.0.1").await;
    web.until("the failure", |report| report.last_error.is_some())
        .await;
    assert!(!web.protects(&scope.get("web-1").await));
    assert_eq!(members(bed, &scope), [old.uid().unwrap()]);
    bed.http.state().down = false;
    web.marks("web-1", (true, true)).await;
    assert_eq!(members(bed, &scope), [new.uid().unwrap()]);
    wait::until("the former Pod to be released", async || {
        !web.protects(&scope.get("web-0").await)
    })
    .await;
    scope.delete("web-0").await.unwrap();
    scope.until_gone(&old).await;
    web.consistent(1).await;
    assert_eq!(bed.http.serving(&scope.namespace), ["web-1"]);
}

/// As with `hostNetwork`: one member can't stand for two Pods.
#[tokio::test]
async fn second_pod_of_an_address_is_not_protected_and_is_named() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-shared").await;
    let web = Employer::new(&scope, "web", edge()).await;
    web.consistent(0).await; // from now on, Pods expect traffic from their creation
    for name in ["web-0", "web-1"] {
        pod(&scope, name).await;
        report(&scope, name, "Running", "10.99.0.2").await;
    }
    let report = web
        .until("one of two", |report| {
            (report.registered, report.pending) == (1, 1) && report.last_error.is_some()
        })
        .await;
    let error = report.last_error.unwrap();
    assert!(
        error.contains("its address and port are those of Pod web-"),
        "{error}"
    );
    let first = bed.http.serving(&scope.namespace).pop().unwrap();
    let second = match &*first {
        "web-0" => "web-1",
        _ => "web-0",
    };
    web.marks(&first, (true, true)).await;
    web.marks(second, (true, false)).await;
    // The one that has the member leaves: the other takes it over.
    scope.patch(&first, lane("else")).await.unwrap();
    web.marks(second, (true, true)).await;
    web.consistent(1).await;
    assert_eq!(bed.http.serving(&scope.namespace), [second]);
}

/// A Pod that is made again under its name is another Pod.
#[tokio::test]
async fn pod_made_again_under_its_name_gets_marks_and_a_member_of_its_own() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-again").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let metadata = json!({ "labels": { "app": "web" } });
    let former = scope.pod("web-0", json!({ "metadata": metadata })).await;
    web.consistent(1).await;
    assert_eq!(members(bed, &scope), [former.uid().unwrap()]);
    scope.delete("web-0").await.unwrap();
    scope.until_gone(&former).await;
    let new = scope.pod("web-0", json!({ "metadata": metadata })).await;
    assert!(web.is_expected(&new), "{:?}", new.annotations());
    web.marks("web-0", (true, true)).await;
    web.consistent(1).await;
    assert_eq!(members(bed, &scope), [new.uid().unwrap()]);
    let kept = scope.get("web-0").await;
    assert!(kept.annotations().contains_key(keys::AVAILABLE_CONDITIONS));
}
