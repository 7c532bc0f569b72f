//! Calls without an answer that have their effect later, and changes that are accepted and have none.

use std::time::Duration;

use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::wait;
use tokio::time::sleep;

use crate::bed::alone;
use crate::fixtures::{names, serving};
use crate::sets::label;

const ID: &str = "manual";
/// Longer than the adapter waits for an answer, and shorter than twice as long.
const LATE: Duration = Duration::from_secs(16);

/// A registration without an answer is made later, when the Pod should be off again. The next operation waits for it.
#[tokio::test]
async fn operation_waits_for_a_registration_that_comes_late() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-late").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    scope.begin(&pods[0], ID).await.unwrap();
    web.marks(&pods[0], (true, false)).await;
    bed.http.state().late = Some(LATE);
    scope.finish(&pods[0], ID).await.unwrap();
    wait::until("the late call", async || bed.http.state().late.is_none()).await;
    web.marks(&pods[0], (true, true)).await;
    scope.begin(&pods[0], ID).await.unwrap();
    let operating = scope
        .until_pod(&pods[0], "the operation", |pod| {
            label(pod, &Family::Operate.key(ID)).is_some()
        })
        .await;
    assert!(!web.protects(&operating));
    assert!(bed.http.state().late_made, "the late call is still to come");
    assert_eq!(bed.http.serving(&scope.namespace), [pods[1].clone()]);
}

/// A drain without an answer is made later, when its operation is undone. The Pod is not available before it serves for
/// good.
#[tokio::test]
async fn undone_operation_waits_for_a_drain_that_comes_late() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-late-drain").await;
    let (web, set) = serving(&scope, 2).await;
    let pods = names(&set).await;
    bed.http.state().late = Some(LATE);
    scope.begin(&pods[0], ID).await.unwrap();
    wait::until("the late call", async || bed.http.state().late.is_none()).await;
    let undo = json!({ (Family::UndoOperationType.key(ID)): ID });
    scope.label(&pods[0], undo).await.unwrap();
    web.marks(&pods[0], (true, true)).await;
    assert!(bed.http.state().late_made, "the late call is still to come");
    assert_eq!(bed.http.serving(&scope.namespace), pods);
    let pod = scope
        .until_pod(&pods[0], "availability", testbed::pods::is_available)
        .await;
    assert!(label(&pod, keys::SERVICE_AVAILABLE).is_some());
}

/// The load balancer accepts changes and does not make them. The report says so, and the calls are few.
#[tokio::test]
async fn changes_without_an_effect_are_told_and_repeated_after_pauses() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-fruitless").await;
    let (web, set) = serving(&scope, 1).await;
    let pods = names(&set).await;
    let is_told = async |text: &str| {
        web.until("the failure", |report| {
            report.last_error.as_ref().is_some_and(|e| e.contains(text))
        })
        .await;
        let applies = || bed.http.state().applies[&scope.namespace];
        let before = applies();
        sleep(Duration::from_secs(20)).await;
        let calls = applies() - before;
        // Without pauses there are about 20.
        assert!(calls <= 8, "{calls} calls in 20 s");
    };
    // Long enough for reads to show that nothing drains.
    let drain = json!({ (keys::CONSIST_DRAIN_SECONDS): "300" });
    web.edit(json!({ "metadata": { "annotations": drain } }))
        .await;
    bed.http.state().ignores_drains = true;
    scope.begin(&pods[0], ID).await.unwrap();
    is_told("still lists it as serving").await;
    bed.http.end_faults();
    web.marks(&pods[0], (true, false)).await;
    bed.http.state().forgets = true;
    scope.finish(&pods[0], ID).await.unwrap();
    is_told("does not list it as serving").await;
    bed.http.end_faults();
    web.consistent(1).await;
}
