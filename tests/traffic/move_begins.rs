//! Moves that can't begin: the record can't be written, or the Service is deleted before the first change at the new load
//! balancer.

use std::time::Duration;

use kube::ResourceExt;
use operating::api::keys;
use serde_json::json;
use testbed::wait;
use tokio::time::sleep;

use crate::bed::alone;
use crate::fixtures::{
    adapter, in_use, move_to_one_that_is_down, names, refuse_begins_of_moves, serving_by,
};

/// The report says why, the former adapter goes on, and the leader does not look at the Service again and again.
#[tokio::test]
async fn refused_record_of_a_new_adapter_is_told_and_tried_after_pauses() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-no-begin").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    let pods = names(&set).await;
    let policy = refuse_begins_of_moves(&scope).await;
    // Another error does not hide this one.
    let mut part = adapter("guarded");
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("soon");
    web.edit(part).await;
    web.until("the refusal", |report| {
        let error = report.last_error.as_deref().unwrap_or_default();
        report.adapter == "guarded" && error.contains("not as long as the test says so")
    })
    .await;
    let looks = async || {
        let reconciles = bed.bed.scrapes().await;
        let lines = reconciles.iter().flat_map(|text| text.lines());
        let of_traffic = lines.filter(|line| {
            line.starts_with("operating_reconciles_total{") && line.contains("\"traffic\"")
        });
        let counts = of_traffic.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        counts.sum::<f64>()
    };
    let before = looks().await;
    sleep(Duration::from_secs(10)).await;
    let looks = looks().await - before;
    assert!(before > 0.0 && looks <= 40.0, "{looks} looks in 10 s");
    assert_eq!(in_use(&web).await, "edge");
    scope.lose_readiness(&pods[0]).await;
    wait::until("the Pod to leave the former load balancer", async || {
        bed.http.serving(&scope.namespace) == pods[1..]
    })
    .await;
    scope.become_ready(&pods[0]).await;
    policy.lift().await;
    wait::until("the end of the move", async || {
        in_use(&web).await == "guarded"
    })
    .await;
    scope.resume_kubelet(&pods[0]).await;
}

/// Nothing was registered at the new load balancer, so nobody waits for it.
#[tokio::test]
async fn deleted_service_does_not_wait_for_a_new_load_balancer_that_is_down() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-deleted").await;
    let (web, set) = serving_by(&scope, "edge", 2).await;
    move_to_one_that_is_down(bed, &web).await;
    web.delete().await;
    web.gone().await;
    assert!(bed.http.serving(&scope.namespace).is_empty());
    for pod in set.pods().await.values() {
        assert!(!web.protects(pod), "{}", pod.name_any());
    }
}
