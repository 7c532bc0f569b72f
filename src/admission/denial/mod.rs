//! Writes the messages for operations that are denied: the rule, the used budget and its limit, the Pods that use the
//! budget, and what to do. Other modules word denials too:
//!
//! | File | Messages |
//! |---|---|
//! | `evictions/mod.rs` | PodDisruptionBudgets, and reviews that are no valid eviction |
//! | `graceful_deletion.rs` | deletions and evictions that go through the lifecycle |
//! | `bypass/explained_denial.rs` | why break-glass does not apply |
//! | `pods/validate/update.rs` | forbidden changes of a Pod |
//! | `pods/entering_rules.rs` | Pods that can't be put under a rule now |
//! | `pods/wait_messages.rs` | rules that an operation waits for |
//! | `domain/messages.rs` | texts that several messages share |

use jiff::Timestamp;

use super::review::Verdict;
use crate::domain::messages;
use crate::domain::rules::budget::BindingMinimum;
use crate::ledger::commit::{BudgetBlockers, Denied, DenyReason};
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
    let rule = match denied.object.as_str() {
        "" => "a PodTransitionRule of its namespace".to_owned(),
        object => messages::qualified_rule_name(object, &denied.rule),
    };
    match &denied.why {
        DenyReason::Behind if denied.object.is_empty() => format!(
            "Pod {pod} is held: it is not known which rules hold it, because this replica has not yet read all \
             PodTransitionRules and the objects that they depend on; try again in a moment"
        ),
        DenyReason::Unreachable(why) if denied.object.is_empty() => format!(
            "Pod {pod} is held: it is not known whether a rule holds it ({why}); try again in a moment"
        ),
        DenyReason::Full {
            used,
            limit,
            expected,
            minimum,
            holders,
            lasting,
        } => {
            let figures = messages::budget_figures(*used, *expected, *limit, *minimum);
            let used_by = describe_budget_use(figures, holders, now);
            let remedy = describe_remedy(*limit, *minimum, holders.len(), lasting);
            format!("Pod {pod} is held by {rule}: {used_by}; {remedy}")
        }
        DenyReason::Unhealthy {
            available,
            desired,
            expected,
        } => format!(
            "Pod {pod} is held by {rule}: it is not available, and unhealthyPodPolicy IfHealthyBudget lets it go only \
             while at least {desired} of {expected} Pods are available; {available} are available now; try again when \
             more Pods are available"
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
            "Pod {pod} is held: the stored Pod differs from the Pod in the request; try again in a moment"
        ),
        DenyReason::Unreachable(why) => {
            format!(
                "Pod {pod} is held by {rule}: its budget can't be read or written ({why}); try again in a moment"
            )
        }
        DenyReason::UnknownOwner(what) => format!(
            "Pod {pod} is held by {rule}: it is not known how many Pods there should be, because {what}"
        ),
        DenyReason::Unset { owner, field } => format!(
            "Pod {pod} is held by {rule}: it is not known how many Pods there should be, because {owner} does not set \
             {field}; set {field} of {owner}"
        ),
        DenyReason::UnderWay => format!(
            "Pod {pod} is held by {rule}: an earlier change of this Pod has not taken effect yet (containers that \
             restart, or another controller); try again when the change has taken effect and the Pod is available, or \
             delete the Pod"
        ),
        DenyReason::Closing { until } => format!(
            "Pod {pod} is held by {rule}: an earlier request for the same operation on this Pod was admitted and had \
             no effect; its claim is released in about {}; try again then",
            messages::format_ago(now, *until)
        ),
        DenyReason::Resting { left } => format!(
            "Pod {pod} is held by {rule}: earlier requests for the same operation on this Pod were admitted and had no \
             effect, so the rest of the budget is left to other Pods for about {}s more; find out what else refuses \
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
            "Pod {pod} is held by {rule}: {claims} admitted operations have not taken effect yet, and the status of \
             the PodTransitionRule has no room for more; try again when some of them have taken effect, or split the \
             object into several with fewer Pods each"
        ),
    }
}

/// The figures of a budget that is used up, and the Pods that use it.
fn describe_budget_use(
    figures: String,
    holders: &[(String, Option<Timestamp>)],
    now: Timestamp,
) -> String {
    let holders = holders.iter();
    let holders = holders.map(|(name, since)| messages::describe_holder(name, *since, now));
    let holders: Vec<_> = holders.collect();
    messages::figures_with_holders(figures, &holders)
}

/// What to do about a budget that is used up, and what will free it without help.
fn describe_remedy(
    limit: u32,
    minimum: Option<BindingMinimum>,
    holder_count: usize,
    blockers: &BudgetBlockers,
) -> String {
    let restart = blockers.restart.as_ref();
    let restart = restart.map(|r| messages::restart_frees_budget(&r.pod, r.deferred));
    let remedy = match (&blockers.rollout, restart) {
        (Some(rollout), _) => rollout.clone(),
        // The only Pod that uses the budget is available and only waits for its restart.
        (None, Some(restart)) if holder_count == 1 && limit > 0 => {
            let raise = messages::limit_field_to_raise(minimum);
            format!("{restart}; try again then, or {raise}")
        }
        (None, Some(restart)) => format!("{}; {restart}", messages::budget_remedy(limit, minimum)),
        (None, None) => messages::budget_remedy(limit, minimum).to_owned(),
    };
    let deadline = blockers.deadline.as_deref();
    let deadline = deadline.map(messages::deadline_frees_budget);
    let unreadable = blockers.unreadable.as_deref();
    let unreadable = unreadable.map(messages::unreadable_pod);
    let parts = [Some(remedy), deadline, unreadable];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Why a write that leaves the Pod running needs a claim; `None` for other operations.
pub fn explain_held_write(operation: ClaimOperation) -> Option<&'static str> {
    match operation {
        ClaimOperation::Leave => Some(
            "after this change of its labels the rule would neither count nor hold the Pod, so the change needs a \
             claim, as a deletion does",
        ),
        ClaimOperation::Deadline => Some(
            "the kubelet ends the Pod when spec.activeDeadlineSeconds is over, so setting or lowering it needs a \
             claim, as a deletion does",
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
