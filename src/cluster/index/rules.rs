//! Keeps rule objects in the index.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Change, Index, IndexState, RuleEntry, WatchedKind};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cluster::tally::Tally;
use crate::domain::rules::webhook::EndpointVerdicts;
use crate::ledger::store::RuleSnapshot;

impl Index {
    /// Replaces all rule objects by those of a list.
    pub fn replace_rules(&self, objects: Vec<PodTransitionRule>) {
        let mut state = self.state.write();
        let listed: HashSet<String> = objects
            .iter()
            .filter_map(|o| o.metadata.uid.clone())
            .collect();
        for (name, namespace) in &mut state.namespaces {
            namespace.ending_rules.clear();
            namespace.rules.retain(|rule, entry| {
                let keep = listed.contains(&*entry.snapshot.rules.uid);
                if !keep {
                    self.notify(Change::Rule(name.clone(), rule.clone()));
                }
                keep
            });
        }
        for object in objects {
            self.put_rule(&mut state, object);
        }
        state.drop_unused_namespaces();
        drop(state);
        self.mark_listed(WatchedKind::PodTransitionRule);
    }

    /// Adds or changes a rule object.
    pub fn apply_rule(&self, object: PodTransitionRule) {
        self.put_rule(&mut self.state.write(), object);
    }

    /// Removes a rule object.
    pub fn delete_rule(&self, object: &PodTransitionRule) {
        let mut state = self.state.write();
        let (namespace, name) = object_names(object);
        if let Some(entry) = state.namespaces.get_mut(&namespace) {
            entry.rules.remove(&name);
            entry.ending_rules.remove(&name);
        }
        state.drop_unused_namespace(&namespace);
        self.notify(Change::Rule(namespace, name));
    }

    fn put_rule(&self, state: &mut IndexState, object: PodTransitionRule) {
        let (namespace, name) = object_names(&object);
        let namespace_index = state.namespaces.entry(namespace.clone()).or_default();
        if object.metadata.deletion_timestamp.is_some() {
            namespace_index.rules.remove(&name); // no longer enforced; the controller removes Kuperator's finalizer
            namespace_index.ending_rules.insert(name.clone());
        } else {
            namespace_index.ending_rules.remove(&name);
            let known = namespace_index.rules.remove(&name);
            let (snapshot, same) = match &known {
                Some(e) => {
                    let snapshot =
                        RuleSnapshot::from_rule_object(&object, Some(&e.snapshot), self.skips);
                    let same = Arc::ptr_eq(&snapshot.rules, &e.snapshot.rules);
                    (snapshot, same)
                }
                None => (
                    RuleSnapshot::from_rule_object(&object, None, self.skips),
                    false,
                ),
            };
            let tally = match known {
                Some(e) if same => e.tally,
                _ => Tally::count_all(
                    &snapshot.rules,
                    namespace_index.pods.values(),
                    &namespace_index.workloads,
                ),
            };
            namespace_index.rules.insert(
                name.clone(),
                RuleEntry {
                    verdicts: Arc::new(EndpointVerdicts::from_status(&object, &snapshot.rules)),
                    object: Arc::new(object),
                    snapshot,
                    tally,
                },
            );
        }
        self.notify(Change::Rule(namespace, name));
    }
}

fn object_names(object: &PodTransitionRule) -> (String, String) {
    (
        object.metadata.namespace.clone().unwrap_or_default(),
        object.metadata.name.clone().unwrap_or_default(),
    )
}
