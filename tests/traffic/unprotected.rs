//! A Pod may get requests before it is protected: one of two ports is still pending, or the leader has not seen it serve.
//! An operation on such a Pod waits for the load balancer all the same.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::pods::is_ready;
use testbed::{Scope, wait};

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, addresses, edge, names};
use crate::sets::{Set, image, label};

const ID: &str = "manual";

/// The number of members that the load balancer has of a Pod.
fn members(bed: &TrafficBed, scope: &Scope, pod: &str) -> usize {
    let state = bed.http.state();
    let members = state.members.iter();
    let of_pod = members.filter(|(key, m)| key.0 == scope.namespace && m.pod_name == pod);
    of_pod.count()
}

/// Waits until the Pod is protected, or until `changed` says that it is too late.
async fn protected_before(web: &Employer<'_>, pod: &str, changed: impl Fn(&Pod) -> bool) {
    let seen = wait::value("the Pod to be protected or changed", async || {
        let pod = web.scope.get(pod).await;
        (web.protects(&pod) || changed(&pod)).then_some(pod)
    })
    .await;
    assert!(!changed(&seen), "changed while it may have requests");
}

#[tokio::test]
async fn pod_that_serves_at_one_of_two_ports_is_drained_before_an_operation() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("half").await;
    bed.http.state().pending_groups.insert("admin".to_owned());
    let mut part = edge();
    part["spec"]["ports"] = json!([
        { "name": "http", "port": 80, "targetPort": 8080 },
        { "name": "admin", "port": 81, "targetPort": 8081 },
    ]);
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::unsettled(&scope, "web", 2, json!({})).await;
    addresses(&set, 2).await;
    let names = names(&set).await;
    web.until("all members", |report| {
        (report.registered, report.pending) == (2, 2)
    })
    .await;
    assert_eq!(bed.http.serving(&scope.namespace), names);

    bed.http.state().refused_pods.extend(names.clone());
    let operates = |pod: &Pod| label(pod, &Family::Operate.key(ID)).is_some();
    let begin = json!({ "metadata": { "labels": {
        (Family::Operating.key(ID)): "1", (Family::OperationType.key(ID)): ID,
    } } });
    for (name, of_status) in names.iter().zip([false, true]) {
        assert!(!web.protects(&scope.get(name).await));
        let (api, params) = (scope.pods(), PatchParams::default());
        let patch = Patch::Merge(&begin);
        let begun = match of_status {
            false => api.patch(name, &params, &patch).await,
            true => api.patch_status(name, &params, &patch).await,
        };
        let begun = begun.unwrap();
        assert!(web.protects(&begun) && web.is_expected(&begun), "{begun:?}");
        assert!(
            label(&begun, &Family::Preparing.key(ID)).is_some(),
            "{begun:?}"
        );
    }
    bed.http.state().refused_pods.clear();
    for name in &names {
        let description = "the operation to begin";
        scope.until_pod(name, description, operates).await;
        assert_eq!(members(bed, &scope, name), 0);
    }

    bed.http.end_faults();
    for name in &names {
        scope.finish(name, ID).await.unwrap();
    }
    set.settled().await;
    web.consistent(4).await;
}

#[tokio::test]
async fn pod_of_an_update_that_is_followed_by_another_is_drained_again() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("again").await;
    let web = Employer::new(&scope, "web", edge()).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let part = json!({ "updateStrategy": { "podUpdatePolicy": "InPlaceIfPossible" } });
    let set = Set::new(&scope, "web", 2, part).await;
    web.consistent(2).await;
    bed.http.state().pending_groups.insert("http".to_owned());
    set.image("app:2").await;
    let name = wait::value("a Pod of app:2 whose member is pending", async || {
        let pods = set.pods().await;
        let mut updated = pods.values().filter(|pod| image(pod) == "app:2");
        let waits = |pod: &&Pod| {
            let registered = members(bed, &scope, &pod.name_any()) == 1;
            registered && !web.protects(pod)
        };
        updated.find(waits).map(ResourceExt::name_any)
    })
    .await;

    bed.http.state().refused_pods.insert(name.clone());
    set.image("app:3").await;
    protected_before(&web, &name, |pod| image(pod) == "app:3").await;
    bed.http.end_faults();
    set.settled().await;
    web.consistent(2).await;
}

#[tokio::test]
async fn pod_of_an_undone_operation_is_available_when_it_serves_again() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("undone").await;
    let mut part = edge();
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("300");
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let name = names(&set).await.remove(0);
    bed.http.state().connections = 3; // the drain takes its whole time
    scope.begin(&name, ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    assert_eq!(bed.http.serving(&scope.namespace).len(), 1);

    bed.http.state().pending_groups.insert("http".to_owned());
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&name, undo).await.unwrap();
    web.until("the member to come back", |report| {
        report.draining == 0 && report.pending > 0
    })
    .await;
    let back = scope
        .until_pod(&name, "the Pod to be Ready", is_ready)
        .await;
    assert!(!web.protects(&back), "no member of it serves");
    assert!(label(&back, keys::SERVICE_AVAILABLE).is_none(), "{back:?}");

    bed.http.end_faults();
    let available = |pod: &Pod| label(pod, keys::SERVICE_AVAILABLE).is_some();
    scope
        .until_pod(&name, "the Pod to be available", available)
        .await;
    assert!(bed.http.serving(&scope.namespace).contains(&name));
    web.consistent(2).await;
}
