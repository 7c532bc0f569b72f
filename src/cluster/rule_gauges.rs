//! Reads the gauges of the budget of a stored rule object from the state of this replica. They are no metrics; those are
//! in `cli/serve/metrics.rs`.

use super::index::{IndexState, RuleEntry};
use crate::domain::rules::budget::BudgetGauges;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::{LedgerStore, expected_pods};

/// The gauges of a rule object, as this replica knows them.
pub fn rule_gauges<S: LedgerStore>(
    ledgers: &Ledgers<S>,
    state: &IndexState,
    entry: &RuleEntry,
) -> BudgetGauges {
    let rules = &entry.snapshot.rules;
    let claims = ledgers
        .newer_snapshot(&entry.rule_key(), &entry.snapshot)
        .claims;
    let waiting = u32::try_from(entry.tally.pre_check_waiting().len()).unwrap_or(u32::MAX);
    state.with_view(rules, |view| {
        BudgetGauges::new(
            rules.availability_limits(),
            expected_pods(view),
            claims.count_unclaimed(view),
            waiting,
        )
    })
}
