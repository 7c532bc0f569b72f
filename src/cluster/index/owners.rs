//! Owners of Pods in the index: how many Pods each is to have.

use super::{Change, Entry, Index, Namespace, State};
use crate::cluster::kind::Kind;
use crate::cluster::sizes::{Basis, Reading, Workload};
use crate::ledger::store::{RuleKey, Uid};

impl Index {
    /// The owners of one kind, listed at `version`. Those in `gone` are not listed any more.
    pub fn replace_workloads(
        &self,
        kind: Kind,
        all: Vec<(String, Uid, Workload)>,
        gone: Vec<(String, Uid)>,
        version: u64,
    ) {
        for (namespace, uid) in gone {
            // What was read live after the list says more than the list.
            let newer = |w: &Workload| w.version > version;
            let state = self.read();
            let home = state.namespace(&namespace);
            if home.and_then(|n| n.workload(&uid)).is_some_and(newer) {
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

    /// An owner of a watched kind came, changed or (`None`) went. An older version than the known one changes nothing.
    pub fn set_workload(&self, namespace: &str, uid: Uid, workload: Option<Workload>) {
        let Some(workload) = workload else {
            self.set_reading(namespace, uid, Reading::Gone, Basis::Object(None));
            return;
        };
        let mut state = self.state.write();
        let home = state.namespaces.entry(namespace.to_owned()).or_default();
        let controller = workload.controller.clone();
        if home.workloads.put(&uid, workload) {
            self.recount(namespace, home, &uid);
        }
        if let Some(controller) = controller.filter(|owner| home.workloads.refer(owner)) {
            self.recount(namespace, home, &Uid::from(controller.uid.as_str()));
        }
    }

    /// An owner was read live, or is known to be gone. Changes nothing and returns false if the reading rests on
    /// references and another reference has come meanwhile.
    pub fn set_reading(&self, namespace: &str, uid: Uid, reading: Reading, basis: Basis) -> bool {
        let mut state = self.state.write();
        let Some(home) = state.namespaces.get_mut(namespace) else {
            return true;
        };
        if let Basis::References(followed) = &basis
            && !home.references(&uid).iter().all(|o| followed.contains(o))
        {
            return false;
        }
        let Namespace {
            workloads, owners, ..
        } = home;
        let has_pods = |uid: &str| owners.pods(uid).next().is_some();
        let mut news = workloads.put_reading(&uid, reading, basis, has_pods);
        if reading == Reading::Gone {
            news |= owners
                .pods(&uid)
                .any(|pod| workloads.remember_deployment(pod));
        }
        if news {
            self.recount(namespace, home, &uid);
        }
        state.forget(namespace);
        true
    }

    fn recount(&self, name: &str, namespace: &mut Namespace, uid: &Uid) {
        let Namespace {
            rules, workloads, ..
        } = namespace;
        for Entry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            tally.update_owner(&snapshot.rules, uid, workloads);
        }
        self.notify(Change::Workload(name.to_owned()));
    }

    /// Owners to be read live before a rule object decides, see [`crate::cluster::tally::Tally::doubts`].
    pub fn doubts(&self, rule: &RuleKey) -> Vec<Uid> {
        let state = self.read();
        let entry = state.rule(&rule.namespace, &rule.name);
        entry.map_or_else(Vec::new, |e| e.tally.doubts().cloned().collect())
    }
}

impl State {
    /// Drops all namespaces of which nothing is left.
    pub(super) fn forget_all(&mut self) {
        self.namespaces.retain(|_, home| !home.is_forgotten());
    }

    /// As [`State::forget_all`], of one.
    pub(super) fn forget(&mut self, name: &str) {
        if self
            .namespaces
            .get(name)
            .is_some_and(Namespace::is_forgotten)
        {
            self.namespaces.remove(name);
        }
    }
}
