//! Writes the messages for operations that are denied: the rule, the used budget and its limit, the Pods that use the
//! budget, and what to do.

use jiff::Timestamp;

use super::review::Verdict;
use crate::domain::messages;
use crate::ledger::commit::{Denied, DenyReason};
use crate::ledger::protocol::ClaimOperation;

/// HTTP status and reason of every operation that rules deny. `kubectl drain` and controllers retry on this status.
pub const TOO_MANY_REQUESTS: (u16, &str) = (429, "TooManyRequests");

/// The verdict for an operation that rules deny.
pub fn denied_to_verdict(pod: &str, denied: &Denied, now: Timestamp) -> Verdict {
    Verdict::deny(
        TOO_MANY_REQUESTS.0,
        TOO_MANY_REQUESTS.1,
        describe_denial(pod, denied, now),
    )
    .with_audit("held", audit_reason(&denied.why))
}

/// The deny reason as one word for the audit annotation `held` and the metrics.
pub fn audit_reason(why: &DenyReason) -> &'static str {
    match why {
        DenyReason::Full { .. } => "budget-used-up",
        DenyReason::Unhealthy { .. } => "budget-unhealthy",
        DenyReason::Broken(_) => "rule-broken",
        DenyReason::Unusable(_) => "ledger-unusable",
        DenyReason::Behind | DenyReason::Changed => "cache-behind",
        DenyReason::UnknownOwner(_) | DenyReason::Unset { .. } => "owner-unknown",
        DenyReason::Unconfirmed => "pod-unconfirmed",
        DenyReason::Unreachable(_) => "ledger-unreachable",
        DenyReason::UnderWay => "change-under-way",
        DenyReason::Closing { .. } => "claim-closing",
        DenyReason::Resting { .. } => "claim-resting",
        DenyReason::Contended => "ledger-contended",
        DenyReason::Crowded { .. } => "ledger-full",
        DenyReason::Overlapping { .. } => "rules-overlap",
    }
}

/// The message for a denial. `now` is the time to which ages in the message refer.
pub fn describe_denial(pod: &str, denied: &Denied, now: Timestamp) -> String {
    let rule = messages::qualified_rule_name(&denied.object, &denied.rule);
    match &denied.why {
        DenyReason::Full {
            used,
            limit,
            expected,
            minimum,
            holders,
            lasting,
        } => {
            let holders: Vec<_> = holders
                .iter()
                .map(|(name, since)| messages::describe_holder(name, *since, now))
                .collect();
            let used_by = messages::figures_with_holders(
                messages::budget_figures(*used, *expected, *limit, *minimum),
                &holders,
            );
            let restart = lasting.restart.as_ref();
            let until = restart.map(|r| messages::restart_frees_budget(&r.pod, r.deferred));
            let remedy = match (&lasting.rollout, until) {
                (Some(rollout), _) => rollout.clone(),
                // The only Pod that uses the budget is available and only waits for its restart.
                (None, Some(until)) if holders.len() == 1 && *limit > 0 => {
                    format!(
                        "{until}; try again then, or {}",
                        messages::limit_field_to_raise(*minimum)
                    )
                }
                (None, Some(until)) => {
                    format!("{}; {until}", messages::budget_remedy(*limit, *minimum))
                }
                (None, None) => messages::budget_remedy(*limit, *minimum).to_owned(),
            };
            let deadline = lasting
                .deadline
                .as_deref()
                .map(messages::deadline_frees_budget);
            let deadline = deadline.map_or_else(String::new, |text| format!("; {text}"));
            let unreadable = lasting.unreadable.as_deref().map(messages::unreadable_pod);
            let unreadable = unreadable.map_or_else(String::new, |text| format!("; {text}"));
            format!("Pod {pod} is held by {rule}: {used_by}; {remedy}{deadline}{unreadable}")
        }
        DenyReason::Unhealthy {
            available,
            desired,
            expected,
        } => format!(
            "Pod {pod} is held by {rule}: it is not available itself, and may go (unhealthyPodPolicy IfHealthyBudget) only \
             while at least {desired} of {expected} Pods are available, which {available} are; try again when more are"
        ),
        DenyReason::Broken(why) => {
            format!("Pod {pod} is held by {rule}, which can't be evaluated: {why}")
        }
        DenyReason::Unusable(why) => format!("Pod {pod} is held by {rule}: {why}"),
        DenyReason::Behind => format!(
            "Pod {pod} is held by {rule}: this replica has not yet seen the state that the rule's budget rests on; try \
             again in a moment"
        ),
        DenyReason::Changed => format!(
            "Pod {pod} is held: {rule} has just been changed or deleted, and others may hold the Pod now; try again in a moment"
        ),
        DenyReason::Unconfirmed => format!(
            "Pod {pod} is held: it is not stored as the request to the server shows it; try again in a moment"
        ),
        DenyReason::Unreachable(why) => {
            format!(
                "Pod {pod} is held by {rule}: its budget can't be read or written ({why}); try again in a moment"
            )
        }
        DenyReason::UnknownOwner(what) => format!(
            "Pod {pod} is held by {rule}: it is not known how many Pods there should be, for {what}"
        ),
        DenyReason::Unset { owner, field } => format!(
            "Pod {pod} is held by {rule}: it is not known how many Pods there should be, for {owner} does not set {field}; \
             set {field} of {owner}"
        ),
        DenyReason::UnderWay => format!(
            "Pod {pod} is held by {rule}: an earlier change of this Pod has yet to take effect (containers that restart, \
             or another controller); try again when it has and the Pod is available, or delete the Pod"
        ),
        DenyReason::Closing { until } => format!(
            "Pod {pod} is held by {rule}: an earlier request for the same operation on this Pod was admitted and had no \
             effect; its place in the budget is given back in about {}, try again then",
            messages::format_ago(now, *until)
        ),
        DenyReason::Resting { left } => format!(
            "Pod {pod} is held by {rule}: earlier requests for the same operation on this Pod were admitted and had no \
             effect, so the last place in the budget is left to others for about {}s more; find out what else refuses \
             the request",
            left.as_secs()
        ),
        DenyReason::Contended => {
            format!(
                "Pod {pod} is held by {rule}: too many operations ask for its budget at once; try again in a moment"
            )
        }
        DenyReason::Overlapping {
            objects,
            most,
            names,
        } => format!(
            "Pod {pod} is held: {objects} PodTransitionRules with an availability rule cover it ({} and {} more), and at most \
             {most} may; put the rules into spec.rules of fewer objects, or narrow their spec.selector",
            names.join(", "),
            objects.saturating_sub(names.len())
        ),
        DenyReason::Crowded { claims } => format!(
            "Pod {pod} is held by {rule}: {claims} admitted operations have yet to take effect, and the status of the \
             PodTransitionRule has no room for more; try again when some have, or split the object into several with \
             fewer Pods each"
        ),
    }
}

/// Why a write that leaves the Pod running takes a place in the budget; `None` for other operations.
pub fn explain_held_write(operation: ClaimOperation) -> Option<&'static str> {
    match operation {
        ClaimOperation::Leave => Some(
            "after this change of its labels the rule would neither count nor hold the Pod, so the change takes a place in the \
             budget as a deletion does",
        ),
        ClaimOperation::Deadline => Some(
            "the kubelet ends the Pod when spec.activeDeadlineSeconds is over, so to set or lower it takes a place in the \
             budget as a deletion does",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::admission::denial_counts;
    use crate::api::int_or_percent::IntOrPercent;
    use crate::domain::rules::budget::BindingMinimum;
    use crate::ledger::commit::{AwaitedRestart, BudgetBlockers};

    fn denied(why: DenyReason) -> Denied {
        Denied {
            object: "web".into(),
            rule: "availability".into(),
            why,
        }
    }

    #[test]
    fn a_full_budget_is_named_with_numbers_holders_and_remedy() {
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

    #[test]
    fn denial_names_pod_waiting_for_deadline_and_remedy() {
        let why = DenyReason::Full {
            used: 1,
            limit: 1,
            expected: 4,
            minimum: None,
            holders: vec![("web-1".into(), None)],
            lasting: Box::new(BudgetBlockers {
                deadline: Some("web-1".into()),
                ..BudgetBlockers::default()
            }),
        };
        let text = describe_denial("web-3", &denied(why), Timestamp::UNIX_EPOCH);
        assert!(
            text.ends_with(
                "; Pod web-1 keeps its place until its spec.activeDeadlineSeconds ends it, which nobody can raise or remove: \
                 to free the place earlier, delete Pod web-1, whose deletion needs no further place"
            ),
            "{text}"
        );
    }

    #[test]
    fn denial_names_pod_too_large_for_cache_and_remedy() {
        let why = DenyReason::Full {
            used: 1,
            limit: 1,
            expected: 4,
            minimum: None,
            holders: vec![("web-1".into(), None)],
            lasting: Box::new(BudgetBlockers {
                unreadable: Some("web-1".into()),
                ..BudgetBlockers::default()
            }),
        };
        let text = describe_denial("web-3", &denied(why), Timestamp::UNIX_EPOCH);
        let end = "; Pod web-1 counts as not available whatever its status: it has more than the 96 KiB that are cached of a Pod, or \
                   this version can't read it; give it fewer or shorter labels, owners, finalizers, volumes or containers";
        assert!(text.ends_with(end), "{text}");
    }

    fn held_by_change(deferred: bool, others: usize) -> String {
        let others = (0..others).map(|n| (format!("web-{n}"), None));
        let why = DenyReason::Full {
            used: 1,
            limit: 1,
            expected: 4,
            minimum: None,
            holders: others.chain([("w0".into(), None)]).collect(),
            lasting: Box::new(BudgetBlockers {
                restart: Some(AwaitedRestart {
                    pod: "w0".into(),
                    deferred,
                }),
                ..BudgetBlockers::default()
            }),
        };
        describe_denial("web-3", &denied(why), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn denial_names_available_pod_awaiting_restart_and_remedy() {
        let text = held_by_change(true, 0);
        let end = "(used by w0); Pod w0 keeps its place until the kubelet makes its deferred resize, or until the resize is \
                   changed back; try again then, or raise the limit";
        assert!(text.ends_with(end), "{text}");
        let text = held_by_change(false, 1);
        let end = "try again when one of them is available, or raise the limit; Pod w0 keeps its place until its in-place \
                   change has restarted it, which is yet to come";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn denial_names_stuck_rollout_instead_of_remedy() {
        let why = DenyReason::Full {
            used: 1,
            limit: 1,
            expected: 4,
            minimum: None,
            holders: vec![("web-1".into(), None)],
            lasting: Box::new(BudgetBlockers {
                rollout: Some("Deployment web: relax the rule".into()),
                ..BudgetBlockers::default()
            }),
        };
        let text = describe_denial("web-3", &denied(why), Timestamp::UNIX_EPOCH);
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
    fn an_unavailable_pod_is_told_how_many_others_must_serve() {
        let why = DenyReason::Unhealthy {
            available: 6,
            desired: 7,
            expected: 10,
        };
        assert_eq!(
            describe_denial("web-3", &denied(why), Timestamp::UNIX_EPOCH),
            "Pod web-3 is held by rule availability of PodTransitionRule web: it is not available itself, and may go \
             (unhealthyPodPolicy IfHealthyBudget) only while at least 7 of 10 Pods are available, which 6 are; try again \
             when more are"
        );
    }

    #[test]
    fn a_limit_of_zero_says_that_waiting_will_not_help() {
        let why = DenyReason::Full {
            used: 0,
            limit: 0,
            expected: 10,
            minimum: None,
            holders: vec![],
            lasting: Box::default(),
        };
        assert!(
            describe_denial("p", &denied(why), Timestamp::UNIX_EPOCH)
                .ends_with("raise the limit or disable the rule")
        );
    }

    #[test]
    fn minimum_above_what_is_wanted_says_what_would_help() {
        let why = DenyReason::Full {
            used: 0,
            limit: 0,
            expected: 2,
            minimum: Some(BindingMinimum {
                value: IntOrPercent::Int(4),
                desired: 4,
                available: 4,
            }),
            holders: vec![],
            lasting: Box::default(),
        };
        assert_eq!(
            describe_denial("p", &denied(why), Timestamp::UNIX_EPOCH),
            "Pod p is held by rule availability of PodTransitionRule web: 4 must be available (minAvailableValue), 2 are \
             wanted, 4 are available; lower minAvailableValue, or scale up"
        );
    }

    #[test]
    fn a_second_in_place_change_says_what_it_waits_for() {
        assert_eq!(
            describe_denial("p", &denied(DenyReason::UnderWay), Timestamp::UNIX_EPOCH),
            "Pod p is held by rule availability of PodTransitionRule web: an earlier change of this Pod has yet to take \
             effect (containers that restart, or another controller); try again when it has and the Pod is available, or \
             delete the Pod"
        );
    }

    #[test]
    fn closing_claim_says_when_its_place_is_free() {
        let until = "1970-01-01T00:00:40Z".parse().unwrap();
        assert_eq!(
            describe_denial(
                "p",
                &denied(DenyReason::Closing { until }),
                Timestamp::UNIX_EPOCH
            ),
            "Pod p is held by rule availability of PodTransitionRule web: an earlier request for the same operation on \
             this Pod was admitted and had no effect; its place in the budget is given back in about 40s, try again then"
        );
    }

    #[test]
    fn denial_names_unreadable_owner_cause_and_remedy() {
        let why = DenyReason::UnknownOwner(
            "Rollout web can't be read: HTTP 405 at /apis; mend it".into(),
        );
        assert_eq!(
            describe_denial("p", &denied(why), Timestamp::UNIX_EPOCH),
            "Pod p is held by rule availability of PodTransitionRule web: it is not known how many Pods there should be, \
             for Rollout web can't be read: HTTP 405 at /apis; mend it"
        );
    }

    #[test]
    fn owner_without_a_number_says_which_field_to_set() {
        let why = DenyReason::Unset {
            owner: "Rollout web".into(),
            field: "spec.replicas".into(),
        };
        assert_eq!(
            describe_denial("p", &denied(why), Timestamp::UNIX_EPOCH),
            "Pod p is held by rule availability of PodTransitionRule web: it is not known how many Pods there should be, \
             for Rollout web does not set spec.replicas; set spec.replicas of Rollout web"
        );
    }

    #[test]
    fn every_held_operation_is_denied_with_429() {
        for why in [
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
        ] {
            let word = audit_reason(&why);
            assert!(denial_counts::DENIAL_REASONS.contains(&word), "{word}");
            let verdict = denied_to_verdict("p", &denied(why), Timestamp::UNIX_EPOCH);
            assert_eq!((verdict.code(), verdict.reason()), (429, "TooManyRequests"));
        }
    }
}
