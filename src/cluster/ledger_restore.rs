//! Every replica writes claims back that it remembers and that a rule object has lost: see [`Ledgers::restore`]. Without this a
//! replica that has started meanwhile, and remembers nothing, would go on without them.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;

use super::changes::Change;
use super::index::Index;
use super::rulestore::RuleStore;
use crate::ledger::commit::Ledgers;
use crate::ledger::store::RuleKey;

/// Looks at each rule object that changes. Ends with the index.
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

/// Of this rule object, or of all, those that lack claims.
fn rules_lacking_claims(index: &Index, one: Option<(&str, &str)>) -> Vec<RuleKey> {
    let state = index.read_state();
    let all: Vec<_> = match one {
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
