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
pub async fn run(index: Arc<Index>, ledgers: Arc<Ledgers<RuleStore>>) {
    let mut changes = index.changes().subscribe();
    loop {
        let changed = match changes.recv().await {
            Ok(Change::Rule(namespace, name)) => lacking(&index, Some((&namespace, &name))),
            Ok(_) => continue,
            Err(RecvError::Lagged(_)) => lacking(&index, None),
            Err(RecvError::Closed) => return,
        };
        for key in changed {
            ledgers.restore(&key);
        }
    }
}

/// Of this rule object, or of all, those that lack claims.
fn lacking(index: &Index, one: Option<(&str, &str)>) -> Vec<RuleKey> {
    let state = index.read();
    let all: Vec<_> = match one {
        Some((namespace, name)) => state.rule(namespace, name).into_iter().collect(),
        None => {
            let namespaces = state.namespaces();
            namespaces.flat_map(|(_, n)| n.rules.values()).collect()
        }
    };
    let lacking = all.into_iter().filter(|entry| entry.snapshot.is_owed());
    lacking.map(|entry| entry.key()).collect()
}
