//! Another program takes back what the leader writes, again and again. The report says so, and the leader writes less and
//! less often.

use kube::ResourceExt;
use operating::api::keys::{self, Family};
use operating::domain::traffic::report::EmployerReport;
use serde_json::{Value, json};
use testbed::wait;

use crate::bed::{alone, shared};
use crate::fixtures::{Employer, names, serving};
use crate::sets::Set;

/// After so many writes the report has to say what happens.
const WRITES: usize = 10;

fn names_the_program(report: Option<EmployerReport>) -> bool {
    let error = report.and_then(|report| report.last_error);
    error.is_some_and(|error| error.contains("another program takes back"))
}

/// A program that writes the Service as its own source has it.
#[tokio::test]
async fn finalizer_of_a_service_that_is_taken_back_is_reported() {
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-taken-service").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let _set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let bare = json!({ "metadata": {
        "finalizers": [], "annotations": { (keys::CONSIST_ADAPTER_IN_USE): Value::Null },
    } });
    let mut taken = 0;
    while !names_the_program(web.report().await) {
        if !web.get().await.finalizers().is_empty() {
            assert!(taken < WRITES, "nobody is told");
            web.edit(bare.clone()).await;
            taken += 1;
        }
    }
    // The other program has stopped.
    web.consistent(1).await;
}

/// A program that writes Pods as its own source has them.
#[tokio::test]
async fn finalizer_of_a_pod_that_is_taken_back_is_reported() {
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-taken-pod").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let name = names(&set).await.remove(0);
    let mut taken = 0;
    while !names_the_program(web.report().await) {
        if web.protects(&scope.get(&name).await) {
            assert!(taken < WRITES, "nobody is told");
            let bare = json!({ "metadata": { "finalizers": [] } });
            scope.patch(&name, bare).await.unwrap();
            taken += 1;
        }
    }
    wait::until("the report of the Pod", async || {
        web.protects(&scope.get(&name).await) && !names_the_program(web.report().await)
    })
    .await;
    web.consistent(1).await;
}

/// An operation is begun and undone again and again. The server itself takes the mark back each time, and adds it when the
/// Pod serves again.
#[tokio::test]
async fn undone_operations_are_not_taken_for_another_program() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("undone-often").await;
    let (web, set) = serving(&scope, 1).await;
    let drain = json!({ (keys::CONSIST_DRAIN_SECONDS): "300" });
    web.edit(json!({ "metadata": { "annotations": drain } }))
        .await;
    bed.http.state().connections = 3;
    let pods = names(&set).await;
    for _ in 0..6 {
        scope.begin(&pods[0], "manual").await.unwrap();
        wait::until("the drain", async || {
            bed.http.serving(&scope.namespace).is_empty()
        })
        .await;
        let undo = json!({ (Family::UndoOperationType.key("manual")): "manual" });
        scope.label(&pods[0], undo).await.unwrap();
        web.marks(&pods[0], (true, true)).await;
        let report = web.report().await.unwrap();
        assert_eq!(report.last_error, None);
    }
    let failures = web.failures().await;
    assert!(failures.is_empty(), "{failures:?}");
}
