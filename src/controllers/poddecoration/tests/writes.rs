//! The writes of a plan.

use super::*;
use crate::api::poddecoration::PodDecorationStatus;
use crate::controllers::poddecoration::memory::MIN_STATUS_INTERVAL;

fn status(matched_pods: i32) -> DecorationPlan {
    DecorationPlan {
        status: Some(PodDecorationStatus {
            matched_pods,
            ..PodDecorationStatus::default()
        }),
        ..DecorationPlan::default()
    }
}

/// The stored revision, which the PodDecoration controls.
fn stored_revision(data: Value) -> Value {
    json!({
        "metadata": { "namespace": "n", "name": "log-1", "uid": "r", "ownerReferences": [{
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration", "name": "log", "uid": "pd",
            "controller": true,
        }] },
        "data": data,
    })
}

#[tokio::test]
async fn empty_plan_makes_no_request() {
    let fixture = Fixture::new();
    let step = fixture.make_next_write(&DecorationPlan::default()).await;
    assert_eq!(step, NextStep::Wait(None));
    assert!(fixture.api.requests().is_empty());
}

#[tokio::test]
async fn finalizer_is_stored_before_revision() {
    let fixture = Fixture::new();
    let plan = DecorationPlan {
        add_finalizer: true,
        ..creation_plan()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    assert_eq!(fixture.api.requests(), [format!("PATCH {DECORATION}")]);
    let metadata = &fixture.cached().unwrap().object.metadata;
    let finalizers = Some(vec![keys::PROTECTED_FINALIZER.to_owned()]);
    assert_eq!(metadata.finalizers, finalizers);
    fixture.make_next_write(&creation_plan()).await;
    let objects = &fixture.context.objects;
    let revisions = objects.revisions.controlled_by("n", "pd");
    assert_eq!(revisions.len(), 1, "the cache contains the own write");
}

#[tokio::test(start_paused = true)]
async fn no_revision_is_stored_while_finalizer_is_refused() {
    let fixture = Fixture::new();
    fixture.refuse("PATCH", false);
    let plan = DecorationPlan {
        add_finalizer: true,
        ..creation_plan()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    let step = fixture.make_next_write(&plan).await;
    assert!(matches!(step, NextStep::Wait(Some(_))), "{step:?}");
    assert_eq!(fixture.stored(&format!("{REVISIONS}/log-1")), Value::Null);
    let refused = fixture
        .memory
        .refused_writes(tokio::time::Instant::now(), 1);
    assert!(refused.finalizer.unwrap().contains("no space left"));
}

#[tokio::test(start_paused = true)]
async fn finalizer_that_a_webhook_removes_backs_off() {
    let fixture = Fixture::new();
    fixture.api.0.lock().mutation = Some(|object| {
        object["metadata"]["finalizers"] = json!([]);
    });
    let plan = DecorationPlan {
        add_finalizer: true,
        ..DecorationPlan::default()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    let step = fixture.make_next_write(&plan).await;
    assert!(matches!(step, NextStep::Wait(Some(_))), "{step:?}");
}

#[tokio::test(start_paused = true)]
async fn revision_whose_answer_was_lost_is_created_once() {
    let fixture = Fixture::new();
    fixture.refuse("POST", true);
    assert_eq!(
        fixture.make_next_write(&creation_plan()).await,
        NextStep::PlanAgain
    );
    fixture.api.refuse(None);
    tokio::time::advance(MAX_BACKOFF).await;
    assert_eq!(
        fixture.make_next_write(&creation_plan()).await,
        NextStep::PlanAgain
    );
    let now = tokio::time::Instant::now();
    assert_eq!(fixture.memory.refused_writes(now, 1), Default::default());
    let status = fixture.cached().unwrap().object.status.clone();
    assert_eq!(status.and_then(|status| status.collision_count), None);
    assert!(
        fixture
            .context
            .objects
            .revisions
            .get("n", "log-1")
            .is_some()
    );
}

#[tokio::test]
async fn name_of_other_revision_raises_collision_count() {
    let fixture = Fixture::new();
    let path = format!("{REVISIONS}/log-1");
    fixture
        .api
        .put(&path, stored_revision(json!({ "spec": 2 })));
    for count in 1..3 {
        let step = fixture.make_next_write(&creation_plan()).await;
        assert_eq!(step, NextStep::PlanAgain);
        let status = fixture.cached().unwrap().object.status.clone().unwrap();
        assert_eq!(status.collision_count, Some(count));
    }
}

#[tokio::test(start_paused = true)]
async fn collision_count_that_cannot_be_stored_backs_off() {
    let fixture = Fixture::new();
    let path = format!("{REVISIONS}/log-1");
    fixture
        .api
        .put(&path, stored_revision(json!({ "spec": 2 })));
    fixture.refuse("PATCH", false);
    fixture.make_next_write(&creation_plan()).await;
    let step = fixture.make_next_write(&creation_plan()).await;
    assert!(matches!(step, NextStep::Wait(Some(_))), "{step:?}");
}

#[tokio::test(start_paused = true)]
async fn refused_revision_does_not_delay_status() {
    let fixture = Fixture::new();
    fixture.refuse("POST", false);
    let plan = DecorationPlan {
        status: status(1).status,
        ..creation_plan()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    assert_eq!(fixture.stored(DECORATION)["status"]["matchedPods"], 1);
    let step = fixture.make_next_write(&plan).await;
    assert!(matches!(step, NextStep::Wait(Some(_))), "{step:?}");
    assert_eq!(fixture.api.bodies(&format!("POST {REVISIONS}")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn status_is_written_at_intervals_and_delays_nothing() {
    let fixture = Fixture::new();
    let path = format!("{REVISIONS}/log-1");
    fixture
        .api
        .put(&path, stored_revision(json!({ "spec": 1 })));
    assert_eq!(
        fixture.make_next_write(&status(1)).await,
        NextStep::PlanAgain
    );
    assert_eq!(
        fixture.make_next_write(&status(1)).await,
        NextStep::Wait(None)
    );
    let pause = NextStep::Wait(Some(MIN_STATUS_INTERVAL));
    assert_eq!(fixture.make_next_write(&status(2)).await, pause);
    let unused = Revision {
        name: "log-1".into(),
        uid: "r".into(),
        resource_version: "2".into(),
        ..Revision::default()
    };
    let plan = DecorationPlan {
        delete_revisions: vec![Arc::new(unused)],
        ..status(2)
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    let preconditions = json!({ "uid": "r", "resourceVersion": "2" });
    let deletion = &fixture.api.bodies(&format!("DELETE {path}"))[0];
    assert_eq!(deletion["preconditions"], preconditions);
    tokio::time::advance(MIN_STATUS_INTERVAL).await;
    assert_eq!(
        fixture.make_next_write(&status(2)).await,
        NextStep::PlanAgain
    );
}

#[tokio::test]
async fn decoration_is_gone_after_its_last_finalizer() {
    let finalizers = |all: Value| json!({ "metadata": { "finalizers": all, "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    let plan = DecorationPlan {
        remove_finalizer: true,
        ..DecorationPlan::default()
    };
    let fixture = Fixture::new();
    fixture.put_decoration(finalizers(json!([keys::PROTECTED_FINALIZER, "a/b"])));
    fixture.make_next_write(&plan).await;
    let left = fixture.cached().unwrap().object.metadata.finalizers.clone();
    assert_eq!(left, Some(vec!["a/b".to_owned()]));
    fixture.put_decoration(finalizers(json!([keys::PROTECTED_FINALIZER])));
    fixture.make_next_write(&plan).await;
    assert_eq!(fixture.cached(), None);
}

/// A webhook puts the finalizer back: the PodDecoration still exists.
#[tokio::test(start_paused = true)]
async fn finalizer_that_is_put_back_backs_off_and_the_decoration_stays() {
    let fixture = Fixture::new();
    let finalizers = json!([keys::PROTECTED_FINALIZER]);
    fixture.put_decoration(json!({ "metadata": { "finalizers": finalizers } }));
    fixture.api.0.lock().mutation = Some(|object| {
        object["metadata"]["finalizers"] = json!([keys::PROTECTED_FINALIZER]);
    });
    let plan = DecorationPlan {
        remove_finalizer: true,
        ..DecorationPlan::default()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::PlanAgain);
    assert!(fixture.cached().is_some());
    let step = fixture.make_next_write(&plan).await;
    assert!(matches!(step, NextStep::Wait(Some(_))), "{step:?}");
}

#[tokio::test]
async fn write_from_stale_cache_is_refused() {
    let fixture = Fixture::new();
    let newer = fixture.stored(DECORATION);
    fixture.api.put(DECORATION, newer);
    let plan = DecorationPlan {
        add_finalizer: true,
        ..DecorationPlan::default()
    };
    assert_eq!(fixture.make_next_write(&plan).await, NextStep::Stale);
}
