//! Writes back claims that this replica remembers and a rule object has lost, see [`Ledgers::restore_claims`]. Every
//! replica does this. Otherwise a replica that started later, and remembers nothing, would decide without these claims.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use super::changes::Change;
use super::index::Index;
use super::rule_store::RuleStore;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::RuleKey;

/// Checks each rule object that changes. Returns when the index is dropped.
pub async fn restore_lost_claims(index: Arc<Index>, ledgers: Arc<Ledgers<RuleStore>>) {
    let mut changes = index.changes().subscribe();
    loop {
        let changed = match changes.recv().await {
            Ok(Change::Rule(namespace, name)) => {
                rules_lacking_claims(&index, Some((&namespace, &name)))
            }
            Ok(_) => continue,
            Err(RecvError::Lagged(_)) => rules_lacking_claims(&index, None),
            Err(RecvError::Closed) => return,
        };
        for key in changed {
            ledgers.restore_claims(&key);
        }
    }
}

/// The rule objects that lack claims, of the rule object `only` or of all.
fn rules_lacking_claims(index: &Index, only: Option<(&str, &str)>) -> Vec<RuleKey> {
    let state = index.read_state();
    let all: Vec<_> = match only {
        Some((namespace, name)) => state.rule(namespace, name).into_iter().collect(),
        None => {
            let namespaces = state.namespaces();
            namespaces.flat_map(|(_, n)| n.rules.values()).collect()
        }
    };
    let lacking = all
        .into_iter()
        .filter(|entry| entry.snapshot.needs_write_back());
    lacking.map(|entry| entry.rule_key()).collect()
}
