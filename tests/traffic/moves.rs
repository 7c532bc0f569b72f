//! Services that move from one adapter to another, and what stops such moves. Nobody is taken off before the new load
//! balancer serves, and no Pod is released while a former one may send it requests.

use std::time::Duration;

use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::is_ready;
use testbed::wait;

use crate::bed::alone;
use crate::fixtures::{
    adapter, assert_each_serves, draining_behind_endpoints, in_use, move_to_one_that_is_down,
    names, refuse_ends_of_moves, serving_by,
};
use crate::sets::label;

#[tokio::test]
async fn move_to_a_load_balancer_that_is_down_takes_nobody_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-down").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    move_to_one_that_is_down(bed, &web).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    // Back again: nothing has changed.
    web.edit(adapter("edge")).await;
    bed.guarded.state().down = false;
    web.until("the former adapter", |report| report.adapter == "edge")
        .await;
    web.consistent(2).await;
    assert_eq!(in_use(&web).await, "edge");
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    assert!(bed.http.state().cut.is_empty());
}

#[tokio::test]
async fn each_pod_serves_at_each_moment_of_a_move() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-healthy").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    web.edit(adapter("guarded")).await;
    let is_left = || {
        bed.http
            .state()
            .members
            .keys()
            .all(|key| key.0 != scope.namespace)
    };
    wait::until("the former members to go", async || {
        assert_each_serves(bed, &scope, &pods);
        is_left()
    })
    .await;
    web.consistent(2).await;
    assert_eq!(in_use(&web).await, "guarded");
    assert!(bed.http.state().cut.is_empty());
}

/// Two adapters with one URL have the same members, so a move between them changes none.
#[tokio::test]
async fn move_between_adapters_of_one_load_balancer_changes_no_member() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-same").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    web.edit(adapter("passing")).await;
    wait::until("the end of the move", async || {
        in_use(&web).await == "passing"
    })
    .await;
    web.until("the new adapter", |report| report.adapter == "passing")
        .await;
    web.consistent(2).await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    assert!(bed.http.state().cut.is_empty());
}

/// The end of the move can't be recorded. The new adapter goes on, and the report tells why the move does not end.
#[tokio::test]
async fn refused_record_of_a_move_does_not_hold_up_the_new_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-refused").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    let policy = refuse_ends_of_moves(&scope).await;
    web.edit(adapter("passing")).await;
    web.until("the refusal, and the members", |report| {
        let error = report.last_error.as_deref().unwrap_or_default();
        let refused = error.contains("not as long as the test says so");
        refused && report.adapter == "passing" && report.registered == 2
    })
    .await;
    policy.lift().await;
    wait::until("the end of the move", async || {
        in_use(&web).await == "passing"
    })
    .await;
    web.consistent(2).await;
}

/// A former adapter that is not configured any more can't be asked, so Pods wait until it is back.
#[tokio::test]
async fn move_waits_for_a_former_adapter_that_is_removed() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-removed").await;
    let (web, set) = serving_by(&scope, "guarded", 2).await;
    let pods = names(&set).await;
    bed.http.state().down = true;
    web.edit(adapter("edge")).await;
    web.until("the failure", |report| {
        report.last_error.is_some() && report.adapter == "edge"
    })
    .await;
    bed.roll_out(&["guarded"]).await;
    scope.begin(&pods[0], "manual").await.unwrap();
    bed.http.state().down = false;
    let report = web.until("the reason", |report| {
        let error = report.last_error.as_ref();
        error.is_some_and(|error| error.contains("guarded") && error.contains("not configured"))
    });
    let report = report.await;
    assert_eq!(report.adapter, "edge");
    wait::until(
        "the other Pod to serve at the new load balancer",
        async || bed.http.serving(&scope.namespace) == pods[1..],
    )
    .await;
    assert!(web.protects(&scope.get(&pods[0]).await));
    assert_eq!(in_use(&web).await, "edge,guarded");
    assert_eq!(
        bed.guarded.serving(&scope.namespace),
        pods,
        "nobody is taken off"
    );
    bed.roll_out(&[]).await;
    web.marks(&pods[0], (true, false)).await;
    scope.finish(&pods[0], "manual").await.unwrap();
    web.consistent(2).await;
    assert_eq!(bed.guarded.serving(&scope.namespace), Vec::<String>::new());
}

/// The new adapter of a move is removed from the configuration, and the owner goes back.
#[tokio::test]
async fn service_goes_back_from_an_adapter_that_is_removed() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-back").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    move_to_one_that_is_down(bed, &web).await;
    bed.roll_out(&["guarded"]).await;
    bed.guarded.state().down = false;
    web.until("the error", |report| report.adapter.is_empty())
        .await;
    web.edit(adapter("edge")).await;
    set.edit(json!({ "replicas": 3 })).await;
    wait::until("the new Pod to serve", async || {
        bed.http.serving(&scope.namespace).len() == 3
    })
    .await;
    bed.roll_out(&[]).await;
    web.consistent(3).await;
    wait::until("the record", async || in_use(&web).await == "edge").await;
}

/// A Service that is deleted in a move takes along the members of every adapter that is configured.
#[tokio::test]
async fn service_deleted_in_a_move_leaves_no_members_at_configured_adapters() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-deleted").await;
    let (web, _set) = serving_by(&scope, "edge", 2).await;
    move_to_one_that_is_down(bed, &web).await;
    bed.roll_out(&["guarded"]).await;
    bed.guarded.state().down = false;
    web.until("the error", |report| report.adapter.is_empty())
        .await;
    web.delete().await;
    web.gone().await;
    let left = bed
        .http
        .state()
        .members
        .keys()
        .filter(|key| key.0 == scope.namespace)
        .count();
    bed.roll_out(&[]).await;
    assert_eq!(left, 0);
}

/// Whoever leaves an adapter by hand and comes back finds its members as they are then.
#[tokio::test]
async fn return_to_an_adapter_reads_first() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-return").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let to = |name: &str| {
        let annotations = json!({
            (keys::CONSIST_ADAPTER): name, (keys::CONSIST_ADAPTER_IN_USE): Value::Null,
        });
        json!({ "metadata": { "annotations": annotations } })
    };
    web.edit(to("guarded")).await;
    web.until("the other adapter", |report| {
        report.adapter == "guarded" && report.registered == 2
    })
    .await;
    wait::until("the record", async || in_use(&web).await == "guarded").await;
    bed.http
        .state()
        .members
        .retain(|key, _| key.0 != scope.namespace);
    web.edit(to("edge")).await;
    wait::until("the members to be registered again", async || {
        bed.http.serving(&scope.namespace) == pods
    })
    .await;
    web.consistent(2).await;
}

/// Until the new load balancer serves, the former one has all the traffic. Whoever should not get requests leaves it.
#[tokio::test]
async fn pod_that_is_not_ready_leaves_the_former_load_balancer_before_the_move_ends() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-unready").await;
    let (web, set) = serving_by(&scope, "edge", 3).await;
    let pods = names(&set).await;
    move_to_one_that_is_down(bed, &web).await;
    scope.lose_readiness(&pods[0]).await;
    wait::until("the Pod to leave the former load balancer", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    bed.guarded.state().down = false;
    wait::until("the others to move", async || {
        bed.guarded.serving(&scope.namespace) == pods[1..]
    })
    .await;
    assert!(bed.http.state().cut.is_empty());
}

/// A tool replaces the Service by its manifest, which has no finalizer and no record, and names another adapter.
#[tokio::test]
async fn replaced_service_does_not_forget_its_former_adapter() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-replaced").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let mut service = web.get().await;
    service.metadata.finalizers = None;
    service.metadata.annotations =
        Some([(keys::CONSIST_ADAPTER.to_owned(), "guarded".to_owned())].into());
    service.metadata.managed_fields = None;
    let params = kube::api::PostParams::default();
    web.api.replace("web", &params, &service).await.unwrap();
    wait::until("the new load balancer", async || {
        bed.guarded.serving(&scope.namespace) == pods
    })
    .await;
    wait::until("the former members to go", async || {
        bed.http.serving(&scope.namespace).is_empty()
    })
    .await;
    wait::until("the record", async || in_use(&web).await == "guarded").await;
}

/// `endpoints` only reads, so it has no members to remove. A Pod that drains there is not released by a move either.
#[tokio::test]
async fn pod_that_drains_behind_endpoints_is_not_released_by_a_move() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-drain").await;
    let (web, pods) = draining_behind_endpoints(&scope, 3600).await;
    let mut part = adapter("edge");
    part["spec"] = json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
    web.edit(part).await;
    wait::until("the other Pod to move", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    web.until("the reason", |report| {
        report.adapter == "edge" && report.draining > 0
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(web.protects(&scope.get(&pods[0]).await));
    assert_eq!(in_use(&web).await, "edge,endpoints");
    // With a shorter drain time, which has passed, the move ends.
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "1" } } }))
        .await;
    web.marks(&pods[0], (true, false)).await;
    wait::until("the record", async || in_use(&web).await == "edge").await;
}

/// A Pod leaves the former load balancer while the move fails, and comes back. It is not available before it serves there
/// again, so that a rule does not let the last serving Pod go.
#[tokio::test]
async fn pod_that_comes_back_in_a_failing_move_is_available_when_it_serves() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-back").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    move_to_one_that_is_down(bed, &web).await;
    scope.lose_readiness(&pods[0]).await;
    wait::until("the Pod to leave the former load balancer", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    web.marks(&pods[0], (true, false)).await;
    bed.http.state().refused_pods = [pods[0].clone()].into();
    scope.become_ready(&pods[0]).await;
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    web.until("the refusal", |report| {
        report.last_error.is_some() && report.adapter == "guarded"
    })
    .await;
    let back = scope.get(&pods[0]).await;
    assert!(label(&back, keys::SERVICE_AVAILABLE).is_none());
    bed.http.state().refused_pods.clear();
    web.marks(&pods[0], (true, true)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    scope.resume_kubelet(&pods[0]).await;
    bed.guarded.state().down = false;
    wait::until("the move", async || {
        bed.guarded.serving(&scope.namespace) == pods && in_use(&web).await == "guarded"
    })
    .await;
}

/// Two adapters of one load balancer have the same members. A member that does not get healthy does not hold operations.
#[tokio::test]
async fn move_between_adapters_of_one_load_balancer_holds_no_operation() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-same-pending").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    bed.http.state().pending_groups.insert("admin".to_owned());
    let ports = json!([
        { "name": "http", "port": 80, "targetPort": 8080 },
        { "name": "admin", "port": 81, "targetPort": 8081 },
    ]);
    web.edit(json!({ "spec": { "ports": ports } })).await;
    web.until("the second port", |report| report.pending == 2)
        .await;
    web.edit(adapter("passing")).await;
    web.until("the adapter", |report| report.adapter == "passing")
        .await;
    scope.begin(&pods[0], "manual").await.unwrap();
    web.marks(&pods[0], (true, false)).await;
    assert_eq!(in_use(&web).await, "passing");
}

/// The edit that moves the Service also makes `endpoints` refuse it. The Pods that drain there still have their time.
#[tokio::test]
async fn pod_drains_at_a_former_adapter_that_refuses_the_service_now() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-refused-drain").await;
    let (web, pods) = draining_behind_endpoints(&scope, 3600).await;
    let mut part = adapter("edge");
    part["spec"] = json!({
        "publishNotReadyAddresses": true,
        "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
    });
    web.edit(part).await;
    wait::until("the other Pod to move", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(web.protects(&scope.get(&pods[0]).await));
    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "1" } } }))
        .await;
    web.marks(&pods[0], (true, false)).await;
    wait::until("the record", async || in_use(&web).await == "edge").await;
}
