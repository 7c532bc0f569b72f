//! Keeps Pods in the index, and the position of their watch.

use std::collections::HashSet;
use std::sync::Arc;

use super::{Change, Index, IndexState, NamespaceIndex, RuleEntry, WatchedKind};
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

impl Index {
    /// Replaces all Pods by those of a list at `version`.
    pub fn replace_pods(&self, pods: Vec<Pod>, version: u64) {
        let mut state = self.state.write();
        let listed: HashSet<&str> = pods.iter().map(|p| p.metadata.uid.as_str()).collect();
        let deleted: Vec<Arc<Pod>> = state
            .namespaces
            .values()
            .flat_map(|n| n.pods.values())
            .filter(|p| !listed.contains(p.metadata.uid.as_str()))
            .cloned()
            .collect();
        for pod in deleted {
            self.put_pod(&mut state, &pod.metadata.namespace, &pod.metadata.uid, None);
        }
        for pod in pods {
            let (namespace, uid) = (pod.metadata.namespace.clone(), pod.metadata.uid.clone());
            self.put_pod(&mut state, &namespace, &uid, Some(pod));
        }
        self.advance_position(&mut state, version, true);
        drop(state);
        self.mark_listed(WatchedKind::Pod);
    }

    /// Adds or changes a managed Pod.
    pub fn apply_pod(&self, pod: Pod) {
        let (namespace, uid) = (pod.metadata.namespace.clone(), pod.metadata.uid.clone());
        let version = pod.metadata.resource_version;
        let mut state = self.state.write();
        self.put_pod(&mut state, &namespace, &uid, Some(pod));
        self.advance_position(&mut state, version, true);
    }

    /// Removes a Pod that was deleted or is no longer managed.
    pub fn delete_pod(&self, pod: &Pod) {
        self.ended_pods.record(pod);
        let mut state = self.state.write();
        self.put_pod(&mut state, &pod.metadata.namespace, &pod.metadata.uid, None);
        self.advance_position(&mut state, pod.metadata.resource_version, true);
    }

    /// Records that every Pod event up to `version` has been delivered.
    pub fn bookmark_pods(&self, version: u64) {
        self.advance_position(&mut self.state.write(), version, false);
    }

    fn put_pod(&self, state: &mut IndexState, namespace: &str, uid: &str, pod: Option<Pod>) {
        let uid = Uid::from(uid);
        let NamespaceIndex {
            pods,
            rules,
            owners,
            workloads,
            short_outages: lost,
            ..
        } = state.namespaces.entry(namespace.to_owned()).or_default();
        let new = pod.map(|mut pod| {
            owners.intern_pod_parts(&mut pod);
            Arc::new(pod)
        });
        let old = match &new {
            Some(new) => pods.insert(uid.clone(), Arc::clone(new)),
            None => pods.remove(&uid),
        };
        lost.observe_pod_change(&uid, old.as_deref(), new.as_deref());
        for set in owners.replace(&uid, old.as_ref(), new.as_ref()) {
            self.notify(Change::CollaSet(namespace.to_owned(), set));
        }
        let owner = new.as_ref().and_then(|pod| pod.controller());
        let unread = owner
            .filter(|owner| workloads.add_reference(owner))
            .map(|owner| Uid::from(owner.uid.as_str()));
        for RuleEntry {
            snapshot, tally, ..
        } in rules.values_mut()
        {
            if let Some(old) = &old {
                tally.remove_pod(&snapshot.rules, old, workloads);
            }
            if let Some(new) = &new {
                tally.add_pod(&snapshot.rules, new, workloads);
            }
            if let Some(unread) = &unread {
                tally.update_owner(&snapshot.rules, unread, workloads);
            }
        }
        if new.is_none() {
            state.drop_unused_namespace(namespace);
        }
        self.notify(Change::Pod(namespace.to_owned(), uid));
    }
}
