#![allow(clippy::unwrap_used)]
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn claims(attempts: u64, attempt: u64) -> Claims {
    let detail = ClaimDetail {
        pod_name: "web-1".into(),
        since: Timestamp::UNIX_EPOCH,
        until: Timestamp::UNIX_EPOCH,
        target: Some("digest".into()),
        containers: vec![
            ContainerBefore {
                name: "app".into(),
                run: "run-1".into(),
                image: Some(7),
                by_resources: false,
            },
            ContainerBefore {
                name: "resized".into(),
                run: "run-2".into(),
                image: None,
                by_resources: true,
            },
        ],
        carried: None,
    };
    let claim = Claim {
        at: 7,
        attempt,
        opened: attempt,
        closing: false,
        detail,
    };
    Ledger {
        claims: [((Uid::from("uid-1"), ClaimOperation::InPlace), claim)].into(),
        watermark: 9,
        attempts,
    }
}

#[test]
fn claims_are_read_as_they_were_written() {
    assert_eq!(
        claims_from_status(&claims_to_status(&claims(5, 3))),
        claims(5, 3)
    );
    assert_eq!(find_fault(&claims_to_status(&claims(5, 3))), None);
}

#[test]
fn answer_that_drops_anything_does_not_hold_the_claims() {
    let mut claims = claims(3, 3);
    for claim in claims.claims.values_mut() {
        claim.detail.since = "2026-01-01T00:00:00.123456789Z".parse().unwrap();
    }
    let whole = serde_json::to_value(claims_to_status(&claims)).unwrap();
    assert!(has_exact_claims(&stored(&whole), &claims));
    assert!(!has_exact_claims(&api::Ledger::default(), &claims));
    for path in [
        "/watermark",
        "/claims",
        "/claims/0/target",
        "/claims/0/containers",
    ] {
        let (parent, field) = path.rsplit_once('/').unwrap();
        let mut pruned = whole.clone();
        let fields = pruned.pointer_mut(parent).unwrap();
        fields.as_object_mut().unwrap().remove(field).unwrap();
        assert!(!has_exact_claims(&stored(&pruned), &claims), "{path}");
    }
}

#[test]
fn renewed_and_closing_claims_are_read_as_they_were_written() {
    let mut renewed = claims(5, 3);
    for claim in renewed.claims.values_mut() {
        (claim.opened, claim.closing) = (1, true);
    }
    assert_eq!(claims_from_status(&claims_to_status(&renewed)), renewed);
}

#[test]
fn count_of_attempts_is_never_below_claim() {
    assert_eq!(
        claims_from_status(&claims_to_status(&claims(0, 3))),
        claims(3, 3)
    );
}

/// A ledger that a newer build has written in this format: with an unknown field in each place, and with two unknown
/// operations on one Pod.
fn newer() -> Value {
    let claim = |operation: &str, version: &str| {
        json!({
            "podName": "web-1", "podUID": "uid-1", "operation": operation, "resourceVersion": version, "attempt": 3,
            "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z", "shard": { "of": [1, 2] },
        })
    };
    let mut known = claim("InPlace", "7");
    known["target"] = json!("digest");
    known["containers"] = json!([{ "name": "app", "containerID": "run-1", "imageHash": "0000000000000007", "sidecar": true }]);
    json!({
        "formatVersion": 1, "watermark": "9", "attempts": 5,
        "claims": [known, claim("Melt", "5"), claim("Teleport", "6")],
    })
}

fn stored(ledger: &Value) -> api::Ledger {
    let rule = json!({ "metadata": {}, "status": { "ledger": ledger } });
    let rule: api::PodTransitionRule = serde_json::from_value(rule).unwrap();
    rule.status.unwrap().ledger.unwrap()
}

#[test]
fn unknown_claims_and_fields_of_newer_build_are_written_back() {
    let ledger = stored(&newer());
    assert_eq!(find_fault(&ledger), None);
    let claims = claims_from_status(&ledger);
    let key = (Uid::from("uid-1"), ClaimOperation::Unknown);
    assert_eq!(claims.claims.len(), 2);
    assert_eq!(claims.claims[&key].at, 6);
    assert_eq!(
        serde_json::to_value(claims_to_status(&claims)).unwrap(),
        newer()
    );
}

#[test]
fn renewal_of_claim_keeps_unknown_fields_of_newer_build() {
    let mut claims = claims_from_status(&stored(&newer()));
    let key = (Uid::from("uid-1"), ClaimOperation::InPlace);
    let claim = claims.claims.get_mut(&key).unwrap();
    let fresh = ClaimDetail {
        carried: None,
        ..claim.detail.clone()
    };
    claim.detail = fresh.merge_earlier_detail(Some(&claim.detail), ClaimOperation::InPlace, false);
    assert_eq!(
        serde_json::to_value(claims_to_status(&claims)).unwrap(),
        newer()
    );
}

#[test]
fn ledger_without_format_is_read_and_gets_first_format() {
    let mut before = newer();
    before.as_object_mut().unwrap().remove("formatVersion");
    let ledger = stored(&before);
    assert_eq!((ledger.format_version, find_fault(&ledger)), (0, None));
    assert_eq!(
        serde_json::to_value(claims_to_status(&claims_from_status(&ledger))).unwrap(),
        newer()
    );
}

#[test]
fn unusable_ledger_reports_reason_and_remedy() {
    for (field, value, said) in [
        (
            "formatVersion",
            json!(2),
            "formatVersion is 2, and this replica reads formats up to 1: run the newer version",
        ),
        (
            "watermark",
            json!("soon"),
            "status.ledger.watermark is \"soon\", which is no resourceVersion",
        ),
        (
            "watermark",
            json!("-1"),
            "status.ledger.watermark is \"-1\"",
        ),
        (
            "watermark",
            json!("18446744073709551616"),
            "status.ledger.watermark is",
        ),
        ("watermark", json!(7), "status.ledger can't be read"),
        (
            "claims",
            json!({ "by": "shard" }),
            "status.ledger can't be read",
        ),
        (
            "attempts",
            json!(i64::MAX),
            "status.ledger.attempts is 9223372036854775807",
        ),
    ] {
        let mut ledger = newer();
        ledger[field] = value;
        let why = find_fault(&stored(&ledger)).unwrap();
        assert!(
            why.contains(said) && why.contains("status.ledger of the rule to null"),
            "{why}"
        );
    }
    // A newer format may have any structure.
    let why = find_fault(&stored(
        &json!({ "formatVersion": 3, "claims": "elsewhere" }),
    ))
    .unwrap();
    assert!(why.contains("formatVersion is 3"), "{why}");
}

#[test]
fn unreadable_version_is_newer_than_every_pod() {
    let mut ledger = newer();
    ledger["claims"][0]["resourceVersion"] = json!("?");
    let claims = claims_from_status(&stored(&ledger));
    assert_eq!(
        claims.claims[&(Uid::from("uid-1"), ClaimOperation::InPlace)].at,
        u64::MAX
    );
    assert_eq!(claims.newest_version(), u64::MAX);
}
