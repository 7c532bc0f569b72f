use super::*;

#[tokio::test(start_paused = true)]
async fn event_burst_causes_one_reconcile() {
    let (state, start) = (ReconcileState::new("a"), Instant::now());
    assert_eq!(state.begin_reconcile(start, 1), None, "the first at once");
    let at = |millis| start + Duration::from_millis(millis);
    let remaining = Duration::from_millis(40);
    assert_eq!(
        state.begin_reconcile(at(10), 1),
        Some(ReconcileOutcome::Early(remaining))
    );
    let remaining = Duration::from_millis(30);
    assert_eq!(
        state.begin_reconcile(at(20), 1),
        Some(ReconcileOutcome::Early(remaining)),
        "another timer of the queue may cause this run"
    );
    assert_eq!(state.begin_reconcile(at(50), 1), None);
    assert_eq!(
        state.begin_reconcile(at(51), 1),
        Some(ReconcileOutcome::Early(
            MIN_RECONCILE_INTERVAL - Duration::from_millis(1)
        ))
    );
}

#[tokio::test(start_paused = true)]
async fn failure_pauses_reconcile_until_spec_changes() {
    let (state, now) = (ReconcileState::new("a"), Instant::now());
    let mut pause = Duration::ZERO;
    for _ in 0..20 {
        pause = state.record_failure(now, 1);
    }
    assert_eq!(pause, BACKOFF_RANGE.1);
    assert_eq!(
        state.begin_reconcile(now + MIN_RECONCILE_INTERVAL, 1),
        Some(ReconcileOutcome::Early(
            BACKOFF_RANGE.1 - MIN_RECONCILE_INTERVAL
        )),
    );
    assert_eq!(state.begin_reconcile(now + MIN_RECONCILE_INTERVAL, 2), None);
    state.record_success();
    assert_eq!(state.record_failure(now, 2), BACKOFF_RANGE.0);
}

#[tokio::test(start_paused = true)]
async fn status_is_written_once_a_second() {
    let (state, now) = (ReconcileState::new("a"), Instant::now());
    assert_eq!(state.begin_status_write(now), None);
    assert_eq!(state.begin_status_write(now), Some(MIN_STATUS_INTERVAL));
    assert_eq!(state.begin_status_write(now + MIN_STATUS_INTERVAL), None);
}

#[tokio::test(start_paused = true)]
async fn held_pod_is_not_written_during_its_backoff() {
    let (state, now) = (ReconcileState::new("a"), Instant::now());
    state.record_held_write("pod", "why", now);
    assert_eq!(state.hold_remaining("pod", now), Some(HELD_BACKOFF));
    assert_eq!(state.hold_remaining("other", now), None);
    assert_eq!(state.hold_remaining("pod", now + HELD_BACKOFF), None);
}

#[tokio::test(start_paused = true)]
async fn observed_creation_clears_its_refusal() {
    let (state, now) = (ReconcileState::new("a"), Instant::now());
    let slots = |id| [NameSlot::Pod(id), NameSlot::Pvc(id, "data".to_owned())];
    for slot in slots(3).iter().chain(&slots(4)) {
        state.record_refusal(slot.refusal_key(), "no answer", now, 1);
    }
    let refused = || {
        let facts = state.plan_refusals(std::iter::empty(), std::iter::empty(), now, 1);
        facts.creations.into_keys().collect::<Vec<_>>()
    };
    let pod = state.choose_name(&NameSlot::Pod(3), "web-");
    state.record_given_name(&NameSlot::Pvc(3, "data".to_owned()), "web-data-3");
    state.forget_observed_names(|slot, name| *slot == NameSlot::Pod(3) && name == pod);
    assert_eq!(refused(), [3, 4], "no cache contains its PVC yet");
    state.forget_observed_names(|_, name| name == "web-data-3");
    assert_eq!(refused(), [4]);
}

#[tokio::test(start_paused = true)]
async fn repeatedly_held_pod_is_passed_to_planner() {
    let (state, now) = (ReconcileState::new("a"), Instant::now());
    let none = || std::iter::empty();
    let facts = |at| {
        let facts = state.plan_refusals(std::iter::empty(), none(), at, 1);
        (facts.pods, facts.held)
    };
    state.record_held_write("pod", "why", now);
    state.hold_object_for("pvc", now, HELD_BACKOFF);
    let pods = BTreeSet::from(["pod", "pvc"].map(str::to_owned));
    let held = (pods, BTreeMap::from([("pod".to_owned(), "why".to_owned())]));
    assert_eq!(facts(now), held);
    assert_eq!(facts(now + HELD_BACKOFF), held, "when it is tried again");
    assert_eq!(facts(now + HELD_BACKOFF * 10), Default::default());
}
