//! Changes and deletions of Pods.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Fixture, PODS, announced_deletion, apply_often, pause_after, pod_creation_plan, pod_json,
    recreation, refusal,
};
use crate::api::keys::{self, Family};
use crate::controllers::collaset::apply::{ApplyOutcome, PlanExecution, apply_plan};
use crate::controllers::collaset::reconcile_state::{HELD_BACKOFF, MIN_RECONCILE_INTERVAL};
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::plan::{OwnershipChange, PodChange, PodPatch, SetPlan};
use crate::domain::pod::Pod;

#[tokio::test(start_paused = true)]
async fn refused_write_backs_off_without_blocking_others() {
    let fixture = Fixture::new();
    let (refused_pod, other) = (fixture.pod("web-a"), fixture.pod("web-b"));
    fixture
        .api
        .refuse(refusal("DELETE /api/v1/namespaces/n/pods/web-a", 403));
    let plan = || {
        let mut plan = pod_creation_plan(0..1);
        let deletions = [refused_pod.clone(), other.clone()].map(announced_deletion);
        plan.pods.extend(deletions);
        plan
    };
    let refused = format!("DELETE {PODS}/web-a");
    assert_eq!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    let requests = fixture.api.requests();
    assert!(requests.contains(&format!("DELETE {PODS}/web-b")));
    assert!(requests.contains(&format!("POST {PODS}")));
    assert!(matches!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(_))
    ));
    let sent = |fixture: &Fixture| fixture.api.bodies(&refused).len();
    assert_eq!(
        sent(&fixture),
        1,
        "within its backoff, the write is not sent again"
    );
    tokio::time::sleep(BACKOFF_RANGE.0).await;
    fixture.apply(plan()).await;
    assert_eq!(sent(&fixture), 2);
}

/// Applies a plan with this change of Pod web-a, while the API server refuses this request.
async fn apply_refused_change(
    request: &'static str,
    status: Value,
    change: fn(Arc<Pod>) -> PodChange,
) -> Fixture {
    let fixture = Fixture::new();
    let path = format!("{PODS}/web-a");
    let pod = json!({ "metadata": { "namespace": "n", "name": "web-a" }, "status": status });
    fixture.api.put(&path, pod);
    let object = fixture.api.0.lock().objects[&path].clone();
    let pod = Arc::new(serde_json::from_value(object).unwrap());
    fixture.api.refuse(refusal(request, 403));
    let plan = SetPlan {
        pods: vec![change(pod)],
        ..SetPlan::default()
    };
    fixture.apply(plan).await;
    fixture
}

#[tokio::test(start_paused = true)]
async fn refusal_message_names_the_write() {
    let delete = "DELETE /api/v1/namespaces/n/pods/web-a";
    let fixture = apply_refused_change(delete, json!({}), announced_deletion).await;
    let message = "deletion of Pod web-a: exceeded quota";
    assert_eq!(fixture.condition("Update")["message"], message);
    assert_eq!(fixture.condition("Ready")["reason"], "UpdateFailed");
    let patch = |pod| {
        let mut patch = PodPatch {
            pod,
            ..PodPatch::default()
        };
        patch.labels.0.insert("a".into(), Some("1".into()));
        PodChange::Patch(patch)
    };
    let fixture =
        apply_refused_change("PATCH /api/v1/namespaces/n/pods/web-a", json!({}), patch).await;
    let message = "change of Pod web-a: exceeded quota";
    assert_eq!(fixture.condition("Update")["message"], message);
}

#[tokio::test(start_paused = true)]
async fn undeletable_leftover_pod_is_no_failed_update() {
    let delete = "DELETE /api/v1/namespaces/n/pods/web-a";
    let failed = json!({ "phase": "Failed" });
    let fixture = apply_refused_change(delete, failed, announced_deletion).await;
    assert_eq!(fixture.condition("Update"), Value::Null);
    for type_ in ["Scale", "Ready"] {
        assert_eq!(fixture.condition(type_)["reason"], "ScaleInFailed");
    }
}

#[tokio::test(start_paused = true)]
async fn write_denied_by_admission_is_retried_without_failure() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-a");
    fixture.api.refuse(refusal("DELETE", 429));
    let plan = SetPlan {
        pods: vec![announced_deletion(pod)],
        ..SetPlan::default()
    };
    assert_eq!(
        fixture.apply(plan.clone()).await,
        ApplyOutcome::All(Some(HELD_BACKOFF))
    );
    assert!(matches!(
        fixture.apply(plan.clone()).await,
        ApplyOutcome::All(Some(_))
    ));
    assert_eq!(fixture.api.requests(), [format!("DELETE {PODS}/web-a")]);
    let event_count = || fixture.api.bodies("POST /api/v1/namespaces/n/events").len();
    assert_eq!(event_count(), 0, "the Pod is not deleted");
    tokio::time::sleep(HELD_BACKOFF).await;
    fixture.api.refuse(None);
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::All(None));
    tokio::time::sleep(MIN_RECONCILE_INTERVAL).await;
    assert_eq!(event_count(), 1);
}

#[tokio::test]
async fn pod_conflict_is_no_failure() {
    let fixture = Fixture::new();
    let stale = fixture.pod("web-a");
    fixture.pod("web-a");
    let mut patch = PodPatch {
        pod: stale,
        ..PodPatch::default()
    };
    patch.labels.0.insert("a".into(), Some("1".into()));
    let plan = SetPlan {
        pods: vec![PodChange::Patch(patch)],
        ..SetPlan::default()
    };
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::Moved);
    assert_eq!(fixture.api.requests(), [format!("PATCH {PODS}/web-a")]);
}

#[tokio::test(start_paused = true)]
async fn old_plan_takes_no_pod_off_traffic() {
    let fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    let mut plan = recreation(&pod)[0].clone();
    if let [PodChange::Patch(patch)] = &mut plan.pods[..] {
        let operating = Family::Operating.key("collaset");
        patch.labels.0.insert(operating, Some("1".into()));
    }
    let observed = fixture.observed();
    let execution = PlanExecution::new(&fixture.context, &observed, &fixture.state);
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(
        apply_plan(&execution, plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(fixture.api.requests(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn pod_change_reverted_by_webhook_is_reported_and_backs_off() {
    type Change = (fn(&mut Value), fn(&mut PodPatch));
    let changes: [Change; 3] = [
        (
            |pod| {
                let metadata = pod["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("ownerReferences"));
            },
            |change| change.ownership = OwnershipChange::Adopt,
        ),
        (
            |pod| {
                pod["metadata"]["ownerReferences"] =
                    pod_json(0, "set")["metadata"]["ownerReferences"].clone()
            },
            |change| change.ownership = OwnershipChange::Release,
        ),
        (
            |pod| {
                let labels = pod["metadata"]["labels"].as_object_mut();
                labels.map(|labels| labels.remove(keys::TO_DELETE));
            },
            |change| {
                let value = Some("1".to_owned());
                change.labels.0.insert(keys::TO_DELETE.into(), value);
            },
        ),
    ];
    for (remove, change) in changes {
        let fixture = Fixture::new();
        let pod = fixture.pod("web-a");
        fixture.api.0.lock().mutation = Some(remove);
        let plan = || {
            let mut patch = PodPatch {
                pod: Arc::clone(&pod),
                ..PodPatch::default()
            };
            change(&mut patch);
            SetPlan {
                pods: vec![PodChange::Patch(patch)],
                ..SetPlan::default()
            }
        };
        apply_often(&fixture, 20, plan).await;
        assert_eq!(pause_after(fixture.apply(plan()).await), BACKOFF_RANGE.1);
        let message = fixture.condition("Ready")["message"].to_string();
        assert!(
            message.contains("the API server stored another object than the one that was written"),
            "{message}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn many_refused_changes_block_no_other_pod() {
    let fixture = Fixture::new();
    let pods = |prefix: &str, n| -> Vec<Arc<Pod>> {
        (0..n)
            .map(|n| fixture.pod(&format!("{prefix}-{n:02}")))
            .collect()
    };
    let (refused, free) = (pods("a", 45), pods("b", 15));
    fixture
        .api
        .refuse(refusal("PATCH /api/v1/namespaces/n/pods/a", 403));
    let change = |pod: &Arc<Pod>| {
        let mut patch = PodPatch {
            pod: Arc::clone(pod),
            ..PodPatch::default()
        };
        patch.labels.0.insert("x".into(), Some("1".into()));
        PodChange::Patch(patch)
    };
    let plan = || SetPlan {
        pods: refused.iter().chain(&free).map(change).collect(),
        ..SetPlan::default()
    };
    apply_often(&fixture, 4, plan).await;
    let requests = fixture.api.requests();
    for pod in &free {
        let patch = format!("PATCH {PODS}/{}", pod.metadata.name);
        assert!(requests.contains(&patch), "{patch}");
    }
}
