//! Tests of the group commit over a store in memory. A test can make the writes of the store fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use proptest::prelude::{any, prop_assert_eq, proptest};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::cooldown;
use super::decide;
use super::{ClaimAnswer, Denied, DenyReason, Disruption, Evidence, Ledgers};
use crate::api::keys;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::api::size_limits::MAX_LEDGER_BYTES;
use crate::domain::inplace::{self, ContainerBefore};
use crate::domain::pending_disruption::PendingDisruption;
use crate::domain::pod::{Pod, PodCondition, RESIZE_PENDING, Resources};
use crate::domain::rules::RuleSet;
use crate::ledger::evidence::LAPSE_MARGIN;
use crate::ledger::protocol::{BudgetView, ClaimOperation, ClaimRequest};
use crate::ledger::store::{
    ClaimDetail, Claims, LedgerStore, RuleKey, RuleSnapshot, Uid, WriteError,
};

mod time_travel;

/// What happens to a write instead of success.
enum Mishap {
    Panic,
    Conflict,
    /// The write reports success, but the returned object does not hold the claims.
    NotStored,
    /// The API server refuses the write, because the server lacks a right.
    Refused,
    /// The write stops half-way: it notifies `reached`, and waits for `on`.
    Pause {
        reached: Arc<Notify>,
        on: Arc<Notify>,
    },
}

/// A store of rules in memory, with ten Pods that are all available.
#[derive(Default)]
struct InMemoryStore {
    rules: Mutex<HashMap<RuleKey, RuleSnapshot>>,
    mishaps: Mutex<VecDeque<Mishap>>,
    /// Position of the Pods in etcd.
    present: Mutex<u64>,
    /// How often `present` was read.
    lists: AtomicU64,
    /// The positions for which callers waited.
    awaited: Mutex<Vec<u64>>,
    /// Position of the cache.
    position: Mutex<u64>,
    /// Whether the Pod watch is disconnected.
    is_cut_off: Mutex<bool>,
    lost: Mutex<Option<Arc<str>>>,
}

struct TenPods;

impl BudgetView<Uid> for TenPods {
    fn position(&self) -> u64 {
        100
    }
    fn expected(&self) -> u32 {
        10
    }
    fn available(&self) -> u32 {
        10
    }
    fn is_available(&self, _: &Uid) -> bool {
        true
    }
}

impl LedgerStore for InMemoryStore {
    fn cached_snapshot(&self, key: &RuleKey) -> Option<RuleSnapshot> {
        self.rules.lock().get(key).cloned()
    }

    fn is_replaced(&self, key: &RuleKey) -> bool {
        let rules = self.rules.lock();
        rules
            .keys()
            .any(|other| other.name == key.name && other.uid != key.uid)
    }

    async fn live_snapshot(&self, key: &RuleKey) -> Result<Option<RuleSnapshot>, WriteError> {
        if self.is_replaced(key) {
            return Err(WriteError::Replaced);
        }
        Ok(self.cached_snapshot(key))
    }

    async fn compare_and_swap(
        &self,
        key: &RuleKey,
        base: &RuleSnapshot,
        claims: &Claims,
    ) -> Result<RuleSnapshot, WriteError> {
        loop {
            let mishap = self.mishaps.lock().pop_front();
            match mishap {
                Some(Mishap::Panic) => panic!("as the test wants it"),
                Some(Mishap::Conflict) => return Err(WriteError::Conflict),
                Some(Mishap::NotStored) => return Err(WriteError::NotStored("dropped".into())),
                Some(Mishap::Refused) => return Err(WriteError::Unreachable("forbidden".into())),
                Some(Mishap::Pause { reached, on }) => {
                    reached.notify_one();
                    on.notified().await;
                }
                None => break,
            }
        }
        if self.is_replaced(key) {
            return Err(WriteError::Conflict);
        }
        let mut rules = self.rules.lock();
        let stored = rules.get_mut(key).ok_or(WriteError::Gone)?;
        if stored.version != base.version {
            return Err(WriteError::Conflict);
        }
        stored.version += 1;
        stored.held = stored.version;
        stored.claims = Arc::new(claims.clone());
        stored.forgotten = None;
        Ok(stored.clone())
    }

    fn with_view<R>(&self, _: &RuleSet, look: impl FnOnce(&dyn BudgetView<Uid>) -> R) -> R {
        look(&TenPods)
    }

    async fn read_present_position(&self, _: &str) -> Result<u64, WriteError> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        Ok(*self.present.lock())
    }

    async fn wait_position(&self, position: u64) {
        self.awaited.lock().push(position);
        if position > 1000 {
            std::future::pending::<()>().await;
        }
    }

    async fn dry_run_swap(&self, _: &RuleKey, _: &Claims) -> Result<(), WriteError> {
        match self.mishaps.lock().front() {
            Some(Mishap::NotStored) => Err(WriteError::NotStored("dropped".into())),
            Some(Mishap::Refused) => Err(WriteError::Unreachable("forbidden".into())),
            _ => Ok(()),
        }
    }

    fn position(&self) -> u64 {
        *self.position.lock()
    }

    fn is_following(&self) -> bool {
        !*self.is_cut_off.lock()
    }

    async fn wait_followed(&self) {
        while *self.is_cut_off.lock() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn history_lost(&self) -> Option<Arc<str>> {
        self.lost.lock().clone()
    }

    fn mark_history_lost(&self, known: u64, found: u64) {
        *self.lost.lock() = Some(format!("{known} > {found}").into());
    }

    fn serves_deferred(&self, _: &RuleSet, _: &Uid) -> Option<bool> {
        None
    }

    fn pending_disruptions(&self, _: &RuleSet) -> Vec<(String, PendingDisruption)> {
        Vec::new()
    }

    fn unreadable_pod(&self, _: &RuleSet) -> Option<String> {
        None
    }

    fn unavailable_pods(&self, _: &RuleSet, _: usize) -> Vec<(String, Option<Timestamp>)> {
        Vec::new()
    }
}

impl InMemoryStore {
    /// Adds a rule that lets five of the ten Pods go.
    fn rule(&self, name: &str) -> RuleKey {
        self.rule_of(name, 5)
    }

    fn rule_of(&self, name: &str, limit: u32) -> RuleKey {
        let object: PodTransitionRule = serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": "n", "uid": name },
            "spec": {
                "selector": {},
                "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": limit } }],
            },
        }))
        .unwrap();
        let key = RuleKey {
            uid: name.into(),
            namespace: "n".into(),
            name: name.into(),
        };
        let snapshot = RuleSnapshot {
            version: 1,
            rules: Arc::new(RuleSet::compile(&object)),
            claims: Arc::default(),
            held: 1,
            forgotten: None,
            fault: None,
        };
        self.rules.lock().insert(key.clone(), snapshot);
        key
    }

    /// Deletes the rule and creates another one under its name.
    fn replace(&self, key: &RuleKey) -> RuleKey {
        let mut rules = self.rules.lock();
        let old = rules.remove(key).unwrap();
        let new = RuleKey {
            uid: format!("{}-anew", key.uid).as_str().into(),
            ..key.clone()
        };
        rules.insert(new.clone(), old);
        new
    }

    fn will(&self, mishaps: impl IntoIterator<Item = Mishap>) {
        self.mishaps.lock().extend(mishaps);
    }

    /// Pauses the next write. The first handle is notified when the write has stopped. Notifying the second handle lets
    /// the write go on.
    fn pause_next_write(&self) -> (Arc<Notify>, Arc<Notify>) {
        let (reached, on) = <(Arc<Notify>, Arc<Notify>)>::default();
        self.will([Mishap::Pause {
            reached: Arc::clone(&reached),
            on: Arc::clone(&on),
        }]);
        (reached, on)
    }
}

fn delete(pod: &str) -> Disruption {
    let object = json!({
        "metadata": { "namespace": "n", "name": pod, "uid": pod, "resourceVersion": "7",
                      "labels": { (keys::CONTROL): keys::CONTROL_VALUE } },
    });
    Disruption {
        pod: Arc::new(serde_json::from_value(object).unwrap()),
        operation: ClaimOperation::Delete,
        detail: ClaimDetail {
            pod_name: pod.into(),
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::UNIX_EPOCH,
            target: None,
            containers: Vec::new(),
            carried: None,
        },
        bypassed_rules: Default::default(),
        generations: Default::default(),
    }
}

async fn ask(
    ledgers: &Arc<Ledgers<InMemoryStore>>,
    key: &RuleKey,
    pod: &str,
) -> Result<ClaimAnswer, Denied> {
    let deadline = Instant::now() + Duration::from_secs(30);
    ledgers.send_claim(key, delete(pod), deadline).await
}

fn is_internal(answer: &Result<ClaimAnswer, Denied>) -> bool {
    matches!(answer, Err(Denied { why: DenyReason::Unreachable(why), .. }) if why.contains("internal error"))
}

#[tokio::test]
async fn next_command_after_panic_is_answered() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    ledgers.store().will([Mishap::Panic]);
    let answer = ask(&ledgers, &key, "a").await;
    assert!(is_internal(&answer), "{answer:?}");
    let answer = ask(&ledgers, &key, "b").await;
    assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "{answer:?}");
    assert_eq!(ledgers.counters.panics.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn ask_that_is_dropped_at_its_deadline_says_so() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let (reached, on) = ledgers.store().pause_next_write();
    let first = ask(&ledgers, &key, "a");
    tokio::pin!(first);
    assert!(futures::poll!(&mut first).is_pending());
    reached.notified().await;
    let deadline = Instant::now() + Duration::from_secs(1);
    let late = ledgers.send_claim(&key, delete("b"), deadline);
    tokio::pin!(late);
    assert!(futures::poll!(&mut late).is_pending());
    tokio::time::advance(Duration::from_secs(2)).await;
    on.notify_one();
    assert!(first.await.is_ok());
    while ledgers.queues.lock()[&key].lock().is_running() {
        tokio::task::yield_now().await;
    }
    let why = late.await.unwrap_err().why;
    let wanted = "no answer within the review's deadline";
    assert_eq!(why, DenyReason::Unreachable(wanted.into()));
}

#[tokio::test(start_paused = true)]
async fn claim_of_abandoned_request_is_withdrawn() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let (reached, on) = ledgers.store().pause_next_write();
    let soon = Instant::now() + Duration::from_secs(1);
    let late = ledgers.send_claim(&key, delete("a"), soon);
    tokio::pin!(late);
    assert!(futures::poll!(&mut late).is_pending());
    reached.notified().await;
    late.await.unwrap_err();
    on.notify_one();
    while ledgers.queues.lock()[&key].lock().is_running() {
        tokio::task::yield_now().await;
    }
    let claims = ledgers.store().cached_snapshot(&key).unwrap().claims;
    assert!(claims.claims.is_empty(), "{claims:?}");
}

/// How often a ledger is written when two Pods ask for a claim, one millisecond apart.
async fn writes_of_two(operation: ClaimOperation) -> u64 {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let before = ledgers.store().cached_snapshot(&key).unwrap().version;
    let deadline = Instant::now() + Duration::from_secs(1);
    let disruption = |pod: &str| Disruption {
        operation,
        ..delete(pod)
    };
    let second = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        ledgers.send_claim(&key, disruption("b"), deadline).await
    };
    let first = ledgers.send_claim(&key, disruption("a"), deadline);
    let (first, second) = tokio::join!(first, second);
    assert!(first.is_ok() && second.is_ok());
    ledgers.store().cached_snapshot(&key).unwrap().version - before
}

#[tokio::test(start_paused = true)]
async fn begins_are_batched_and_deletions_are_not_delayed() {
    assert_eq!(writes_of_two(ClaimOperation::Begin).await, 1);
    assert_eq!(writes_of_two(ClaimOperation::Delete).await, 2);
}

#[tokio::test]
async fn ledgers_that_begin_together_begin_at_one_position() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let store = ledgers.store();
    *store.present.lock() = 5;
    let keys: Vec<_> = ["a", "b", "c"].map(|name| store.rule(name)).into();
    let soon = Instant::now() + Duration::from_secs(1);
    let granted = ledgers.claim_rules(keys, &delete("a"), false, soon).await;
    assert_eq!(granted.unwrap().len(), 3);
    assert_eq!(store.lists.load(Ordering::Relaxed), 1);
}

/// Checks that a request is denied, and that a dry run, which writes nothing, returns the same denial.
async fn assert_refused(ledgers: &Arc<Ledgers<InMemoryStore>>, key: &RuleKey, why: DenyReason) {
    for dry_run in [true, false] {
        let soon = Instant::now() + Duration::from_secs(1);
        let keys = vec![key.clone()];
        let refused = ledgers.claim_rules(keys, &delete("a"), dry_run, soon).await;
        assert_eq!(refused.unwrap_err().why, why);
    }
}

#[tokio::test]
async fn claim_that_is_not_stored_is_refused() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    ledgers.store().will([Mishap::NotStored]);
    assert_refused(&ledgers, &key, DenyReason::Unusable("dropped".into())).await;
    assert!(ask(&ledgers, &key, "a").await.is_ok());
}

#[tokio::test]
async fn dry_run_reports_missing_ledger_write_permission() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    ledgers.store().will([Mishap::Refused]);
    assert_refused(&ledgers, &key, DenyReason::Unreachable("forbidden".into())).await;
    assert!(ask(&ledgers, &key, "a").await.is_ok());
}

/// Simulates another replica that began a new ledger without the stored claims, while this replica has seen these
/// claims.
fn forgotten(ledgers: &Ledgers<InMemoryStore>, key: &RuleKey) {
    let held = ledgers.store().cached_snapshot(key).unwrap();
    let mut rules = ledgers.store().rules.lock();
    let stored = rules.get_mut(key).unwrap();
    stored.version += 1;
    stored.held = stored.version;
    stored.claims = Arc::new(Claims {
        attempts: 1,
        ..Claims::default()
    });
    *stored = stored.clone().merge_remembered_claims(&held);
}

#[tokio::test]
async fn forgotten_claims_are_written_back_also_by_a_refusal() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    for pod in ["a", "b", "c", "d", "e"] {
        ask(&ledgers, &key, pod).await.unwrap();
    }
    let writes = || ledgers.counters.writes.load(Ordering::Relaxed);
    assert_eq!(writes(), 5);
    ledgers.restore_claims(&key); // nothing to restore
    forgotten(&ledgers, &key);
    ledgers.queues.lock().clear(); // as if the last write were long ago
    assert!(ledgers.latest_snapshot(&key).unwrap().needs_write_back());
    let full = ask(&ledgers, &key, "f").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
    assert_eq!(writes(), 6);
    ask(&ledgers, &key, "f").await.unwrap_err();
    assert_eq!(writes(), 6, "once");
}

#[tokio::test]
async fn forgotten_claims_are_written_back_without_an_ask() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    for pod in ["a", "b"] {
        ask(&ledgers, &key, pod).await.unwrap();
    }
    forgotten(&ledgers, &key);
    ledgers.queues.lock().clear();
    ledgers.restore_claims(&key);
    while ledgers.queues.lock()[&key].lock().is_running() {
        tokio::task::yield_now().await;
    }
    assert_eq!(ledgers.counters.writes.load(Ordering::Relaxed), 3);
}

/// Simulates a foreign CustomResourceDefinition that drops the ledger: the ledger vanishes with the next write of the
/// object.
fn drop_ledger(store: &InMemoryStore, key: &RuleKey) {
    let mut rules = store.rules.lock();
    let stored = rules.get_mut(key).unwrap();
    stored.version += 7;
    (stored.claims, stored.held) = (Arc::default(), 0);
}

#[tokio::test]
async fn claims_of_a_ledger_that_has_vanished_count() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule_of("web", 1);
    ask(&ledgers, &key, "a").await.unwrap();
    drop_ledger(ledgers.store(), &key);
    let full = ask(&ledgers, &key, "b").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
    // The next write stores the claims again.
    ask(&ledgers, &key, "a").await.unwrap();
    let stored = ledgers.store().cached_snapshot(&key).unwrap();
    assert!(stored.claims.has_claim(&"a".into()));
    assert_eq!(stored.claims.attempts, 2, "no number is used again");
}

#[tokio::test]
async fn claims_of_a_ledger_that_vanishes_under_a_write_count() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule_of("web", 2);
    ask(&ledgers, &key, "a").await.unwrap();
    let (reached, on) = ledgers.store().pause_next_write();
    let dropping = async {
        reached.notified().await; // the second claim is being written
        drop_ledger(ledgers.store(), &key);
        on.notify_one();
    };
    let (second, ()) = tokio::join!(ask(&ledgers, &key, "b"), dropping);
    second.unwrap();
    let full = ask(&ledgers, &key, "c").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
}

#[tokio::test]
async fn commands_behind_panicked_batch_are_served() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let (reached, on) = ledgers.store().pause_next_write();
    ledgers.store().will([Mishap::Panic]);
    let behind = async {
        reached.notified().await;
        let waiting = ask(&ledgers, &key, "b");
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        on.notify_one();
        waiting.await
    };
    let (first, second) = tokio::join!(ask(&ledgers, &key, "a"), behind);
    assert!(is_internal(&first), "{first:?}");
    assert!(matches!(second, Ok(ClaimAnswer::Granted(_))), "{second:?}");
}

#[tokio::test]
async fn release_counts_once_whatever_conflicts_its_write_meets() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let Ok(ClaimAnswer::Granted(grant)) = ask(&ledgers, &key, "a").await else {
        panic!("ten Pods, five may go")
    };
    ledgers.store().will([Mishap::Conflict, Mishap::Conflict]);
    let evidence = Evidence {
        pod: "a".into(),
        operation: ClaimOperation::Delete,
        attempt: grant.attempt,
        based_on: 8,
        position: 100,
        lapsed: true,
    };
    ledgers.release_claim(&key, evidence);
    ask(&ledgers, &key, "b").await.unwrap(); // in the same batch or a later one
    let claims = ledgers.latest_snapshot(&key).unwrap().claims;
    assert!(!claims.has_claim(&"a".into()));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    assert_eq!(count(&ledgers.counters.conflicts), 2);
    assert_eq!(count(&ledgers.counters.released), 1);
    assert_eq!(count(&ledgers.counters.lapsed), 1);
}

fn gone(pod: &str, attempt: u64) -> Evidence {
    Evidence {
        pod: pod.into(),
        operation: ClaimOperation::Delete,
        attempt,
        based_on: 8,
        position: 100,
        lapsed: false,
    }
}

async fn granted(ledgers: &Arc<Ledgers<InMemoryStore>>, key: &RuleKey, pod: &str) -> u64 {
    match ask(ledgers, key, pod).await {
        Ok(ClaimAnswer::Granted(grant)) => grant.attempt,
        other => panic!("ten Pods, five may go: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn deferred_releases_are_written_with_next_claim() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let attempt = granted(&ledgers, &key, "a").await;
    let writes = || ledgers.counters.writes.load(Ordering::Relaxed);
    let holds = |pod: &str| {
        ledgers
            .latest_snapshot(&key)
            .unwrap()
            .claims
            .has_claim(&pod.into())
    };
    ledgers.defer_releases(&key, vec![gone("a", attempt)]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!((writes(), holds("a")), (1, true));
    let attempt = granted(&ledgers, &key, "b").await;
    assert_eq!((writes(), holds("a"), holds("b")), (2, false, true));

    // Deferred releases expire.
    ledgers.defer_releases(&key, vec![gone("b", attempt)]);
    tokio::time::sleep(Duration::from_secs(2)).await;
    granted(&ledgers, &key, "c").await;
    assert_eq!((writes(), holds("b")), (3, true));
    ledgers.defer_releases(&key, vec![gone("b", attempt)]);
    ledgers.defer_releases(&key, Vec::new());
    granted(&ledgers, &key, "d").await;
    assert!(holds("b"), "it was taken back");
}

#[tokio::test]
async fn bypass_writes_claim_beyond_the_budget() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    for pod in ["a", "b", "c", "d", "e"] {
        ask(&ledgers, &key, pod).await.unwrap();
    }
    let full = ask(&ledgers, &key, "f").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
    let mut disruption = delete("f");
    disruption.bypassed_rules.insert("other".into());
    let deadline = Instant::now() + Duration::from_secs(30);
    let other = ledgers.send_claim(&key, disruption.clone(), deadline).await;
    assert_eq!(other.unwrap_err(), full, "another rule is not this one");
    disruption.bypassed_rules.insert("web".into());
    let dry = ledgers.claim_rules(vec![key.clone()], &disruption, true, deadline);
    assert_eq!(dry.await, Ok(Vec::new()));
    assert!(
        !ledgers
            .latest_snapshot(&key)
            .unwrap()
            .claims
            .has_claim(&"f".into())
    );
    let given = ledgers.claim_rules(vec![key.clone()], &disruption, false, deadline);
    assert_eq!(given.await.unwrap().len(), 1);
    assert!(
        ledgers
            .latest_snapshot(&key)
            .unwrap()
            .claims
            .has_claim(&"f".into())
    );
}

/// A view of ten Pods, nine of them available.
struct NineUp;

impl BudgetView<Uid> for NineUp {
    fn position(&self) -> u64 {
        100
    }
    fn expected(&self) -> u32 {
        10
    }
    fn available(&self) -> u32 {
        9
    }
    fn is_available(&self, pod: &Uid) -> bool {
        &**pod != "down"
    }
}

/// A view of ten Pods, all of them available.
struct AllUp;

impl BudgetView<Uid> for AllUp {
    fn available(&self) -> u32 {
        10
    }
    fn position(&self) -> u64 {
        NineUp.position()
    }
    fn expected(&self) -> u32 {
        NineUp.expected()
    }
    fn is_available(&self, _: &Uid) -> bool {
        true
    }
}

proptest! {
    /// An unavailable Pod may go if and only if each rule that holds such Pods finds enough other Pods available. The
    /// other rules do not matter.
    #[test]
    fn unavailable_pod_is_held_by_strict_rules_only(
        limits in proptest::collection::vec((0..=10u32, any::<bool>()), 0..5),
        claimed in 0..=9usize,
        phase in proptest::sample::select(vec!["Running", "Pending", ""]),
    ) {
        let rules: Vec<_> = limits.iter().enumerate().map(|(i, (max, strict))| {
            let policy = if *strict { "IfHealthyBudget" } else { "AlwaysAllow" };
            json!({ "name": format!("r{i}"), "availablePolicy": {
                "maxUnavailableValue": max, "unhealthyPodPolicy": policy,
            }})
        }).collect();
        let object = json!({
            "metadata": { "name": "web", "namespace": "n" }, "spec": { "selector": {}, "rules": rules },
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        });
        let rules = RuleSet::compile(&serde_json::from_value(object).unwrap());
        let mut claims = Claims::default();
        for n in 0..claimed {
            let asked = delete(&format!("p{n}"));
            let request = ClaimRequest {
                pod: format!("p{n}").as_str().into(),
                operation: ClaimOperation::Delete,
                at: 1,
                detail: asked.detail,
            };
            claims.admit_claim(&NineUp, 0, request).unwrap();
        }
        let mut pod = (*delete("down").pod).clone();
        pod.status.phase = phase.to_owned();
        let before = claims.clone();
        let answer = decide::admit_unavailable(&NineUp, &rules, &claims, &pod);
        let left = 9 - u32::try_from(claimed).unwrap();
        let enough = limits.iter().all(|(max, strict)| !strict || left >= 10 - max);
        prop_assert_eq!(answer.is_ok(), phase == "Pending" || enough);
        prop_assert_eq!(claims, before);
    }
}

#[test]
fn unavailable_pod_is_held_by_unreadable_rule() {
    let object = |rules: serde_json::Value| {
        let object = json!({
            "metadata": { "name": "web", "namespace": "n" }, "spec": { "selector": {}, "rules": rules },
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        });
        RuleSet::compile(&serde_json::from_value(object).unwrap())
    };
    let mut pod = (*delete("down").pod).clone();
    pod.status.phase = "Running".to_owned();
    for odd in [
        json!([{ "name": "a", "availablePolicy": "balanced" }]),
        json!([{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1, "unhealthyPodPolicy": "Newer" } }]),
    ] {
        let rules = object(odd.clone());
        assert!(rules.may_hold_unavailable(), "{odd}");
        let answer = decide::admit_unavailable(&NineUp, &rules, &Claims::default(), &pod);
        assert!(
            matches!(answer.unwrap_err().why, DenyReason::Broken(_)),
            "{odd}"
        );
    }
}

#[tokio::test]
async fn rule_of_another_uid_holds_until_the_cache_has_it() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let (reached, on) = ledgers.store().pause_next_write();
    let replace = async {
        reached.notified().await; // the claim is being written
        ledgers.store().replace(&key);
        on.notify_one();
    };
    let (answer, ()) = tokio::join!(ask(&ledgers, &key, "a"), replace);
    assert_eq!(answer.unwrap_err().why, DenyReason::Behind);
    // The watch has delivered the new rule, but this request still names the old one.
    let deadline = Instant::now() + Duration::from_secs(30);
    let dry = ledgers.preview_claim(&key, &delete("a"));
    assert_eq!(dry.unwrap_err().why, DenyReason::Behind);
    let pod = delete("a").pod;
    let down = ledgers.admit_unavailable(std::slice::from_ref(&key), &pod, deadline);
    assert_eq!(down.await.unwrap_err().why, DenyReason::Behind);
    let answer = ask(&ledgers, &key, "a").await;
    assert_eq!(answer.unwrap_err().why, DenyReason::Behind);
}

#[tokio::test]
async fn closing_claim_denies_with_end_time_without_write() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let Ok(ClaimAnswer::Granted(grant)) = ask(&ledgers, &key, "a").await else {
        panic!("ten Pods, five may go")
    };
    ledgers.close_claim(&key, "a".into(), ClaimOperation::Delete, grant.attempt);
    ask(&ledgers, &key, "b").await.unwrap(); // in the same batch or a later one
    let version = ledgers.latest_snapshot(&key).unwrap().version;
    let until = Timestamp::UNIX_EPOCH + LAPSE_MARGIN;
    let refused = ask(&ledgers, &key, "a").await.unwrap_err();
    assert_eq!(refused.why, DenyReason::Closing { until });
    assert_eq!(ledgers.latest_snapshot(&key).unwrap().version, version);
}

/// A request for the Pod `a` uses the whole budget, is denied because its claim is closing, and loses the claim.
async fn doomed(operation: ClaimOperation) -> (Arc<Ledgers<InMemoryStore>>, RuleKey) {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule_of("web", 1);
    let doomed = Disruption {
        operation,
        ..delete("a")
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    let Ok(ClaimAnswer::Granted(grant)) = ledgers.send_claim(&key, doomed.clone(), deadline).await
    else {
        panic!("one Pod may go")
    };
    ledgers.close_claim(&key, "a".into(), operation, grant.attempt);
    let refused = ledgers.send_claim(&key, doomed, deadline).await;
    assert!(matches!(
        refused.unwrap_err().why,
        DenyReason::Closing { .. }
    ));
    let evidence = Evidence {
        pod: "a".into(),
        operation,
        attempt: grant.attempt,
        based_on: 1,
        position: 100,
        lapsed: false,
    };
    ledgers.release_claim(&key, evidence);
    (ledgers, key)
}

#[tokio::test(start_paused = true)]
async fn ineffective_request_cools_down_before_last_budget_slot() {
    let (ledgers, key) = doomed(ClaimOperation::Delete).await;
    let refused = ask(&ledgers, &key, "a").await.unwrap_err();
    assert!(
        matches!(refused.why, DenyReason::Resting { .. }),
        "{refused:?}"
    );
    let dry = ledgers.preview_claim(&key, &delete("a")).unwrap_err();
    assert!(matches!(dry.why, DenyReason::Resting { .. }), "{dry:?}");
    ask(&ledgers, &key, "b").await.unwrap();
    // Resting is not the reason if the budget is used up.
    let refused = ask(&ledgers, &key, "a").await.unwrap_err();
    assert!(
        matches!(refused.why, DenyReason::Full { .. }),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn request_after_cooldown_may_claim_last_slot() {
    let (ledgers, key) = doomed(ClaimOperation::Delete).await;
    let refused = ask(&ledgers, &key, "a").await.unwrap_err();
    assert!(
        matches!(refused.why, DenyReason::Resting { .. }),
        "{refused:?}"
    );
    tokio::time::advance(cooldown::COOLDOWN).await;
    ask(&ledgers, &key, "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cooldown_is_per_operation_and_skips_begins() {
    let (ledgers, key) = doomed(ClaimOperation::Evict).await;
    ask(&ledgers, &key, "a").await.unwrap();
    let (ledgers, key) = doomed(ClaimOperation::Begin).await;
    let begin = Disruption {
        operation: ClaimOperation::Begin,
        ..delete("a")
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    ledgers.send_claim(&key, begin, deadline).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn bypassing_user_has_no_cooldown() {
    let (ledgers, key) = doomed(ClaimOperation::Delete).await;
    let bypass = Disruption {
        bypassed_rules: [key.name.clone()].into(),
        ..delete("a")
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    ledgers.send_claim(&key, bypass, deadline).await.unwrap();
}

fn queue_names(ledgers: &Ledgers<InMemoryStore>) -> Vec<String> {
    let mut names: Vec<_> = ledgers
        .queues
        .lock()
        .keys()
        .map(|k| k.name.clone())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn queues_of_deleted_rules_are_dropped_unless_in_use() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let [idle, busy, kept, new] = ["idle", "busy", "kept", "new"].map(|n| ledgers.store().rule(n));
    for key in [&idle, &busy, &kept] {
        ask(&ledgers, key, "a").await.unwrap();
    }
    let (reached, on) = ledgers.store().pause_next_write();
    let others = async {
        reached.notified().await; // "busy" is being written
        for gone in [&idle, &busy] {
            ledgers.store().rules.lock().remove(gone);
        }
        ask(&ledgers, &new, "a").await.unwrap();
        assert_eq!(queue_names(&ledgers), ["busy", "kept", "new"]);
        on.notify_one();
    };
    let (answer, ()) = tokio::join!(ask(&ledgers, &busy, "b"), others);
    assert_eq!(answer, Ok(ClaimAnswer::Gone), "the rule is gone");
}

#[tokio::test]
async fn first_claim_waits_for_cache_and_stores_position() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    *ledgers.store().present.lock() = 90;
    for pod in ["a", "b"] {
        let answer = ask(&ledgers, &key, pod).await;
        assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "{answer:?}");
    }
    let stored = ledgers.store().cached_snapshot(&key).unwrap();
    assert_eq!(stored.claims.watermark, 90);
    assert_eq!(*ledgers.store().awaited.lock(), [90, 90]);
    assert_eq!(ledgers.store().lists.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn rule_that_refuses_all_reads_the_position_once() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    *ledgers.store().present.lock() = 200; // above the position of the cache, so the claim is denied as `Behind`
    for pod in ["a", "b"] {
        let answer = ask(&ledgers, &key, pod).await;
        let why = answer.map_err(|denied| denied.why);
        assert!(matches!(why, Err(DenyReason::Behind)), "{why:?}");
    }
    assert_eq!(ledgers.store().lists.load(Ordering::Relaxed), 1);
    assert_eq!(ledgers.store().cached_snapshot(&key).unwrap().version, 1);
}

#[tokio::test]
async fn emptied_ledger_begins_at_the_position_of_that_moment() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let store = ledgers.store();
    *store.present.lock() = 40;
    let key = store.rule_of("web", 0);
    let full = ask(&ledgers, &key, "a").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
    // Other replicas admit by this ledger until somebody empties it. This replica decides nothing in this time.
    *store.present.lock() = 90;
    store.rule_of("web", 5);
    store.rules.lock().get_mut(&key).unwrap().version = 9;
    ask(&ledgers, &key, "a").await.unwrap();
    assert_eq!(store.cached_snapshot(&key).unwrap().claims.watermark, 90);
    assert_eq!(store.lists.load(Ordering::Relaxed), 2);
}

/// Three of ten Pods have claims with so many containers that a fourth such claim does not fit.
#[tokio::test]
async fn full_ledger_denies_new_claims_and_renews_existing() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let container = ContainerBefore {
        name: "c".repeat(63),
        run: "containerd://1".into(),
        image: None,
        by_resources: false,
    };
    let mut disruption = delete("a");
    disruption.detail.containers = vec![container; 1_200];
    let each = super::claim_bytes("a", &disruption.detail);
    assert!(
        each * 3 < MAX_LEDGER_BYTES && each * 4 > MAX_LEDGER_BYTES,
        "{each}"
    );
    let claim = async |pod: &str| {
        let disruption = Disruption {
            pod: delete(pod).pod,
            ..disruption.clone()
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        ledgers.send_claim(&key, disruption, deadline).await
    };
    for pod in ["a", "b", "c"] {
        claim(pod).await.unwrap();
    }
    assert_eq!(
        claim("d").await.unwrap_err().why,
        DenyReason::Crowded { claims: 3 }
    );
    claim("a").await.unwrap();
    ask(&ledgers, &key, "small").await.unwrap();
}

/// A resize, to `memory` bytes, of a Pod that an operation has taken off traffic. The container of the Pod runs under
/// the ID `run`, and is ready or not. The kubelet has finished the former resize.
fn resize(run: &str, ready: bool, memory: u64) -> Disruption {
    let resources = json!({ "requests": { "memory": "1" } });
    let pod = json!({
        "metadata": { "namespace": "n", "name": "a", "uid": "a", "resourceVersion": "7", "generation": 1,
                      "labels": { (keys::CONTROL): keys::CONTROL_VALUE } },
        "spec": { "containers": [{
            "name": "main", "image": "a:1", "resources": resources,
            "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
        }] },
        "status": { "observedGeneration": 1, "containerStatuses": [{
            "name": "main", "ready": ready, "containerID": run, "imageID": "new", "image": "a:1", "resources": resources,
        }] },
    });
    let mut resize = delete("a");
    resize.pod = Arc::new(serde_json::from_value(pod).unwrap());
    resize.operation = ClaimOperation::InPlace;
    resize.bypassed_rules = ["web".to_owned()].into();
    resize.detail.target = Some(memory.to_string());
    resize.detail.containers = vec![ContainerBefore {
        name: "main".into(),
        run: run.into(),
        image: None,
        by_resources: false,
    }];
    resize
}

/// The decision of a rule object that selects all Pods.
fn admit(claims: &mut Claims, disruption: &Disruption) -> Result<ClaimAnswer, Denied> {
    let object = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
        "metadata": { "name": "web", "namespace": "n" },
        "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
    });
    let rules = RuleSet::compile(&serde_json::from_value(object).unwrap());
    decide::decide_claim(&AllUp, &rules, claims, disruption, None)
}

/// Asks three times for each resize, and closes the claim each time. The leader closes a claim like this one request
/// timeout after it was renewed.
fn ask_and_close(claims: &mut Claims, resizes: impl Iterator<Item = Disruption>) {
    for next in resizes {
        for _ in 0..3 {
            let ClaimAnswer::Granted(grant) = admit(claims, &next).unwrap() else {
                panic!("the rule holds the Pod")
            };
            assert!(
                !grant.fresh,
                "the Pod keeps its place whatever another rule says"
            );
            let (pod, opened) = ("a".into(), claims.claims.values().next().unwrap().opened);
            assert!(claims.close_claim(&pod, ClaimOperation::InPlace, opened));
        }
        let claim = claims.claims.values().next().unwrap();
        assert_eq!(claim.detail.target, next.detail.target);
        assert!(claim.detail.containers[0].by_resources);
    }
}

#[test]
fn operating_pod_can_be_resized_again() {
    for ready in [true, false] {
        let mut claims = Claims::default();
        admit(&mut claims, &resize("run-1", true, 2)).unwrap();
        let next = |memory| resize(&format!("run-{}", memory - 1), ready, memory);
        ask_and_close(&mut claims, (3..6).map(next));
    }
}

/// One container has a limit of its own, and the other container inherits the limit of the Pod.
#[test]
fn operating_pod_with_inherited_limit_can_be_resized_again() {
    let mut claims = Claims::default();
    let next = |memory| {
        let mut next = resize("run", true, memory);
        let mut pod = (*next.pod).clone();
        pod.spec.resources = json!({ "limits": { "memory": "9" } }).into();
        let resources = json!({ "limits": { "memory": "1" } });
        let mut side = pod.spec.containers[0].clone();
        side.name = "side".into();
        pod.spec.containers.push(side);
        pod.spec.containers[0].resources = resources.clone();
        pod.status.container_statuses[0].resources = Resources::from_resources(&resources);
        next.pod = Arc::new(pod);
        next
    };
    admit(&mut claims, &next(2)).unwrap();
    ask_and_close(&mut claims, (3..6).map(next));
}

/// As [`resize`] to `memory` bytes, but the kubelet has deferred the former resize, to 2 bytes.
fn after_deferred(memory: u64, is_bypassed: bool) -> Disruption {
    let mut next = resize("run-1", true, memory);
    let mut pod = (*next.pod).clone();
    pod.spec.containers[0].resources = json!({ "requests": { "memory": "2" } });
    pod.status.conditions.push(PodCondition {
        type_: RESIZE_PENDING.into(),
        status: "True".into(),
        reason: "Deferred".into(),
        observed_generation: 1,
        ..PodCondition::default()
    });
    next.pod = Arc::new(pod);
    next.bypassed_rules.retain(|_| is_bypassed);
    next
}

/// The disruption with a changed Pod.
fn with_pod(mut disruption: Disruption, change: impl FnOnce(&mut Pod)) -> Disruption {
    let mut pod = (*disruption.pod).clone();
    change(&mut pod);
    disruption.pod = Arc::new(pod);
    disruption
}

/// A change that is sent forever, and is refused after the admission, must not keep a claim that the deferred resize
/// does not need.
#[test]
fn endlessly_repeated_change_beside_deferred_resize_ends() {
    let mut image = after_deferred(2, false);
    image.detail.containers[0].image = Some(1);
    let of_cpu = |pod: &mut Pod| {
        pod.spec.containers[0].resources = json!({ "requests": { "memory": "1", "cpu": "9" } });
    };
    for change in [image, with_pod(after_deferred(3, false), of_cpu)] {
        let mut claims = Claims::default();
        admit(&mut claims, &change).unwrap();
        admit(&mut claims, &change).unwrap();
        let claim = claims.claims.values().next().unwrap();
        assert!(
            !claim.detail.containers[0].by_resources,
            "as if it were written"
        );
        let opened = claim.opened;
        assert!(claims.close_claim(&"a".into(), ClaimOperation::InPlace, opened));
        let why = admit(&mut claims, &change).unwrap_err().why;
        assert!(matches!(why, DenyReason::Closing { .. }), "{why:?}");
    }
}

/// The earlier resize has no claim, for example because the rule was created later. On Kubernetes 1.33, only the
/// resources in force tell the two restarts apart.
#[test]
fn restart_of_unclaimed_resize_does_not_release_next_resize() {
    let mut claims = Claims::default();
    let next = with_pod(after_deferred(3, false), |pod| {
        pod.status.observed_generation = 0;
        pod.status.conditions[0].observed_generation = 0;
    });
    admit(&mut claims, &next).unwrap();
    let claim = claims.claims.values().next().unwrap();
    let made = with_pod(next, |pod| {
        pod.spec.containers[0].resources = json!({ "requests": { "memory": "3" } });
        pod.status.conditions.clear();
        let status = &mut pod.status.container_statuses[0];
        status.container_id = "run-2".into();
        status.resources = Resources::from_resources(&json!({ "requests": { "memory": "2" } }));
    });
    let restart = inplace::restart_progress_of(&made.pod, &claim.detail.containers);
    assert_eq!(restart, inplace::RestartProgress::Awaited);
}

/// The Pod is off traffic or on traffic.
#[test]
fn deferred_resize_can_be_reverted() {
    for is_bypassed in [true, false] {
        let mut claims = Claims::default();
        let mut first = with_pod(resize("run-1", true, 2), |pod| {
            pod.metadata.resource_version = 6
        });
        first.bypassed_rules.retain(|_| is_bypassed);
        admit(&mut claims, &first).unwrap();
        ask_and_close(
            &mut claims,
            (3..6).map(|memory| after_deferred(memory, is_bypassed)),
        );
    }
}

#[test]
fn irreplaceable_claim_is_unchanged_by_deferred_resize() {
    let mut change = resize("run-1", true, 2);
    change.detail.containers[0].image = Some(1);
    let later = with_pod(resize("run-1", true, 2), |pod| {
        pod.metadata.resource_version = 9
    });
    for (change, why) in [
        (change, DenyReason::UnderWay),
        (
            later,
            DenyReason::Closing {
                until: Timestamp::UNIX_EPOCH + LAPSE_MARGIN,
            },
        ),
    ] {
        let mut claims = Claims::default();
        admit(&mut claims, &change).unwrap();
        if why != DenyReason::UnderWay {
            assert!(claims.close_claim(&"a".into(), ClaimOperation::InPlace, 1));
        }
        let before = claims.clone();
        for is_bypassed in [true, false] {
            let denied = admit(&mut claims, &after_deferred(3, is_bypassed)).unwrap_err();
            assert_eq!(denied.why, why);
            assert_eq!(claims, before);
        }
    }
}

#[test]
fn operating_pod_can_be_resized_after_running_new_image() {
    let run = resize("run-2", true, 3);
    let same = inplace::image_digest(&run.pod.status.container_statuses[0]);
    for (image, passes) in [(1, true), (same, false)] {
        let mut claims = Claims::default();
        let mut change = resize("run-1", true, 2);
        change.detail.containers[0].image = Some(image);
        admit(&mut claims, &change).unwrap();
        let next = admit(&mut claims, &run);
        assert_eq!(next.is_ok(), passes, "{next:?}");
    }
}

#[tokio::test]
async fn deleted_or_changed_rule_gives_no_final_answer() {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    let generation = ledgers
        .store()
        .cached_snapshot(&key)
        .unwrap()
        .rules
        .generation;
    let known = |generation: i64| Disruption {
        generations: [(key.name.clone(), generation)].into(),
        ..delete("a")
    };
    let claim = async |disruption: Disruption, dry_run: bool| {
        let deadline = Instant::now() + Duration::from_secs(1);
        let keys = vec![key.clone()];
        let claimed = ledgers
            .claim_rules(keys, &disruption, dry_run, deadline)
            .await;
        claimed.map_err(|denied| denied.why)
    };
    // A Pod that the object does not hold, looked up by the given generation.
    let free = |generation: i64| {
        let object = json!({ "metadata": { "namespace": "n", "name": "free", "uid": "free", "resourceVersion": "7" } });
        Disruption {
            pod: Arc::new(serde_json::from_value(object).unwrap()),
            ..known(generation)
        }
    };
    for dry_run in [true, false] {
        assert_eq!(claim(free(generation), dry_run).await, Ok(Vec::new()));
        let changed = claim(free(generation - 1), dry_run).await;
        assert_eq!(changed, Err(DenyReason::Changed));
    }
    // A claim from an object that has changed, or that was missing at the lookup, is no final answer either.
    let unknown = Disruption {
        generations: [("other".to_owned(), 1)].into(),
        ..delete("a")
    };
    for dry_run in [true, false] {
        for held in [known(generation - 1), unknown.clone()] {
            assert_eq!(claim(held, dry_run).await, Err(DenyReason::Changed));
        }
    }
    assert!(
        ledgers
            .latest_snapshot(&key)
            .unwrap()
            .claims
            .claims
            .is_empty()
    );
    ledgers.store().rules.lock().remove(&key);
    for dry_run in [true, false] {
        let gone = claim(known(generation), dry_run).await;
        assert_eq!(gone, Err(DenyReason::Changed));
    }
}
