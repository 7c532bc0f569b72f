//! A Pod comes back on traffic with a protection from before, while no member of it serves. It is not available until the
//! leader has seen it serve.

use k8s_openapi::api::core::v1::Pod;
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::Bed;
use testbed::fleet::REPLICAS;
use testbed::pods::is_ready;

use crate::bed::alone;
use crate::fixtures::{Employer, edge, names};
use crate::sets::{Set, label};

const ID: &str = "manual";

/// A Service whose drains take long.
fn slow_edge() -> Value {
    let mut part = edge();
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("300");
    part
}

fn adapter(name: &str) -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): name } } })
}

fn undo(id: &str) -> Value {
    json!({ (Family::UndoOperationType.key(id)): id })
}

fn operates(pod: &Pod) -> bool {
    label(pod, &Family::Operate.key(ID)).is_some()
}

fn is_available(pod: &Pod) -> bool {
    label(pod, keys::SERVICE_AVAILABLE).is_some()
}

/// Waits until the Pod is Ready, and sees that the Service does not count it as serving.
async fn ready_without_traffic(web: &Employer<'_>, pod: &str) {
    let back = web.scope.until_pod(pod, "the Pod to be Ready", is_ready);
    let back = back.await;
    assert!(web.is_expected(&back) && !web.protects(&back), "{back:?}");
    assert!(!is_available(&back), "{back:?}");
}

#[tokio::test]
async fn pod_undone_while_its_adapter_is_misspelt_uses_the_budget() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("stale-misspelt").await;
    let web = Employer::new(&scope, "web", slow_edge()).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    bed.http.state().connections = 3; // the drain takes its whole time
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;

    web.edit(adapter("egde")).await;
    web.until("the error", |report| report.adapter.is_empty())
        .await;
    scope.label(&pods[0], undo(ID)).await.unwrap();
    ready_without_traffic(&web, &pods[0]).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods[1..]);
    let begun = scope.begin(&pods[1], ID).await.unwrap();
    let waits = label(&begun, &Family::PreCheck.key(ID)).is_some();
    assert!(waits && is_available(&begun), "{begun:?}");

    bed.http.end_faults();
    web.edit(adapter("edge")).await;
    scope
        .until_pod(&pods[1], "the operation to begin", operates)
        .await;
    assert_eq!(bed.http.serving(&scope.namespace), pods[..1]);
    scope.finish(&pods[1], ID).await.unwrap();
    web.consistent(2).await;
}

#[tokio::test]
async fn next_operation_waits_until_the_adapter_is_corrected() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("stale-again").await;
    let web = Employer::new(&scope, "web", slow_edge()).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    bed.http.state().connections = 3;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;
    web.edit(adapter("egde")).await;
    web.until("the error", |report| report.adapter.is_empty())
        .await;
    scope.label(&pods[0], undo(ID)).await.unwrap();
    ready_without_traffic(&web, &pods[0]).await;

    // Requests may still be open at its member.
    let begun = scope.begin(&pods[0], ID).await.unwrap();
    assert!(web.protects(&begun) && !operates(&begun), "{begun:?}");
    bed.http.end_faults();
    web.edit(adapter("edge")).await;
    scope
        .until_pod(&pods[0], "the operation to begin", operates)
        .await;
    assert_eq!(bed.http.serving(&scope.namespace), pods[1..]);
    scope.finish(&pods[0], ID).await.unwrap();
    web.consistent(2).await;
}

#[tokio::test]
async fn pod_undone_while_no_server_runs_is_not_available_before_it_serves() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("stale-down").await;
    let web = Employer::new(&scope, "web", slow_edge()).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    bed.http.state().connections = 3;
    scope.begin(&pods[0], ID).await.unwrap();
    web.until("the drain", |report| report.draining == 1).await;

    bed.bed.kill_all().await;
    bed.http.state().pending_groups.insert("http".to_owned());
    let ended = json!({
        (Family::Operating.key(ID)): null, (Family::OperationType.key(ID)): null,
    });
    let ended = scope.label(&pods[0], ended).await.unwrap();
    assert!(web.protects(&ended), "no webhook has seen the end");
    for index in 0..REPLICAS {
        bed.bed.restart(index).await;
    }
    web.until("the member to come back", |report| {
        report.draining == 0 && report.pending > 0
    })
    .await;
    ready_without_traffic(&web, &pods[0]).await;

    bed.http.end_faults();
    web.consistent(2).await;
    scope
        .until_pod(&pods[0], "the Pod to be available", is_available)
        .await;
}

#[tokio::test]
async fn second_operation_leaves_no_protection_to_the_first() {
    let (bed, _guard) = alone().await;
    let scope = bed.bed.scope("stale-second").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope
        .until_pod(&pods[0], "the operation to begin", operates)
        .await;

    // A new leader that can read nothing can't release the Pod.
    bed.http.state().down = true;
    let leader = bed.bed.leader().await;
    bed.bed.kill(leader).await;
    bed.bed.restart(leader).await;
    web.until("the failure", |report| report.last_error.is_some())
        .await;
    let second = scope.begin(&pods[0], "second").await.unwrap();
    assert!(web.protects(&second), "{second:?}");
    scope.label(&pods[0], undo("second")).await.unwrap();
    scope.finish(&pods[0], ID).await.unwrap();
    ready_without_traffic(&web, &pods[0]).await;

    bed.http.end_faults();
    web.consistent(2).await;
    scope
        .until_pod(&pods[0], "the Pod to be available", is_available)
        .await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
}

#[tokio::test]
async fn pod_of_a_refused_service_is_not_available_before_it_serves() {
    let scope = Bed::shared().await.scope("stale-refused").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope
        .until_pod(&pods[0], "the operation to begin", operates)
        .await;

    let refused = |refused| json!({ "spec": { "publishNotReadyAddresses": refused } });
    web.edit(refused(true)).await;
    web.until("the refusal", |report| report.last_error.is_some())
        .await;
    scope.finish(&pods[0], ID).await.unwrap();
    ready_without_traffic(&web, &pods[0]).await;

    web.edit(refused(false)).await;
    web.consistent(2).await;
    scope
        .until_pod(&pods[0], "the Pod to be available", is_available)
        .await;
}
