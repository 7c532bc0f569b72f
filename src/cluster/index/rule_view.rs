//! Gives the ledger a view of the Pods of one rule object, at one position.

use std::collections::HashMap;
use std::sync::Arc;

use super::{IndexState, NamespaceIndex};
use crate::cluster::tally::Tally;
use crate::domain::pending_disruption::counts_as_available;
use crate::domain::pod::Pod;
use crate::domain::rules::conditions::UnknownReplicasOwners;
use crate::domain::rules::{ExpectedPods, RuleSet};
use crate::ledger::protocol::BudgetView;
use crate::ledger::store::Uid;

impl IndexState {
    /// Calls `read` with a view of the Pods that `rules` selects. If the index has compiled the same spec, the view
    /// uses the running counts. If the caller has read a newer spec, the Pods are counted anew.
    pub fn with_view<R>(&self, rules: &RuleSet, read: impl FnOnce(&dyn BudgetView<Uid>) -> R) -> R {
        let empty = NamespaceIndex::default();
        let namespace_index = self.namespace(&rules.namespace).unwrap_or(&empty);
        let counted;
        let tally = match namespace_index
            .rules
            .get(&rules.name)
            .map(|e| (&e.snapshot.rules, &e.tally))
        {
            Some((known, tally))
                if known.uid == rules.uid && known.generation == rules.generation =>
            {
                tally
            }
            _ => {
                counted = Tally::count_all(
                    rules,
                    namespace_index.pods.values(),
                    &namespace_index.workloads,
                );
                &counted
            }
        };
        read(&RulePodView {
            position: self.position,
            rules,
            tally,
            pods: &namespace_index.pods,
        })
    }
}

impl IndexState {
    /// How many Pods there should be, by rules that may not be stored yet. Counts anew.
    pub fn count_expected(&self, rules: &RuleSet) -> ExpectedPods {
        let tally = self.count_rule_set(rules);
        ExpectedPods {
            total: tally.expected(),
            base: tally.percentage_base(),
        }
    }

    /// The owners of the Pods whose number of replicas is not known, by rules that may not be stored yet. Counts anew.
    pub fn find_unknown_replicas_owners(&self, rules: &RuleSet) -> UnknownReplicasOwners {
        self.count_rule_set(rules).unknown_replicas_owners()
    }

    fn count_rule_set(&self, rules: &RuleSet) -> Tally {
        let namespace_index = self.namespace(&rules.namespace);
        namespace_index.map_or_else(Tally::default, |namespace_index| {
            Tally::count_all(
                rules,
                namespace_index.pods.values(),
                &namespace_index.workloads,
            )
        })
    }
}

struct RulePodView<'a> {
    position: u64,
    rules: &'a RuleSet,
    tally: &'a Tally,
    pods: &'a HashMap<Uid, Arc<Pod>>,
}

impl BudgetView<Uid> for RulePodView<'_> {
    fn position(&self) -> u64 {
        self.position
    }

    fn expected(&self) -> u32 {
        self.tally.expected()
    }

    fn percentage_base(&self) -> u32 {
        self.tally.percentage_base()
    }

    fn available(&self) -> u32 {
        self.tally.available()
    }

    fn is_available(&self, pod: &Uid) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|p| counts_as_available(p) && self.rules.selects(p))
    }
}
