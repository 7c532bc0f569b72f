#![allow(clippy::unwrap_used)]
use super::*;
use crate::admission::denial_counts;
use crate::api::int_or_percent::IntOrPercent;
use crate::ledger::commit::AwaitedRestart;

fn denied(why: DenyReason) -> Denied {
    Denied {
        object: "web".into(),
        rule: "availability".into(),
        why,
    }
}

fn describe(pod: &str, why: DenyReason) -> String {
    describe_denial(pod, &denied(why), Timestamp::UNIX_EPOCH)
}

#[test]
fn full_budget_is_named_with_numbers_holders_and_remedy() {
    let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
    let why = DenyReason::Full {
        used: 3,
        limit: 3,
        expected: 10,
        minimum: None,
        holders: vec![
            (
                "web-1".into(),
                Some("2026-01-01T00:04:30Z".parse().unwrap()),
            ),
            ("web-2".into(), None),
        ],
        lasting: Box::default(),
    };
    assert_eq!(
        describe_denial("web-3", &denied(why), now),
        "Pod web-3 is held by rule availability of PodTransitionRule web: 3 of 10 Pods are unavailable, the limit is 3 \
         (used by web-1 for 30s, web-2); try again when one of them is available, or raise the limit"
    );
}

/// The denial by a limit of one of four Pods, which `holders` use and `lasting` keeps used.
fn describe_full_budget(holders: &[&str], lasting: BudgetBlockers) -> String {
    let why = DenyReason::Full {
        used: 1,
        limit: 1,
        expected: 4,
        minimum: None,
        holders: holders.iter().map(|pod| ((*pod).into(), None)).collect(),
        lasting: Box::new(lasting),
    };
    describe("web-3", why)
}

#[test]
fn denial_names_pod_waiting_for_deadline_and_remedy() {
    let lasting = BudgetBlockers {
        deadline: Some("web-1".into()),
        ..BudgetBlockers::default()
    };
    let text = describe_full_budget(&["web-1"], lasting);
    assert!(
        text.ends_with(
            "; Pod web-1 keeps its claim until its spec.activeDeadlineSeconds ends it, which nobody can raise or \
             remove: to end the claim earlier, delete Pod web-1; its deletion needs no further claim"
        ),
        "{text}"
    );
}

#[test]
fn denial_names_pod_too_large_for_cache_and_remedy() {
    let lasting = BudgetBlockers {
        unreadable: Some("web-1".into()),
        ..BudgetBlockers::default()
    };
    let text = describe_full_budget(&["web-1"], lasting);
    let end = "; Pod web-1 counts as not available whatever its status: it has more than the 96 KiB that are cached of a Pod, or \
               this version can't read it; give it fewer or shorter labels, owners, finalizers, volumes or containers";
    assert!(text.ends_with(end), "{text}");
}

fn held_by_change(deferred: bool, holders: &[&str]) -> String {
    let restart = AwaitedRestart {
        pod: "w0".into(),
        deferred,
    };
    let lasting = BudgetBlockers {
        restart: Some(restart),
        ..BudgetBlockers::default()
    };
    describe_full_budget(holders, lasting)
}

#[test]
fn denial_names_available_pod_awaiting_restart_and_remedy() {
    let text = held_by_change(true, &["w0"]);
    let end = "(used by w0); Pod w0 keeps its claim until the kubelet makes its deferred resize, or until the resize \
               is changed back; try again then, or raise the limit";
    assert!(text.ends_with(end), "{text}");
    let text = held_by_change(false, &["web-0", "w0"]);
    let end = "try again when one of them is available, or raise the limit; Pod w0 keeps its claim until its in-place \
               change has restarted it";
    assert!(text.ends_with(end), "{text}");
}

#[test]
fn denial_names_stuck_rollout_instead_of_remedy() {
    let lasting = BudgetBlockers {
        rollout: Some("Deployment web: relax the rule".into()),
        ..BudgetBlockers::default()
    };
    let text = describe_full_budget(&["web-1"], lasting);
    assert!(
        text.ends_with("the limit is 1 (used by web-1); Deployment web: relax the rule"),
        "{text}"
    );
}

#[test]
fn denial_of_write_to_running_pod_gives_reason() {
    for operation in ClaimOperation::ALL {
        let is_said = matches!(operation, ClaimOperation::Leave | ClaimOperation::Deadline);
        assert_eq!(
            explain_held_write(operation).is_some(),
            is_said,
            "{operation:?}"
        );
    }
}

#[test]
fn denial_of_unavailable_pod_names_required_count() {
    let why = DenyReason::Unhealthy {
        available: 6,
        desired: 7,
        expected: 10,
    };
    assert_eq!(
        describe("web-3", why),
        "Pod web-3 is held by rule availability of PodTransitionRule web: it is not available, and unhealthyPodPolicy \
         IfHealthyBudget lets it go only while at least 7 of 10 Pods are available; 6 are available now; try again \
         when more Pods are available"
    );
}

fn unused_budget_of_zero(expected: u32, minimum: Option<BindingMinimum>) -> DenyReason {
    DenyReason::Full {
        used: 0,
        limit: 0,
        expected,
        minimum,
        holders: vec![],
        lasting: Box::default(),
    }
}

#[test]
fn limit_of_zero_names_remedy_without_retry() {
    let text = describe("p", unused_budget_of_zero(10, None));
    assert!(
        text.ends_with("raise the limit or disable the rule"),
        "{text}"
    );
}

#[test]
fn minimum_above_replicas_names_remedy() {
    let minimum = BindingMinimum {
        value: IntOrPercent::Int(4),
        desired: 4,
        available: 4,
    };
    assert_eq!(
        describe("p", unused_budget_of_zero(2, Some(minimum))),
        "Pod p is held by rule availability of PodTransitionRule web: 4 must be available (minAvailableValue), 2 are \
         wanted, 4 are available; lower minAvailableValue, or scale up"
    );
}

#[test]
fn denial_of_second_in_place_change_names_first() {
    assert_eq!(
        describe("p", DenyReason::UnderWay),
        "Pod p is held by rule availability of PodTransitionRule web: an earlier change of this Pod has not taken \
         effect yet (containers that restart, or another controller); try again when the change has taken effect and \
         the Pod is available, or delete the Pod"
    );
}

#[test]
fn denial_by_closing_claim_names_its_release_time() {
    let until = "1970-01-01T00:00:40Z".parse().unwrap();
    assert_eq!(
        describe("p", DenyReason::Closing { until }),
        "Pod p is held by rule availability of PodTransitionRule web: an earlier request for the same operation on \
         this Pod was admitted and had no effect; its claim is released in about 40s; try again then"
    );
}

#[test]
fn denial_names_unreadable_owner_cause_and_remedy() {
    let why =
        DenyReason::UnknownOwner("Rollout web can't be read: HTTP 405 at /apis; mend it".into());
    assert_eq!(
        describe("p", why),
        "Pod p is held by rule availability of PodTransitionRule web: it is not known how many Pods there should be, \
         because Rollout web can't be read: HTTP 405 at /apis; mend it"
    );
}

#[test]
fn owner_without_a_number_says_which_field_to_set() {
    let why = DenyReason::Unset {
        owner: "Rollout web".into(),
        field: "spec.replicas".into(),
    };
    assert_eq!(
        describe("p", why),
        "Pod p is held by rule availability of PodTransitionRule web: it is not known how many Pods there should be, \
         because Rollout web does not set spec.replicas; set spec.replicas of Rollout web"
    );
}

#[test]
fn denial_without_rule_says_what_is_not_known() {
    let text = |why| describe_denial("p", &Denied::without_rule(why), Timestamp::UNIX_EPOCH);
    assert_eq!(
        text(DenyReason::Behind),
        "Pod p is held: it is not known which rules hold it, because this replica has not yet read all \
         PodTransitionRules and the objects that they depend on; try again in a moment"
    );
    assert_eq!(
        text(DenyReason::Unreachable(
            "the rules could not be read in time".into()
        )),
        "Pod p is held: it is not known whether a rule holds it (the rules could not be read in time); try again in a \
         moment"
    );
    for why in every_reason() {
        let text = text(why);
        assert!(!text.contains("(unknown)") && !text.contains("PodTransitionRule :"));
    }
}

#[test]
fn every_held_operation_is_denied_with_429() {
    for why in every_reason() {
        let reason = audit_reason(&why);
        assert!(denial_counts::DENIAL_REASONS.contains(&reason), "{reason}");
        let verdict = denied_to_verdict("p", &denied(why), Timestamp::UNIX_EPOCH);
        assert_eq!((verdict.code(), verdict.reason()), (429, "TooManyRequests"));
    }
}

/// A denial for each reason that needs no more than a text.
fn every_reason() -> Vec<DenyReason> {
    vec![
        DenyReason::Behind,
        DenyReason::Changed,
        DenyReason::Unconfirmed,
        DenyReason::UnderWay,
        DenyReason::Closing {
            until: Timestamp::UNIX_EPOCH,
        },
        DenyReason::Resting {
            left: std::time::Duration::from_secs(40),
        },
        DenyReason::Contended,
        DenyReason::Crowded { claims: 1000 },
        DenyReason::Overlapping {
            objects: 17,
            most: 16,
            names: vec!["a".into()],
        },
        DenyReason::UnknownOwner("x".into()),
        DenyReason::Broken("x".into()),
        DenyReason::Unusable("x".into()),
        DenyReason::Unreachable("x".into()),
    ]
}
