//! An operation that is undone and begun again in a move from `endpoints`. Requests that arrive between the two have their
//! drain time.

use std::time::{Duration, Instant};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::ListParams;
use operating::api::keys::Family;
use serde_json::json;
use testbed::pods::{is_ready, may_operate};
use testbed::{Scope, wait};
use tokio::time::sleep;

use crate::bed::alone;
use crate::fixtures::{draining_behind_endpoints, in_use, managed_by};

const ID: &str = "manual";
/// Longer than two calls that hang.
const DRAIN: Duration = Duration::from_secs(22);

/// Whether a Pod gets requests, as the EndpointSlices say.
async fn is_in_slice(scope: &Scope, pod: &str) -> bool {
    let slices = scope.api::<EndpointSlice>();
    let slices = slices.list(&ListParams::default()).await.unwrap();
    let mut endpoints = slices
        .items
        .iter()
        .flat_map(|s| s.endpoints.iter().flatten());
    endpoints.any(|endpoint| {
        let target = endpoint.target_ref.as_ref();
        let ready = endpoint.conditions.as_ref().and_then(|c| c.ready);
        target.and_then(|target| target.name.as_deref()) == Some(pod) && ready == Some(true)
    })
}

/// While a call to the new load balancer hangs, the leader does not see that the Pod gets requests again.
#[tokio::test]
async fn operation_begun_again_during_a_hang_has_its_drain_time() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("move-undone").await;
    let (web, pods) = draining_behind_endpoints(&scope, DRAIN.as_secs()).await;
    bed.guarded.state().hangs = true;
    web.edit(managed_by("guarded")).await;
    wait::until("a call that hangs", async || {
        bed.guarded.state().under_way > 0
    })
    .await;
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&pods[0], undo).await.unwrap();
    scope.until_pod(&pods[0], "Ready", is_ready).await;
    wait::until("requests for the Pod", async || {
        is_in_slice(&scope, &pods[0]).await
    })
    .await;
    sleep(Duration::from_millis(500)).await;
    let begun = Instant::now();
    scope.begin(&pods[0], ID).await.unwrap();
    wait::until("the drain time to pass, or the operation", async || {
        begun.elapsed() >= DRAIN || may_operate(&scope.get(&pods[0]).await, ID)
    })
    .await;
    let took = begun.elapsed();
    bed.guarded.state().hangs = false;
    assert!(took >= DRAIN, "drained for {took:?} of {DRAIN:?}");
    wait::until("the operation", async || {
        may_operate(&scope.get(&pods[0]).await, ID)
    })
    .await;
    scope.finish(&pods[0], ID).await.unwrap();
    wait::until("the end of the move", async || {
        in_use(&web).await == "guarded"
    })
    .await;
    web.consistent(2).await;
}
