//! Writes of ControllerRevisions.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Fixture, SET, apply_often, pod_creation_plan, refusal, refusals_of};
use crate::controllers::collaset::apply::{ApplyOutcome, PlanExecution, apply_plan};
use crate::controllers::collaset::reconcile_state::MIN_RECONCILE_INTERVAL;
use crate::controllers::collaset::refusals::{BACKOFF_RANGE, RefusalKey};
use crate::domain::collaset::observed::Revision;
use crate::domain::collaset::plan::{RevisionChange, SetPlan};
use crate::domain::pod::Pod;

#[tokio::test]
async fn refused_revision_ends_plan_and_is_known_to_next() {
    let fixture = Fixture::new();
    fixture.api.refuse(refusal(
        "POST /apis/apps/v1/namespaces/n/controllerrevisions",
        403,
    ));
    let mut plan = pod_creation_plan(0..1);
    plan.revisions = vec![RevisionChange::Create(Arc::new(Revision {
        name: "web-1".into(),
        data: json!({}),
        ..Revision::default()
    }))];
    assert!(matches!(
        fixture.apply(plan).await,
        ApplyOutcome::All(Some(_))
    ));
    assert_eq!(
        fixture.api.requests(),
        ["POST /apis/apps/v1/namespaces/n/controllerrevisions"]
    );
    let none = || std::iter::empty();
    let facts = fixture
        .state
        .plan_refusals(std::iter::empty(), none(), Instant::now(), 0);
    let message = facts.revision.unwrap();
    assert!(message.contains("exceeded quota"), "{message}");
}

/// The time after which a plan without its revision is repeated, if the backoff of the revision ends `remaining` after
/// the plan was made.
async fn requeue_without_revision(remaining: Duration) -> Option<Duration> {
    let fixture = Fixture::new();
    let pause =
        fixture
            .state
            .record_refusal(RefusalKey::Revision, "no more of them", Instant::now(), 0);
    let mut observed = fixture.observed();
    observed.refused.revision = Some("no more of them".to_owned());
    tokio::time::advance(pause - remaining).await;
    let execution = PlanExecution::new(&fixture.context, &observed, &fixture.state);
    tokio::time::advance(remaining).await;
    match apply_plan(&execution, SetPlan::default()).await {
        ApplyOutcome::All(requeue) => requeue,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn revision_is_retried_if_backoff_ends_during_plan() {
    let requeue = requeue_without_revision(Duration::from_millis(1)).await;
    assert_eq!(requeue, Some(MIN_RECONCILE_INTERVAL));
}

#[tokio::test]
async fn revision_with_other_data_raises_collision_count() {
    let fixture = Fixture::new();
    let path = "/apis/apps/v1/namespaces/n/controllerrevisions/web-1";
    let revision = |data: Value| {
        json!({
            "metadata": {
                "namespace": "n", "name": "web-1",
                "ownerReferences": [{
                    "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "uid": "set", "controller": true,
                }],
            },
            "data": data,
        })
    };
    fixture.api.put(path, revision(json!({ "other": true })));
    let plan = || SetPlan {
        revisions: vec![RevisionChange::Create(Arc::new(Revision {
            name: "web-1".into(),
            data: json!({}),
            ..Revision::default()
        }))],
        ..SetPlan::default()
    };
    assert_eq!(fixture.apply(plan()).await, ApplyOutcome::Moved);
    let status = fixture.observed().set.status.clone().unwrap();
    assert_eq!(status.collision_count, Some(1));

    fixture.api.put(path, revision(json!({})));
    assert_eq!(
        fixture.apply(plan()).await,
        ApplyOutcome::All(Some(MIN_RECONCILE_INTERVAL))
    );
    assert_eq!(fixture.observed().set.status.as_ref(), Some(&status));
}

#[tokio::test(start_paused = true)]
async fn revision_changed_by_webhook_is_not_recreated() {
    let removals: [fn(&mut Value); 2] = [
        |revision| {
            let metadata = revision["metadata"].as_object_mut();
            metadata.map(|metadata| metadata.remove("ownerReferences"));
        },
        |revision| {
            let metadata = revision["metadata"].as_object_mut();
            metadata.map(|metadata| metadata.remove("labels"));
        },
    ];
    for remove in removals {
        let fixture = Fixture::new();
        fixture.api.0.lock().mutation = Some(remove);
        let plan = || SetPlan {
            revisions: vec![RevisionChange::Create(Arc::new(Revision {
                name: "web-1".into(),
                data: json!({ "spec": 1 }),
                labels: [("app".to_owned(), "web".to_owned())].into(),
                ..Revision::default()
            }))],
            ..SetPlan::default()
        };
        apply_often(&fixture, 20, plan).await;
        let set = fixture.api.0.lock().objects[SET].clone();
        assert_eq!(set["status"]["collisionCount"], Value::Null);
        let message = refusals_of(&fixture, &Pod::default()).revision.unwrap();
        assert!(
            message.contains("the API server stored another object than the one that was written"),
            "{message}"
        );
        fixture.api.0.lock().mutation = None;
        tokio::time::advance(BACKOFF_RANGE.1).await;
        apply_often(&fixture, 1, plan).await;
        let path = "/apis/apps/v1/namespaces/n/controllerrevisions/web-1";
        let revision = &fixture.api.0.lock().objects[path]["metadata"];
        assert_eq!(revision["labels"], json!({ "app": "web" }));
        assert_eq!(revision["ownerReferences"][0]["uid"], "set");
    }
}
