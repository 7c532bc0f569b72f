//! The stages of a plan, and the writes of the pool, the finalizer, the status and the rollout command.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{
    Fixture, PODS, POOL, SET, announced_deletion, apply_often, pause_after, pod_creation_plan,
    pod_json, put_pod, pvc, pvc_creation_plan, pvc_json, recreation, refusal,
};
use crate::api::keys;
use crate::api::resourcecontext::ContextDetail;
use crate::cluster::leadership::Leadership;
use crate::cluster::objects::{CollaSetObject, ResourceContextObject};
use crate::controllers::collaset::apply::{ApplyOutcome, PlanExecution, apply_plan};
use crate::controllers::collaset::reconcile_state::MIN_RECONCILE_INTERVAL;
use crate::controllers::collaset::refusals::BACKOFF_RANGE;
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::{
    OwnershipChange, PodChange, PodPatch, PvcChange, RevisionChange, SetPlan,
};

#[tokio::test]
async fn stages_run_in_order_and_send_each_request_once() {
    let fixture = Fixture::new();
    let (changed, deleted) = (fixture.pod("web-old"), fixture.pod("web-gone"));
    let mut patch = PodPatch {
        pod: changed,
        resize: Some(json!({ "containers": [] })),
        ..PodPatch::default()
    };
    patch.labels.0.insert("a".into(), Some("1".into()));
    let mut plan = pod_creation_plan(0..1);
    plan.add_finalizer = true;
    plan.revisions = vec![RevisionChange::Create(Arc::new(Revision {
        name: "web-1".into(),
        data: json!({}),
        ..Revision::default()
    }))];
    plan.pool = Some(vec![ContextDetail::default()]);
    plan.pvcs = vec![PvcChange::Create {
        id: 0,
        template: "data".into(),
        body: pvc_json(0),
    }];
    plan.pods.push(PodChange::Patch(patch));
    plan.pods.push(announced_deletion(deleted));
    plan.status = Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap());

    assert_eq!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let mut requests = fixture.api.requests();
    requests[5..8].sort(); // concurrent: the resize and the deletion, then the patch
    assert_eq!(
        requests,
        [
            format!("PATCH {SET}"),
            "POST /apis/apps/v1/namespaces/n/controllerrevisions".into(),
            "GET /api/v1/namespaces/n/persistentvolumeclaims".into(),
            format!("POST {}", POOL.trim_end_matches("/web")),
            "POST /api/v1/namespaces/n/persistentvolumeclaims".into(),
            format!("DELETE {PODS}/web-gone"),
            format!("PATCH {PODS}/web-old"),
            format!("PATCH {PODS}/web-old/resize"),
            format!("POST {PODS}"),
            format!("PATCH {SET}/status"),
        ]
    );
    let observed = fixture.observed();
    let finalizers = observed.set.metadata.finalizers.clone();
    assert_eq!(finalizers, Some(vec![keys::PRE_RECLAIM_FINALIZER.into()]));
    assert_eq!(observed.set.status.as_ref().unwrap().replicas, 1);
    assert_eq!(observed.pool.unwrap().contexts.len(), 1);
    let objects = &fixture.context.objects;
    assert_eq!(objects.revisions.controlled_by("n", "set").len(), 1);
    assert_eq!(objects.pvcs.names_where("n", |_| true).len(), 1);
    // The Pod cache must reach the last write of a Pod.
    assert_eq!(
        fixture.state.required_pod_version(),
        fixture.api.0.lock().version - 1
    );
}

#[tokio::test]
async fn refused_pool_write_blocks_dependent_writes() {
    let fixture = Fixture::new();
    fixture
        .api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 500));
    let mut plan = pod_creation_plan(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    plan.remove_finalizer = true;
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::Failed);
    assert_eq!(
        fixture.api.requests(),
        [
            format!("POST {}", POOL.trim_end_matches("/web")),
            "GET /api/v1/namespaces/n/persistentvolumeclaims".to_owned(),
            format!("PATCH {SET}/status")
        ]
    );
}

#[tokio::test]
async fn pool_write_requires_planned_resource_version() {
    let fixture = Fixture::new();
    fixture.api.put(
        POOL,
        json!({ "metadata": { "namespace": "n", "name": "web" } }),
    );
    fixture.cache_object::<ResourceContextObject>(POOL);
    let observed = fixture.observed();
    // Another set that shares the pool has written in the meantime.
    let other = fixture.api.0.lock().objects[POOL].clone();
    fixture.api.put(POOL, other);
    fixture.cache_object::<ResourceContextObject>(POOL);
    let plan = SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    let execution = PlanExecution::new(&fixture.context, &observed, &fixture.state);
    assert_eq!(
        apply_plan(&execution, plan.clone()).await,
        ApplyOutcome::Moved
    );
    assert_eq!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let emptied = SetPlan {
        pool: Some(Vec::new()),
        ..SetPlan::default()
    };
    fixture.apply(emptied).await;
    assert!(fixture.observed().pool.is_none());
}

#[tokio::test(start_paused = true)]
async fn former_leader_writes_nothing() {
    let mut fixture = Fixture::new();
    let pod = fixture.pod("web-0");
    Arc::get_mut(&mut fixture.context).unwrap().leadership = Leadership::default();
    let mut plan = recreation(&pod)[1].clone();
    plan.pvcs.push(PvcChange::Delete(pvc()));
    plan.pods.extend(pod_creation_plan(1..3).pods);
    plan.status = Some(Default::default());
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::Moved);
    assert_eq!(fixture.api.requests(), Vec::<String>::new());
}

/// Gives the set a selector, so that its orphans can be found.
fn put_set_with_selector(fixture: &Fixture, metadata: Value) {
    let mut set = json!({
        "metadata": { "namespace": "n", "name": "web", "uid": "set" },
        "spec": { "selector": { "matchLabels": { "app": "web" } } },
    });
    json_patch::merge(&mut set["metadata"], &metadata);
    fixture.api.put(SET, set);
}

#[tokio::test]
async fn deleted_set_adopts_nothing() {
    let fixture = Fixture::new();
    let plan = || {
        let patch = PodPatch {
            pod: fixture.pod("web-a"),
            ownership: OwnershipChange::Adopt,
            ..PodPatch::default()
        };
        SetPlan {
            pods: vec![PodChange::Patch(patch)],
            ..SetPlan::default()
        }
    };
    put_set_with_selector(&fixture, json!({}));
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::All(None));
    put_set_with_selector(
        &fixture,
        json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }),
    );
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::Moved);
    put_set_with_selector(&fixture, json!({ "uid": "another" }));
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::Moved);
}

#[tokio::test]
async fn set_without_pool_waits_for_cached_orphans() {
    let fixture = Fixture::new();
    put_set_with_selector(&fixture, json!({}));
    fixture.cache_object::<CollaSetObject>(SET);
    put_pod(
        &fixture,
        "web-a",
        json!({ "metadata": { "labels": { (keys::CONTROL): "true" } } }),
    );
    let mut plan = pod_creation_plan(0..1);
    plan.pool = Some(vec![ContextDetail::default()]);
    assert_eq!(fixture.apply(plan.clone()).await, ApplyOutcome::Moved);
    assert_eq!(
        fixture.state.required_pod_version(),
        fixture.api.0.lock().version
    );
    assert_eq!(fixture.api.requests(), [format!("GET {PODS}")]);
    fixture
        .api
        .0
        .lock()
        .objects
        .remove(&format!("{PODS}/web-a"));
    assert_eq!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
}

#[tokio::test(start_paused = true)]
async fn backed_off_write_causes_no_reconcile_loop() {
    let pvc = || pvc_creation_plan(0);
    let pool = || SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    for (of, plan) in [
        (
            "POST /api/v1/namespaces/n/persistentvolumeclaims",
            pvc as fn() -> SetPlan,
        ),
        (
            "POST /apis/apps.kusionstack.io/v1alpha1/namespaces/n/resourcecontexts",
            pool,
        ),
    ] {
        let fixture = Fixture::new();
        fixture.api.refuse(refusal(of, 403));
        apply_often(&fixture, 20, plan).await;
        assert_eq!(
            pause_after(fixture.apply(plan()).await),
            BACKOFF_RANGE.1,
            "{of}"
        );
        let sent = fixture.api.requests();
        let sent = sent.iter().filter(|request| request.starts_with(of));
        assert_eq!(sent.count(), 21, "each run tries the write: {of}");
    }
}

#[tokio::test(start_paused = true)]
async fn set_is_reconciled_at_once_after_rollout_position_is_stored() {
    let fixture = Fixture::new();
    let plan = |step: i32| SetPlan {
        status: Some(
            serde_json::from_value(json!({ "rollout": { "revision": "r", "step": step } }))
                .unwrap(),
        ),
        ..SetPlan::default()
    };
    let status = "PATCH /apis/apps.kusionstack.io/v1alpha1/namespaces/n/collasets/web/status";
    fixture.api.refuse(refusal(status, 403));
    apply_often(&fixture, 30, || plan(1)).await;
    let pause = pause_after(fixture.apply(plan(1)).await);
    assert!(pause > Duration::from_secs(1), "{pause:?}");
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events[0]["reason"], "StatusNotWritten");
    fixture.api.refuse(None);
    tokio::time::advance(pause).await;
    assert_eq!(
        fixture.apply(plan(1)).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    let body = fixture.api.bodies(status).pop().unwrap();
    let version = &body["metadata"]["resourceVersion"];
    assert!(version.is_string(), "a write that arrives late must fail");
}

#[tokio::test(start_paused = true)]
async fn name_of_other_instance_is_kept_after_refusal() {
    let fixture = Fixture::new();
    type Creation = (&'static str, fn() -> SetPlan, fn() -> Value);
    let plans: [Creation; 2] = [
        ("pods", || pod_creation_plan(0..1), || pod_json(1, "set")),
        (
            "persistentvolumeclaims",
            || pvc_creation_plan(0),
            || pvc_json(1),
        ),
    ];
    for (plural, plan, other_instance) in plans {
        let all = format!("/api/v1/namespaces/n/{plural}");
        fixture
            .api
            .refuse(refusal("POST /api/v1/namespaces/n/", 403));
        apply_often(&fixture, 1, plan).await;
        fixture.api.refuse(None);
        let post = format!("POST {all}");
        let name = fixture.api.bodies(&post).pop().unwrap()["metadata"]["name"].clone();
        let name = name.as_str().unwrap();
        fixture.api.put(&format!("{all}/{name}"), other_instance());
        apply_often(&fixture, 3, plan).await;
        let last = fixture.api.bodies(&post).pop().unwrap();
        assert_ne!(last["metadata"]["name"], name, "{plural}");
    }
}

#[tokio::test(start_paused = true)]
async fn edit_seen_in_status_response_is_reconciled() {
    let edits: [fn(&mut Value); 3] = [
        |set| set["metadata"]["generation"] = json!(9),
        |set| set["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z"),
        |set| set["metadata"]["annotations"] = json!({ (keys::ROLLOUT): "promote" }),
    ];
    let plan = || SetPlan {
        status: Some(serde_json::from_value(json!({ "replicas": 1 })).unwrap()),
        ..SetPlan::default()
    };
    let fixture = Fixture::new();
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::All(None));
    for edit in edits {
        let fixture = Fixture::new();
        fixture.api.0.lock().mutation = Some(edit);
        assert_eq!(
            fixture.apply(plan()).await,
            ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn finalizer_removed_by_webhook_is_not_added_repeatedly() {
    let fixture = Fixture::new();
    fixture.api.0.lock().mutation = Some(|set| {
        let metadata = set["metadata"].as_object_mut();
        metadata.map(|metadata| metadata.remove("finalizers"));
    });
    let plan = SetPlan {
        add_finalizer: true,
        ..SetPlan::default()
    };
    assert_eq!(fixture.apply(plan).await, ApplyOutcome::Failed);
    let message = fixture.condition("Ready")["message"].to_string();
    let expected = "the finalizer of CollaSet web: the API server stored another object than the one that was written";
    assert!(message.contains(expected), "{message}");
}

#[tokio::test(start_paused = true)]
async fn orphans_are_not_listed_during_pool_backoff() {
    let fixture = Fixture::new();
    put_set_with_selector(&fixture, json!({}));
    fixture.cache_object::<CollaSetObject>(SET);
    fixture
        .api
        .refuse(refusal("POST /apis/apps.kusionstack.io", 403));
    let plan = || SetPlan {
        pool: Some(vec![ContextDetail::default()]),
        ..SetPlan::default()
    };
    apply_often(&fixture, 10, plan).await;
    let before = fixture.api.requests().len();
    for _ in 0..10 {
        fixture.apply(plan()).await;
    }
    let sent = fixture.api.requests().len() - before;
    assert!(sent <= 2, "{sent} requests");
}

#[tokio::test(start_paused = true)]
async fn failed_command_removal_is_reported_and_backs_off() {
    let fixture = Fixture::new();
    fixture
        .api
        .refuse(refusal("PATCH /apis/apps.kusionstack.io", 403));
    let plan = || SetPlan {
        clear_command: true,
        ..SetPlan::default()
    };
    let patch = format!("PATCH {SET}");
    assert_eq!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(BACKOFF_RANGE.0))
    );
    fixture.apply(plan()).await;
    assert_eq!(
        fixture.api.bodies(&patch).len(),
        1,
        "within its backoff, the write is not sent again"
    );
    tokio::time::sleep(BACKOFF_RANGE.1).await;
    let events = fixture.api.bodies("POST /api/v1/namespaces/n/events");
    assert_eq!(events[0]["reason"], "RolloutCommandNotRemoved");
    let message = events[0]["message"].to_string();
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(
        fixture.condition("Update"),
        Value::Null,
        "the set itself has no failure"
    );
    fixture.api.refuse(None);
    assert_eq!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(fixture.api.bodies(&patch).len(), 2);
}
