//! Keeps the owners of Pods in the index, with the number of Pods that each should have.

use super::{Change, Index, IndexState, NamespaceIndex, RuleEntry};
use crate::cluster::kind::WatchedKind;
use crate::cluster::owner_sizes::{LiveReading, ReadingBasis, Workload};
use crate::ledger::store::{RuleKey, Uid};

impl Index {
    /// Replaces the owners of one kind by a list at `version`. The owners in `unlisted` are no longer listed.
    pub fn replace_workloads(
        &self,
        kind: WatchedKind,
        all: Vec<(String, Uid, Workload)>,
        unlisted: Vec<(String, Uid)>,
        version: u64,
    ) {
        for (namespace, uid) in unlisted {
            // A live read after the list is newer than the list.
            let newer = |w: &Workload| w.version > version;
            let state = self.read_state();
            let namespace_index = state.namespace(&namespace);
            if namespace_index
                .and_then(|n| n.workload(&uid))
                .is_some_and(newer)
            {
                continue;
            }
            drop(state);
            self.set_workload(&namespace, uid, None);
        }
        for (namespace, uid, workload) in all {
            self.set_workload(&namespace, uid, Some(workload));
        }
        self.mark_listed(kind);
    }

    /// Adds, changes or (`None`) removes an owner of a watched kind. A version that is older than the known one changes
    /// nothing.
    pub fn set_workload(&self, namespace: &str, uid: Uid, workload: Option<Workload>) {
        let Some(workload) = workload else {
            self.set_live_reading(
                namespace,
                uid,
                LiveReading::Gone,
                ReadingBasis::Object(None),
            );
            return;
        };
        let mut state = self.state.write();
        let namespace_index = state.namespaces.entry(namespace.to_owned()).or_default();
        let controller = workload.controller.clone();
        if namespace_index.workloads.put_workload(&uid, workload) {
            self.recount_rules(namespace, namespace_index, &uid);
        }
        if let Some(controller) =
            controller.filter(|owner| namespace_index.workloads.add_reference(owner))
        {
            self.recount_rules(
                namespace,
                namespace_index,
                &Uid::from(controller.uid.as_str()),
            );
        }
    }

    /// Stores that an owner was read live, or is known to be gone. If the reading rests on references and a new
    /// reference has arrived since, changes nothing and returns false.
    pub fn set_live_reading(
        &self,
        namespace: &str,
        uid: Uid,
        reading: LiveReading,
        basis: ReadingBasis,
    ) -> bool {
        let mut state = self.state.write();
        let Some(namespace_index) = state.namespaces.get_mut(namespace) else {
            return true;
        };
        if let ReadingBasis::References(followed) = &basis
            && !namespace_index
                .owner_references(&uid)
                .iter()
                .all(|o| followed.contains(o))
        {
            return false;
        }
        let NamespaceIndex {
            workloads, owners, ..
        } = namespace_index;
        let has_pods = |uid: &str| owners.pods(uid).next().is_some();
        let mut is_changed = workloads.put_live_reading(&uid, reading, basis, has_pods);
        if reading == LiveReading::Gone {
            is_changed |= owners
                .pods(&uid)
                .any(|pod| workloads.remember_deployment(pod));
        }
        if is_changed {
            self.recount_rules(namespace, namespace_index, &uid);
        }
        state.drop_unused_namespace(namespace);
        true
    }

    fn recount_rules(&self, name: &str, namespace: &mut NamespaceIndex, uid: &Uid) {
        let NamespaceIndex {
            rules, workloads, ..
        } = namespace;
        for RuleEntry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            tally.update_owner(&snapshot.rules, uid, workloads);
        }
        self.notify(Change::Workload(name.to_owned()));
    }

    /// The owners that must be read live before a rule object decides, see
    /// [`crate::cluster::tally::Tally::doubtful_owners`].
    pub fn doubtful_owners(&self, rule: &RuleKey) -> Vec<Uid> {
        let state = self.read_state();
        let entry = state.rule(&rule.namespace, &rule.name);
        entry.map_or_else(Vec::new, |e| e.tally.doubtful_owners().cloned().collect())
    }
}

impl IndexState {
    pub(super) fn drop_unused_namespaces(&mut self) {
        self.namespaces
            .retain(|_, namespace_index| !namespace_index.is_unused());
    }

    /// As [`IndexState::drop_unused_namespaces`], for one namespace.
    pub(super) fn drop_unused_namespace(&mut self, name: &str) {
        if self
            .namespaces
            .get(name)
            .is_some_and(NamespaceIndex::is_unused)
        {
            self.namespaces.remove(name);
        }
    }
}
