//! Controllers that own Pods in the index: how many Pods each wants.

use super::{Change, Entry, Index, Namespace};
use crate::cluster::tally::Workload;
use crate::ledger::store::Uid;

impl Index {
    /// The workloads of one kind (a bit of [`Synced::workloads`]).
    pub fn replace_workloads(
        &self,
        kind: u8,
        all: Vec<(String, Uid, Workload)>,
        gone: Vec<(String, Uid)>,
    ) {
        for (namespace, uid) in gone {
            self.set_workload(&namespace, uid, None);
        }
        for (namespace, uid, workload) in all {
            self.set_workload(&namespace, uid, Some(workload));
        }
        self.mark(|s| s.workloads |= 1 << kind);
    }

    /// A workload came, changed or (`None`) went.
    pub fn set_workload(&self, namespace: &str, uid: Uid, workload: Option<Workload>) {
        let mut state = self.state.write();
        let Namespace {
            rules, workloads, ..
        } = state.namespaces.entry(namespace.to_owned()).or_default();
        if workloads.get(&uid) == workload.as_ref() {
            return;
        }
        for Entry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            tally.set_workload(&snapshot.rules, &uid, workload.as_ref());
        }
        match workload {
            Some(workload) => workloads.insert(uid, workload),
            None => workloads.remove(&uid),
        };
        self.tell(Change::Workload(namespace.to_owned()));
    }
}
