use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::rules::RuleSet;
use crate::ledger::store::Uid;

fn claim(attempt: u64) -> Claim<ClaimDetail> {
    Claim {
        at: 7,
        attempt,
        opened: attempt,
        closing: false,
        detail: ClaimDetail {
            pod_name: "web".to_owned(),
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::UNIX_EPOCH,
            target: None,
            containers: Vec::new(),
            carried: None,
        },
    }
}

/// A ledger after this number of attempts. Each Pod in `pods` has a claim with the given attempt number.
fn ledger(attempts: u64, watermark: u64, pods: &[(&str, u64)]) -> Claims {
    let claims = pods.iter().map(|(pod, attempt)| {
        let key = (Uid::from(*pod), ClaimOperation::Delete);
        (key, claim(*attempt))
    });
    Claims {
        claims: claims.collect::<BTreeMap<_, _>>(),
        watermark,
        attempts,
    }
}

/// A snapshot of the rule object at this version, with this ledger.
fn at(version: u64, claims: Option<Claims>) -> RuleSnapshot {
    let object =
        json!({ "metadata": { "name": "web", "uid": "rule" }, "spec": { "selector": {} } });
    let object: PodTransitionRule = serde_json::from_value(object).unwrap_or_default();
    RuleSnapshot {
        version,
        rules: Arc::new(RuleSet::compile(&object)),
        held: if claims.is_some() { version } else { 0 },
        claims: Arc::new(claims.unwrap_or_default()),
        forgotten: None,
        fault: None,
    }
}

/// The Pods with claims, whether the claims must be written back, and the number of attempts.
fn seen(snapshot: &RuleSnapshot) -> (Vec<String>, bool, u64) {
    let pods = snapshot.claims.claimed_pods().map(ToString::to_string);
    (
        pods.collect(),
        snapshot.needs_write_back(),
        snapshot.claims.attempts,
    )
}

fn pods(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn claims_missing_in_new_ledger_count_until_written_back() {
    let remembered = at(5, Some(ledger(9, 4, &[("a", 8), ("b", 9)])));
    let dropped = at(6, None).merge_remembered_claims(&remembered);
    assert_eq!(seen(&dropped), (pods(&["a", "b"]), true, 9));
    // Another writer has begun a ledger without these claims.
    let begun = at(7, Some(ledger(1, 6, &[("c", 1)]))).merge_remembered_claims(&dropped);
    assert_eq!(seen(&begun), (pods(&["a", "b", "c"]), true, 10));
    assert_eq!(begun.claims.watermark, 6);
    // Changes of the new ledger itself count: the claim of c was released there.
    let on = at(8, Some(ledger(2, 7, &[("d", 2)]))).merge_remembered_claims(&begun);
    assert_eq!(seen(&on), (pods(&["a", "b", "d"]), true, 10));
    // The claims are written back, and released later.
    let back = at(9, Some(Claims::clone(&on.claims))).merge_remembered_claims(&on);
    assert_eq!(seen(&back), (pods(&["a", "b", "d"]), false, 10));
    let released = at(10, Some(ledger(10, 8, &[]))).merge_remembered_claims(&back);
    assert_eq!(seen(&released), (pods(&[]), false, 10));
    assert_eq!(
        seen(&at(11, Some(ledger(10, 8, &[]))).merge_remembered_claims(&on)).0,
        pods(&[])
    );
}

#[test]
fn released_claims_do_not_come_back() {
    let held = at(5, Some(ledger(9, 4, &[("a", 9)])));
    let released = at(6, Some(ledger(9, 5, &[]))).merge_remembered_claims(&held);
    assert_eq!(seen(&released), (pods(&[]), false, 9));
    // A snapshot that is older than the known one.
    let late = at(4, Some(ledger(8, 3, &[("b", 8)]))).merge_remembered_claims(&released);
    assert_eq!(seen(&late), (pods(&["b"]), false, 8));
}

#[test]
fn ledger_that_was_emptied_because_of_a_fault_begins_anew() {
    let held = at(5, Some(ledger(9, 4, &[("a", 9)])));
    let mut broken = at(6, Some(Claims::default())).merge_remembered_claims(&held);
    broken.fault = Some("broken".into());
    let emptied = RuleSnapshot {
        held: 7,
        ..at(7, None)
    };
    assert_eq!(
        seen(&emptied.clone().merge_remembered_claims(&broken)),
        (pods(&[]), false, 0)
    );
    // The same holds if this replica wrote the ledger before the fault.
    assert_eq!(
        seen(&emptied.merge_remembered_claims(&held)),
        (pods(&[]), false, 0)
    );
}

#[test]
fn claim_of_both_ledgers_stands_for_the_requests_of_both() {
    let key = (Uid::from("a"), ClaimOperation::Delete);
    let mut remembered = ledger(3, 4, &[("a", 1)]);
    if let Some(claim) = remembered.claims.get_mut(&key) {
        claim.at = 9;
        claim.closing = true;
    }
    let both = merge_ledgers(&ledger(1, 6, &[("a", 1)]), &remembered);
    let claim = &both.claims[&key];
    // A release or a withdrawal of one of the two claims does not end the merged claim.
    assert_eq!((claim.attempt, claim.opened, claim.at), (4, 1, 9));
    assert!(claim.closing);
}

#[test]
fn replicas_that_remember_different_claims_agree_in_the_end() {
    let one = at(5, Some(ledger(4, 3, &[("a", 4)])));
    let other = at(6, Some(ledger(9, 3, &[("b", 9)])));
    let begun = || at(8, Some(ledger(1, 7, &[])));
    let (mut one, mut other) = (
        begun().merge_remembered_claims(&one),
        begun().merge_remembered_claims(&other),
    );
    let mut writes = 0;
    for version in 9.. {
        let writer = [&one, &other].into_iter().find(|s| s.needs_write_back());
        let Some(written) = writer.map(|s| Claims::clone(&s.claims)) else {
            break;
        };
        writes += 1;
        one = at(version, Some(written.clone())).merge_remembered_claims(&one);
        other = at(version, Some(written)).merge_remembered_claims(&other);
    }
    assert_eq!(writes, 2);
    assert_eq!(one.claims, other.claims);
    assert_eq!(seen(&one).0, pods(&["a", "b"]));
}
