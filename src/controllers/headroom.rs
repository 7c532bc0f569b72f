//! How much room a rule object has, by what this replica knows.

use std::sync::Arc;

use crate::cluster::index::{IndexState, RuleEntry};
use crate::cluster::rulestore::RuleStore;
use crate::domain::rules::budget::{BudgetGauges, ExpectedPods};
use crate::ledger::commit::Ledgers;

/// The gauges of a rule object by what this replica knows; `None` if it has no availability rule or can't be read.
pub fn rule_gauges(
    ledgers: &Arc<Ledgers<RuleStore>>,
    state: &IndexState,
    entry: &RuleEntry,
) -> Option<BudgetGauges> {
    let key = entry.rule_key();
    let claims = ledgers.newer_snapshot(&key, &entry.snapshot).claims;
    let waiting = u32::try_from(entry.tally.pre_check_waiting().len()).unwrap_or(u32::MAX);
    Some(state.with_view(&entry.snapshot.rules, |view| {
        BudgetGauges::new(
            entry.snapshot.rules.availability_limits(),
            ExpectedPods {
                total: view.expected(),
                base: view.percentage_base(),
            },
            claims.count_unclaimed(view),
            waiting,
        )
    }))
}

/// How many more disruptions the object lets pass; `None` if it limits none. 0 while an owner does not set its number of
/// Pods, while nothing can be decided by the ledger, or while the API server drops it: admission denies all disruptions then.
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
    rule_gauges(ledgers, state, entry).map(|g| g.allowed)
}

/// Whether fewer Pods are available without a claim than the object wants. What is done to a Pod that is down already
/// keeps within the budget if not.
pub fn is_overdrawn(
    ledgers: &Arc<Ledgers<RuleStore>>,
    state: &IndexState,
    entry: &RuleEntry,
) -> bool {
    let key = entry.rule_key();
    let claims = ledgers.newer_snapshot(&key, &entry.snapshot).claims;
    let rules = &entry.snapshot.rules;
    state.with_view(rules, |view| {
        let expected = ExpectedPods {
            total: view.expected(),
            base: view.percentage_base(),
        };
        let desired = rules
            .availability_limits()
            .map(|l| l.desired(expected))
            .max();
        claims.count_unclaimed(view) < desired.unwrap_or(0)
    })
}
