//! Whole runs: what is published, who is woken, and which requests are made.

use super::*;

impl Fixture {
    /// A fixture whose caches are complete, with a CollaSet in the namespace.
    fn with_caches() -> Fixture {
        let fixture = Fixture::new();
        let set = json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" } });
        fixture.api.put(SET, set);
        fixture.cache_object::<CollaSetObject>(SET);
        let index = &fixture.context.index;
        index.replace_pods(Vec::new(), fixture.api.0.lock().version);
        index.mark_all_listed();
        fixture
    }

    async fn reconcile(&self) -> ReconcileOutcome {
        let name = ("n".to_owned(), "log".to_owned());
        self.controller.reconcile(name).await
    }

    fn published(&self) -> Option<Arc<Decoration>> {
        self.board.get("n", "log")
    }

    /// Whether a CollaSet waits in its queue.
    fn has_woken_set(&self) -> bool {
        self.queues.collasets.depth() > 0
    }

    /// The writes so far, without those for Events.
    fn writes(&self) -> Vec<String> {
        let writes = self.api.0.lock().writes.clone();
        let writes = writes.into_iter();
        writes.filter(|w| !w.ends_with("/events")).collect()
    }

    /// Runs again and again, each time when the outcome asks for it.
    async fn run_until_done(&self) {
        for _ in 0..10 {
            match self.reconcile().await {
                ReconcileOutcome::Done => return,
                ReconcileOutcome::After(pause) | ReconcileOutcome::Early(pause) => {
                    tokio::time::advance(pause).await;
                }
                ReconcileOutcome::Retry => panic!("a run failed"),
            }
        }
        panic!("the PodDecoration never comes to rest");
    }
}

#[tokio::test]
async fn nothing_happens_before_caches_are_listed() {
    let fixture = Fixture::new();
    let outcome = fixture.reconcile().await;
    assert!(matches!(outcome, ReconcileOutcome::After(_)));
    assert_eq!(fixture.published(), None);
    assert!(fixture.api.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn run_prepares_decoration_and_then_rests() {
    let fixture = Fixture::with_caches();
    fixture.run_until_done().await;
    let writes = fixture.writes();
    let expected = [
        format!("PATCH {DECORATION}"),
        format!("POST {REVISIONS}"),
        format!("PATCH {DECORATION}/status"),
    ];
    assert_eq!(writes[..3], expected);
    let published = fixture.published().unwrap();
    assert_eq!(published.hold, None);
    let updated = published.updated.as_ref().unwrap();
    assert!(published.revisions.contains_key(updated));
    assert!(fixture.has_woken_set());
    tokio::time::advance(Duration::from_secs(1)).await;
    let requests = fixture.api.requests().len();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(fixture.reconcile().await, ReconcileOutcome::Done);
    }
    assert_eq!(fixture.api.requests().len(), requests, "at rest");
}

#[tokio::test(start_paused = true)]
async fn refused_write_delays_only_creation_of_pods() {
    // The finalizer comes first. A refusal of all POSTs concerns the revision.
    for refused in ["PATCH", "POST"] {
        let fixture = Fixture::with_caches();
        fixture.refuse(refused, false);
        let outcome = fixture.reconcile().await;
        assert!(matches!(outcome, ReconcileOutcome::After(_)), "{outcome:?}");
        let published = fixture.published().unwrap();
        let hold = published.hold.clone().unwrap();
        assert!(hold.contains("no space left"), "{hold}");
        assert!(fixture.has_woken_set());
        // The reason stays the same while the write is tried again.
        let requests = fixture.api.requests().len();
        tokio::time::advance(MAX_BACKOFF).await;
        fixture.reconcile().await;
        assert!(fixture.api.requests().len() > requests, "{refused}");
        assert!(Arc::ptr_eq(&published, &fixture.published().unwrap()));
        fixture.api.refuse(None);
        tokio::time::advance(MAX_BACKOFF).await;
        fixture.run_until_done().await;
        assert_eq!(fixture.published().unwrap().hold, None, "{refused}");
    }
}

#[tokio::test(start_paused = true)]
async fn deleted_decoration_leaves_when_no_pod_has_it() {
    let fixture = Fixture::with_caches();
    fixture.run_until_done().await;
    let mut object = fixture.stored(DECORATION);
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["generation"] = json!(2);
    fixture.api.put(DECORATION, object);
    fixture.cache_object::<DecorationObject>(DECORATION);
    fixture.run_until_done().await;
    let finalizers = &fixture.stored(DECORATION)["metadata"]["finalizers"];
    assert_eq!(*finalizers, json!([]));
    assert_eq!(fixture.cached(), None);
    assert_eq!(fixture.published(), None);
}

#[tokio::test(start_paused = true)]
async fn decoration_that_is_gone_wakes_waiting_sets() {
    let fixture = Fixture::with_caches();
    let decorations = &fixture.context.objects.decorations;
    decorations.apply_own_delete("n", "log", "pd");
    assert_eq!(fixture.reconcile().await, ReconcileOutcome::Done);
    assert!(fixture.has_woken_set());
    assert!(fixture.writes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn unreadable_decoration_is_published_as_invalid_without_writes() {
    let fixture = Fixture::with_caches();
    fixture.run_until_done().await;
    let former = fixture.published().unwrap();
    let writes = fixture.writes();
    let mut object = fixture.stored(DECORATION);
    object["spec"]["weight"] = json!("two");
    object["metadata"]["generation"] = json!(2);
    fixture.api.put(DECORATION, object);
    fixture.cache_object::<DecorationObject>(DECORATION);
    fixture.run_until_done().await;
    let published = fixture.published().unwrap();
    let fault = published.invalid.clone().unwrap();
    assert!(fault.contains("two"), "{fault}");
    assert_eq!((published.generation, &published.hold), (2, &None));
    assert_eq!(published.revisions, former.revisions);
    assert_eq!(fixture.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn recreated_decoration_is_planned_anew() {
    let fixture = Fixture::with_caches();
    fixture.run_until_done().await;
    fixture.put_decoration(json!({ "metadata": { "uid": "another" } }));
    fixture.run_until_done().await;
    let published = fixture.published().unwrap();
    assert_eq!((&*published.uid, &published.hold), ("another", &None));
}
