//! Tests with ledgers that name versions above every Pod, with ledgers that have a fault, and with an etcd that was
//! restored.

use super::*;
use crate::ledger::protocol::{Claim, Ledger};

/// Adds a rule with the stored ledger `claims`. The position of the Pods in etcd is 50.
fn with_ledger(claims: Claims) -> (Arc<Ledgers<InMemoryStore>>, RuleKey) {
    let ledgers = Ledgers::new(Arc::<InMemoryStore>::default());
    let key = ledgers.store().rule("web");
    *ledgers.store().present.lock() = 50;
    let mut rules = ledgers.store().rules.lock();
    rules.get_mut(&key).unwrap().claims = Arc::new(claims);
    drop(rules);
    (ledgers, key)
}

fn claim(at: u64) -> Claim<ClaimDetail> {
    Claim {
        at,
        attempt: 1,
        opened: 1,
        closing: false,
        detail: delete("x").detail,
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn forged_watermark_is_repaired_by_first_claim() {
    let forged = Ledger {
        watermark: u64::MAX,
        ..Ledger::default()
    };
    let (ledgers, key) = with_ledger(forged);
    let began = Instant::now();
    let answer = ask(&ledgers, &key, "a").await;
    assert!(matches!(answer, Ok(ClaimAnswer::Granted(_))), "{answer:?}");
    assert!(began.elapsed() < Duration::from_secs(1));
    let stored = ledgers.store().cached_snapshot(&key).unwrap();
    assert_eq!(stored.claims.watermark, 50);
    assert_eq!(count(&ledgers.counters.mended), 1);
    // From then on the watermark is not in doubt.
    ask(&ledgers, &key, "b").await.unwrap();
    assert_eq!(count(&ledgers.store().lists), 1);
}

#[tokio::test(start_paused = true)]
async fn refusal_by_a_forged_watermark_sets_the_ledger_right() {
    let pods = ["a", "b", "c", "d", "e"];
    let claims = pods.map(|pod| ((Uid::from(pod), ClaimOperation::Delete), claim(7)));
    let forged = Ledger {
        claims: claims.into(),
        watermark: u64::MAX,
        attempts: 1,
    };
    let (ledgers, key) = with_ledger(forged);
    let full = ask(&ledgers, &key, "f").await.unwrap_err();
    assert!(matches!(full.why, DenyReason::Full { .. }), "{full:?}");
    let stored = ledgers.store().cached_snapshot(&key).unwrap().claims;
    assert_eq!((stored.watermark, stored.claims.len()), (50, 5));
}

#[tokio::test(start_paused = true)]
async fn repair_lowers_versions_of_claims_and_keeps_them() {
    let key = |pod: &str| (Uid::from(pod), ClaimOperation::Delete);
    let forged = Ledger {
        claims: [(key("a"), claim(u64::MAX)), (key("b"), claim(7))].into(),
        watermark: 9,
        attempts: 1,
    };
    let (ledgers, rule) = with_ledger(forged);
    ledgers.repair_versions(&rule);
    ask(&ledgers, &rule, "c").await.unwrap(); // in the same batch or a later one
    let stored = ledgers.store().cached_snapshot(&rule).unwrap().claims;
    let at = |pod| stored.claims[&key(pod)].at;
    assert_eq!((at("a"), at("b"), stored.watermark), (50, 7, 9));
}

#[tokio::test(start_paused = true)]
async fn watermark_that_the_cluster_has_reached_is_waited_for() {
    let ahead = Ledger {
        watermark: 2000,
        ..Ledger::default()
    };
    let (ledgers, key) = with_ledger(ahead);
    *ledgers.store().present.lock() = 3000;
    let answer = ask(&ledgers, &key, "a").await;
    assert_eq!(answer.unwrap_err().why, DenyReason::Behind);
    assert_eq!(
        ledgers
            .store()
            .cached_snapshot(&key)
            .unwrap()
            .claims
            .watermark,
        2000
    );
    assert_eq!(count(&ledgers.counters.mended), 0);
}

#[tokio::test]
async fn faulty_ledger_denies_and_is_not_written() {
    let mine = [((Uid::from("a"), ClaimOperation::Delete), claim(7))];
    let (ledgers, key) = with_ledger(Ledger {
        claims: mine.into(),
        watermark: 9,
        attempts: 1,
    });
    let set = |fault: Option<&str>| {
        let mut rules = ledgers.store().rules.lock();
        rules.get_mut(&key).unwrap().fault = fault.map(Arc::from);
    };
    set(Some("it is newer"));
    let why = DenyReason::Unusable("it is newer".to_owned());
    assert_eq!(ask(&ledgers, &key, "b").await.unwrap_err().why, why);
    let deadline = Instant::now() + Duration::from_secs(30);
    let asked = delete("b");
    let dry = ledgers.claim_rules(vec![key.clone()], &asked, true, deadline);
    assert_eq!(dry.await.unwrap_err().why, why);
    let rules = [key.clone()];
    let down = ledgers.admit_unavailable(&rules, &asked.pod, deadline);
    assert_eq!(down.await.unwrap_err().why, why);
    let evidence = Evidence {
        pod: "a".into(),
        operation: ClaimOperation::Delete,
        attempt: 1,
        based_on: 10,
        position: 100,
        lapsed: false,
    };
    ledgers.release_claim(&key, evidence);
    assert_eq!(ask(&ledgers, &key, "b").await.unwrap_err().why, why);
    assert_eq!(count(&ledgers.counters.writes), 0);
    set(None);
    ask(&ledgers, &key, "b").await.unwrap();
    assert!(
        ledgers
            .latest_snapshot(&key)
            .unwrap()
            .claims
            .has_claim(&"a".into())
    );
}

fn is_lost<T: std::fmt::Debug>(answer: Result<T, Denied>) -> bool {
    matches!(answer.unwrap_err().why, DenyReason::Unreachable(why) if why == "90 > 50")
}

#[tokio::test]
async fn stale_cache_after_etcd_restore_decides_nothing() {
    let (ledgers, key) = with_ledger(Ledger::default());
    *ledgers.store().position.lock() = 90;
    *ledgers.store().is_cut_off.lock() = true;
    assert!(matches!(
        ask(&ledgers, &key, "a").await.unwrap_err().why,
        DenyReason::Behind
    ));
    let history = ledgers.verify_history("n").await;
    assert!(matches!(history, Err(DenyReason::Unreachable(why)) if why == "90 > 50"));
    *ledgers.store().is_cut_off.lock() = false;
    assert!(is_lost(ask(&ledgers, &key, "a").await));
    assert_eq!(count(&ledgers.counters.writes), 0);
}

#[tokio::test(start_paused = true)]
async fn claims_wait_for_disconnected_watch_then_are_denied() {
    let (ledgers, key) = with_ledger(Ledger::default());
    *ledgers.store().position.lock() = 50;
    *ledgers.store().is_cut_off.lock() = true;
    ledgers.store().rules.lock().get_mut(&key).unwrap().version = 60;
    assert!(matches!(
        ask(&ledgers, &key, "a").await.unwrap_err().why,
        DenyReason::Behind
    ));
    let back = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        *ledgers.store().is_cut_off.lock() = false;
    };
    let (asked, ()) = tokio::join!(ask(&ledgers, &key, "a"), back);
    asked.unwrap();
}

#[tokio::test]
async fn write_that_is_older_than_the_cache_admits_nothing() {
    let (ledgers, key) = with_ledger(Ledger {
        watermark: 9,
        ..Ledger::default()
    });
    *ledgers.store().position.lock() = 90;
    assert!(is_lost(ask(&ledgers, &key, "a").await));
    let deadline = Instant::now() + Duration::from_secs(30);
    let asked = delete("b");
    let dry = ledgers.claim_rules(vec![key.clone()], &asked, true, deadline);
    assert!(is_lost(dry.await));
}

#[tokio::test]
async fn writes_before_etcd_restore_do_not_override_cache() {
    let (ledgers, key) = with_ledger(Ledger::default());
    ask(&ledgers, &key, "a").await.unwrap();
    let mut restored = ledgers.store().cached_snapshot(&key).unwrap();
    (restored.version, restored.claims) = (1, Arc::default());
    let newer = |restored: &RuleSnapshot| ledgers.newer_snapshot(&key, restored);
    assert!(newer(&restored).claims.has_claim(&"a".into()));
    ledgers.store().mark_history_lost(90, 50);
    assert!(!newer(&restored).claims.has_claim(&"a".into()));
}
