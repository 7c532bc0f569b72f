//! Computes the headroom of a rule object from the state of this replica.

use std::sync::Arc;

use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::rule_gauges::rule_gauges;
use crate::cluster::rule_store::RuleStore;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::expected_pods;

/// How many more disruptions the rule object allows; `None` if it limits none. The result is 0 if an owner has no
/// number of replicas, if the ledger is unusable, or if the API server drops the ledger: then admission denies all
/// disruptions.
pub fn allowed_disruptions(
    ledgers: &Arc<Ledgers<RuleStore>>,
    state: &IndexState,
    entry: &RuleEntry,
) -> Option<u32> {
    entry.snapshot.rules.availability_limits().next()?;
    let is_dropped = ledgers.store().is_ledger_kept(&entry.rule_key()) == Some(false);
    let is_unusable = entry.snapshot.fault.is_some() || is_dropped;
    if is_unusable || entry.tally.unset_owners().next().is_some() {
        return Some(0);
    }
    Some(rule_gauges(ledgers, state, entry).allowed)
}

/// Whether fewer Pods are available without a claim than the rule object demands. If false, an unavailable Pod may
/// begin an operation without exceeding the budget.
pub fn is_overdrawn(
    ledgers: &Arc<Ledgers<RuleStore>>,
    state: &IndexState,
    entry: &RuleEntry,
) -> bool {
    let key = entry.rule_key();
    let claims = ledgers.newer_snapshot(&key, &entry.snapshot).claims;
    let rules = &entry.snapshot.rules;
    state.with_view(rules, |view| {
        let expected = expected_pods(view);
        let desired = rules
            .availability_limits()
            .map(|limits| limits.desired(expected))
            .max();
        claims.count_unclaimed(view) < desired.unwrap_or(0)
    })
}
