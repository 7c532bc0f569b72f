//! When the caches are new enough for a plan.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Fixture, PODS, SET};
use crate::api::keys;
use crate::cluster::objects::CollaSetObject;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::controllers::collaset::CollaSetController;
use crate::controllers::collaset::observe::observe_collaset;
use crate::controllers::collaset::reconcile_state::MIN_RECONCILE_INTERVAL;
use crate::controllers::decoration_board::DecorationBoard;

#[tokio::test(start_paused = true)]
async fn nothing_is_planned_before_cache_shows_own_write() {
    let fixture = Fixture::new();
    let index = &fixture.context.index;
    let set = fixture.observed().set;
    let early = observe_collaset(
        &fixture.context,
        &DecorationBoard::default(),
        &set,
        &fixture.state,
    )
    .await;
    assert!(
        matches!(early, Err(ReconcileOutcome::After(_))),
        "nothing is listed yet"
    );
    index.replace_pods(Vec::new(), 5);
    index.mark_all_listed();
    fixture.state.record_pod_write(7);
    let trailing = observe_collaset(
        &fixture.context,
        &DecorationBoard::default(),
        &set,
        &fixture.state,
    )
    .await;
    assert!(matches!(trailing, Err(ReconcileOutcome::Retry)));
    index.bookmark_pods(7);
    assert!(
        observe_collaset(
            &fixture.context,
            &DecorationBoard::default(),
            &set,
            &fixture.state
        )
        .await
        .is_ok()
    );
    index.decision_watches.pods.end_trust();
    let silent = observe_collaset(
        &fixture.context,
        &DecorationBoard::default(),
        &set,
        &fixture.state,
    )
    .await;
    assert!(matches!(silent, Err(ReconcileOutcome::Retry)));
}

#[tokio::test(start_paused = true)]
async fn plan_waits_for_uncached_pod_to_include() {
    let fixture = Fixture::new();
    let index = &fixture.context.index;
    index.replace_pods(Vec::new(), 1);
    index.mark_all_listed();
    let labels = json!({ keys::CONTROL: keys::CONTROL_VALUE });
    let pod = json!({ "metadata": { "namespace": "n", "name": "web-0", "labels": labels } });
    fixture.api.put(&format!("{PODS}/web-0"), pod);
    let included = json!({ "podToInclude": ["web-0"] });
    fixture.api.put(
        SET,
        json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "set" },
            "spec": { "scaleStrategy": included },
        }),
    );
    fixture.cache_object::<CollaSetObject>(SET);
    let set = fixture.observed().set;
    let trailing = observe_collaset(
        &fixture.context,
        &DecorationBoard::default(),
        &set,
        &fixture.state,
    )
    .await;
    assert!(matches!(trailing, Err(ReconcileOutcome::Retry)));
    index.bookmark_pods(fixture.api.0.lock().version);
    assert!(
        observe_collaset(
            &fixture.context,
            &DecorationBoard::default(),
            &set,
            &fixture.state
        )
        .await
        .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn new_leader_waits_for_cache_to_show_former_leaders_writes() {
    let fixture = Fixture::new();
    let index = &fixture.context.index;
    index.replace_pods(Vec::new(), 1);
    index.mark_all_listed();
    fixture.pod("web-of-the-former-leader");
    let written = fixture.api.0.lock().version;
    let leader = CollaSetController::new(Arc::clone(&fixture.context), Arc::default());
    let reconcile = || leader.reconcile(("n".into(), "web".into()));
    assert!(matches!(reconcile().await, ReconcileOutcome::Retry));
    tokio::time::advance(MIN_RECONCILE_INTERVAL).await;
    index.bookmark_pods(written - 1);
    assert!(matches!(reconcile().await, ReconcileOutcome::Retry));
    tokio::time::advance(MIN_RECONCILE_INTERVAL).await;
    index.bookmark_pods(written);
    assert!(!matches!(reconcile().await, ReconcileOutcome::Retry));
    let status = || fixture.api.0.lock().objects[SET]["status"].clone();
    assert_ne!(status(), Value::Null, "it has planned");
}
