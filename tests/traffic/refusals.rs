//! Writes that the API server refuses, because a policy of the cluster does not let them pass: users are told, nothing is
//! hammered, and all goes on when the policy is gone.

use kube::ResourceExt;
use operating::api::keys;
use operating::domain::traffic::report::EmployerReport;
use serde_json::{Value, json};
use testbed::Scope;

use crate::bed::{TrafficBed, shared};
use crate::fixtures::{Employer, names};
use crate::policies::Policy;
use crate::sets::Set;

/// The message of the policies.
const REFUSAL: &str = "not as long as the test says so";

/// No UPDATE of a Service passes, but UPDATEs of its status do.
async fn no_service_changes(scope: &Scope) -> Policy<'_> {
    Policy::new(scope, ("UPDATE", "services"), "false", "Invalid").await
}

/// Waits until the report, the condition, an Event and `why` have the message of the policy.
async fn is_told(bed: &TrafficBed, web: &Employer<'_>) {
    let has_refusal = |report: &EmployerReport| {
        let error = report.last_error.as_ref();
        error.is_some_and(|error| error.contains(REFUSAL))
    };
    web.until("the refusal", has_refusal).await;
    let (status, reason, _) = web.condition().await.unwrap();
    assert_eq!((&*status, &*reason), ("False", "Failed"));
    testbed::wait::until("the Event", async || {
        let failures = web.failures().await;
        failures.iter().any(|text| text.contains(REFUSAL))
    })
    .await;
    let output = bed
        .bed
        .operating(&["why", "svc/web", "-n", &web.scope.namespace]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(REFUSAL), "{text}");
}

/// The finalizer of the Service can't be written, so nothing may be registered. Its new Pods serve without it.
#[tokio::test]
async fn service_that_may_not_be_written_is_reported_and_holds_no_pod() {
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-refused").await;
    let policy = no_service_changes(&scope).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    is_told(bed, &web).await;
    set.edit(json!({ "replicas": 2 })).await;
    let pods = scope.all_available("app=web", 2).await;
    assert!(!pods.iter().any(|pod| web.is_expected(pod)));
    policy.lift().await;
    web.consistent(2).await;
}

#[tokio::test]
async fn refused_release_of_pods_is_reported() {
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-refused-release").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let name = names(&set).await.remove(0);
    let passes = "!has(oldObject.metadata.finalizers) || has(object.metadata.finalizers)";
    let policy = Policy::new(&scope, ("UPDATE", "pods"), passes, "Invalid").await;
    web.edit(json!({ "metadata": { "labels": { (keys::CONTROL): Value::Null } } }))
        .await;
    is_told(bed, &web).await;
    policy.lift().await;
    web.marks(&name, (false, false)).await;
    testbed::wait::until("nothing to be left on the Service", async || {
        let service = web.get().await;
        let annotations = service.annotations();
        service.finalizers().is_empty()
            && !annotations.contains_key(keys::CONSIST_ADAPTER_IN_USE)
            && !annotations.contains_key(keys::CONSIST_STATUS)
            && web.condition().await.is_none()
    })
    .await;
}

#[tokio::test]
async fn refused_release_of_a_deleted_service_is_reported() {
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-refused-end").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let _set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let policy = no_service_changes(&scope).await;
    web.delete().await;
    is_told(bed, &web).await;
    policy.lift().await;
    web.gone().await;
}

/// The other Pods of the Service change again and again.
#[tokio::test]
async fn refused_marks_are_not_written_at_each_change_of_another_pod() {
    const CHANGES: usize = 50;
    let bed = shared().await;
    let scope = bed.bed.scope("traffic-refused-marks").await;
    let passes = "!has(object.metadata.finalizers) || has(oldObject.metadata.finalizers)";
    let policy = Policy::new(&scope, ("UPDATE", "pods"), passes, "Invalid").await;
    let set = Set::new(&scope, "web", 5, json!({})).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    is_told(bed, &web).await;
    let pods = names(&set).await;
    let refused = async || {
        let log = bed.bed.log_of(bed.bed.leader().await);
        let refusals = log.lines().filter(|line| {
            let named = pods.iter().any(|pod| line.contains(pod.as_str()));
            named && line.contains("denied request")
        });
        refusals.count()
    };
    let before = refused().await;
    for change in 0..CHANGES {
        let patch = json!({ "metadata": { "annotations": { "touched": change.to_string() } } });
        scope.patch(&pods[0], patch).await.unwrap();
    }
    // The leader has seen all changes when it has seen this one.
    scope.delete(&pods[0]).await.unwrap();
    testbed::wait::until("a new Pod", async || !names(&set).await.contains(&pods[0])).await;
    let writes = refused().await - before;
    assert!(writes < CHANGES, "{writes} writes");
    policy.lift().await;
    web.consistent(5).await;
}
