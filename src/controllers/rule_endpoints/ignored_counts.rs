//! Counts operations that passed a rule because of `failurePolicy: Ignore`, without an answer of its endpoint. A metric
//! shows the counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::ledger::store::{RuleKey, Uid};

/// Maximum number of rules that have counts of their own. All other rules share one count, without names.
const MAX_COUNTED_RULES: usize = 1_000;

/// Namespace, rule object and ID of a rule.
pub type RuleLabels = (String, String, String);

/// The number of such operations, by rule object and rule.
#[derive(Debug, Default)]
pub struct IgnoredCounts(Mutex<BTreeMap<Uid, BTreeMap<RuleLabels, u64>>>);

impl IgnoredCounts {
    /// Counts operations that passed a rule of an object.
    pub fn count_ignored(&self, key: &RuleKey, rule: &str, operations: usize) {
        let mut all = self.0.lock();
        let counted_rules: usize = all.values().map(BTreeMap::len).sum();
        let labels = (key.namespace.clone(), key.name.clone(), rule.to_owned());
        let is_known = all.get(&key.uid).is_some_and(|o| o.contains_key(&labels));
        let (uid, labels) = match is_known || counted_rules < MAX_COUNTED_RULES {
            true => (Arc::clone(&key.uid), labels),
            false => (Arc::from(""), RuleLabels::default()),
        };
        *all.entry(uid).or_default().entry(labels).or_default() += operations as u64;
    }

    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, uid: &Uid) {
        self.0.lock().remove(uid);
    }

    /// All counts.
    pub fn ignored_by_rule(&self) -> BTreeMap<RuleLabels, u64> {
        let all = self.0.lock();
        all.values().flat_map(Clone::clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: usize) -> RuleKey {
        RuleKey {
            uid: Arc::from(format!("uid-{n}")),
            namespace: "shop".to_owned(),
            name: format!("web-{n}"),
        }
    }

    #[test]
    fn rules_are_counted_up_to_a_bound_and_forgotten() {
        let counts = IgnoredCounts::default();
        for n in 0..MAX_COUNTED_RULES + 2 {
            counts.count_ignored(&key(n), "ask", 2);
        }
        counts.count_ignored(&key(0), "ask", 3);
        let figures = counts.ignored_by_rule();
        assert_eq!(figures.len(), MAX_COUNTED_RULES + 1);
        assert_eq!(figures[&RuleLabels::default()], 4);
        let first = ("shop".to_owned(), "web-0".to_owned(), "ask".to_owned());
        assert_eq!(figures[&first], 5);
        counts.forget_rule(&key(0).uid);
        assert!(!counts.ignored_by_rule().contains_key(&first));
    }
}
