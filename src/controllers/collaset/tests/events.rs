//! Events about the CollaSet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use serde_json::{Value, json};
use testbed::api::Refusal;
use tokio::time::Instant;

use super::{Fixture, announced_deletion, pod_creation_plan, pvc, refusal};
use crate::cluster::leadership::Leadership;
use crate::controllers::collaset::apply::ApplyOutcome;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::plan::{PodChange, PodPatch, PvcChange, SetEvent, SetPlan};

#[tokio::test(start_paused = true)]
async fn pvc_deletion_is_announced_unless_refused() {
    let fixture = Fixture::new();
    let named = |name: &str| {
        let pvc = Pvc {
            name: name.into(),
            uid: name.into(),
            ..(*pvc()).clone()
        };
        PvcChange::Delete(Arc::new(pvc))
    };
    const PVCS: &str = "/api/v1/namespaces/n/persistentvolumeclaims";
    for name in ["a", "b", "c"] {
        fixture.api.put(
            &format!("{PVCS}/{name}"),
            json!({ "metadata": { "namespace": "n", "name": name, "uid": name } }),
        );
    }
    fixture.api.refuse(refusal(
        "DELETE /api/v1/namespaces/n/persistentvolumeclaims/c",
        403,
    ));
    let plan = SetPlan {
        pvcs: ["b", "c", "a"].map(named).into(),
        ..SetPlan::default()
    };
    fixture.apply(plan).await;
    let deletion = &fixture.api.bodies(&format!("DELETE {PVCS}/a"))[0];
    assert_eq!(
        deletion["preconditions"],
        json!({ "uid": "a", "resourceVersion": "1" }),
        "a PVC that has left the set by now stays"
    );
    tokio::time::sleep(Duration::from_secs(1)).await;
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    let deletions: Vec<_> = events
        .iter()
        .filter(|event| event["reason"] == "ClaimDeleted")
        .collect();
    let [event] = &deletions[..] else {
        panic!("{events:?}")
    };
    assert_eq!(event["type"], "Normal");
    let message = "deleted PVCs that no Pod of the CollaSet needs any more: a, b";
    assert_eq!(event["message"], message);
    let reasons: BTreeSet<_> = events.iter().map(|e| e["reason"].as_str()).collect();
    assert_eq!(reasons, ["ClaimDeleted", "ScaleInFailed"].map(Some).into());
}

#[tokio::test(start_paused = true)]
async fn former_leader_announces_its_writes() {
    let mut fixture = Fixture::new();
    let leadership = Leadership::default();
    leadership.extend_leadership(Instant::now(), Duration::from_secs(1));
    Arc::get_mut(&mut fixture.context).unwrap().leadership = leadership;
    let event_of_next_leader = SetEvent {
        warning: false,
        reason: "RolloutStarted",
        message: String::new(),
    };
    let plan = SetPlan {
        pods: vec![announced_deletion(fixture.pod("web-a"))],
        events: vec![event_of_next_leader],
        ..SetPlan::default()
    };
    fixture.api.0.lock().writing = Duration::from_secs(2);
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::Moved);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    let reasons: Vec<_> = events.iter().map(|event| &event["reason"]).collect();
    assert_eq!(reasons, ["TargetDeleted"]);
}

#[tokio::test(start_paused = true)]
async fn refused_event_is_written_again() {
    for (code, written) in [(500, true), (429, true), (403, false)] {
        let fixture = Fixture::new();
        fixture
            .api
            .refuse(refusal("POST /api/v1/namespaces/n/events", code));
        fixture.apply(pod_creation_plan(0..1)).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.api.refuse(None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let requests = fixture.api.bodies("POST /api/v1/namespaces/n/events").len();
        assert_eq!(requests, if written { 2 } else { 1 }, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_refused_in_one_namespace_block_no_other() {
    let fixture = Fixture::new();
    let refused = "POST /api/v1/namespaces/full/events";
    fixture.api.refuse(refusal(refused, 429));
    let about = |namespace: &str, name: &str| ObjectReference {
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        uid: Some(name.into()),
        ..ObjectReference::default()
    };
    let events = &fixture.context.events;
    for n in 0..20 {
        events.record_event(&about("full", &n.to_string()), false, "Told", "");
    }
    events.record_event(&about("n", "web"), false, "Told", "");
    tokio::time::sleep(Duration::from_millis(100)).await;
    let other = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(other.len(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        fixture.api.bodies(refused).len(),
        20 * 4,
        "each Event is dropped after four tries"
    );
}

#[tokio::test(start_paused = true)]
async fn different_failure_within_minute_gets_own_event() {
    let fixture = Fixture::new();
    for message in ["exceeded quota", "denied by a policy"] {
        let refused = refusal("POST /api/v1/namespaces/n/pods", 403);
        fixture
            .api
            .refuse(refused.map(|r| Refusal { message, ..r }));
        fixture.apply(pod_creation_plan(0..1)).await;
        tokio::time::sleep(BACKOFF_RANGE.0 * 4).await;
    }
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    let messages: Vec<_> = events
        .iter()
        .filter_map(|e| e["message"].as_str())
        .collect();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[1].ends_with("denied by a policy"), "{messages:?}");
}

#[tokio::test(start_paused = true)]
async fn patch_events_are_sent_after_write() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-a");
    let plan = |id: i64| {
        let event = SetEvent {
            warning: false,
            reason: "IncludeTarget",
            message: format!("under instance ID {id}"),
        };
        let mut patch = PodPatch {
            pod: pod.clone(),
            success_event: Some(Box::new(event)),
            ..PodPatch::default()
        };
        patch.labels.0.insert("a".into(), Some(id.to_string()));
        SetPlan {
            pods: vec![PodChange::Patch(patch)],
            ..SetPlan::default()
        }
    };
    let messages = |fixture: &Fixture| {
        let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
        let included = events
            .into_iter()
            .filter(|e| e["reason"] == "IncludeTarget");
        included.map(|e| e["message"].clone()).collect::<Vec<_>>()
    };
    fixture
        .api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/web-a", 403));
    fixture.apply(plan(1)).await;
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    assert_eq!(messages(&fixture), [Value::Null; 0]);
    fixture.api.refuse(None);
    fixture.apply(plan(2)).await;
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    assert_eq!(messages(&fixture), ["under instance ID 2"]);
}
