//! The behaviour that users of Kuperator know: readiness, deletion, and errors of the load balancer.

use kube::ResourceExt;
use serde_json::json;
use testbed::{pods, wait};

use crate::bed::alone;
use crate::fixtures::{Employer, edge, names, serving};

/// The condition of the readiness gate decides, and the kubelet follows it.
#[tokio::test]
async fn pod_whose_gate_turns_false_is_taken_off_until_it_turns_true() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-gate").await;
    let (web, set) = serving(&scope, 2).await;
    let all = names(&set).await;
    scope.begin(&all[0], "manual").await.unwrap();
    let pod = web.marks(&all[0], (true, false)).await;
    assert_eq!(pods::service_ready(&pod), Some(false));
    assert_eq!(bed.http.serving(&scope.namespace), all[1..]);
    scope.finish(&all[0], "manual").await.unwrap();
    let pod = web.marks(&all[0], (true, true)).await;
    assert_eq!(pods::service_ready(&pod), Some(true));
    assert_eq!(bed.http.serving(&scope.namespace), all);
}

#[tokio::test]
async fn deleted_pod_goes_after_its_member() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-deleted").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    let pod = scope.pod("web-0", labels).await;
    web.consistent(1).await;
    web.marks("web-0", (true, true)).await;
    bed.http.state().down = true;
    scope.delete("web-0").await.unwrap();
    web.until("the failure", |report| report.last_error.is_some())
        .await;
    let deleted = scope.get("web-0").await;
    assert_eq!(deleted.uid(), pod.uid());
    assert!(deleted.metadata.deletion_timestamp.is_some() && web.protects(&deleted));
    bed.http.state().down = false;
    scope.until_gone(&pod).await;
    assert!(bed.http.serving(&scope.namespace).is_empty());
    web.consistent(0).await;
}

#[tokio::test]
async fn refused_registration_is_an_error_and_an_event_until_it_is_made() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-refusal").await;
    let name = format!("{}-0", scope.namespace);
    bed.http.state().refused_pods.insert(name.clone());
    let web = Employer::new(&scope, "web", edge()).await;
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    scope.pod(&name, labels).await;
    let report = web.until("the refusal", |report| report.failed == 1).await;
    let text = "the quota of this member is used up";
    let error = report.last_error.unwrap();
    assert!(error.contains(text), "{error}");
    let (status, reason, message) = web.condition().await.unwrap();
    assert_eq!((&*status, &*reason), ("False", "Failed"));
    assert!(message.contains(text), "{message}");
    wait::until("the Event", async || {
        let failures = web.failures().await;
        failures.iter().any(|message| message.contains(text))
    })
    .await;
    web.marks(&name, (true, false)).await;
    bed.http.state().refused_pods.clear();
    web.marks(&name, (true, true)).await;
    web.consistent(1).await;
    wait::until("the condition", async || {
        let condition = web.condition().await.unwrap();
        (&*condition.0, &*condition.1) == ("True", "Consistent")
    })
    .await;
}
