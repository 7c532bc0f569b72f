//! The finished Pods, and when the set creates their successors.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SetFacts;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::domain::pod::Pod;

/// Entries of the pool by instance ID.
type PoolEntries<'a> = BTreeMap<i64, &'a BTreeMap<String, String>>;

impl SetFacts<'_> {
    /// Finished Pods whose successor the set creates later. A finished Pod whose ID another Pod has is not among them.
    pub(super) fn find_pods_recreated_later(&self) -> BTreeMap<i64, Arc<Pod>> {
        let mut pods = BTreeMap::new();
        if self.finished.is_empty() {
            return pods;
        }
        let pool = self.observed.pool.as_ref();
        let entries = pool.map(|pool| pool.contexts.iter().map(|c| (c.id, &c.data)).collect());
        for pod in &self.finished {
            let until = self.observed.ended_until.get(&pod.metadata.uid);
            let waits = until.is_some_and(|until| *until > self.observed.now_nanos);
            let id = self
                .instance_id_of(pod)
                .filter(|id| !self.members.contains_key(id));
            if let Some(id) =
                id.filter(|id| waits && self.is_recreated_later(entries.as_ref(), *id, pod))
            {
                pods.entry(id).or_insert_with(|| Arc::clone(pod));
            }
        }
        pods
    }

    /// Whether the set waits before it creates the successor of a finished Pod. It waits if the pool has an entry for
    /// the ID and the successor would have the same revision, because such a Pod would most likely end again.
    fn is_recreated_later(&self, entries: Option<&PoolEntries<'_>>, id: i64, pod: &Pod) -> bool {
        let Some(entries) = entries else {
            return true; // the pool does not exist
        };
        let Some(entry) = entries.get(&id) else {
            return false;
        };
        let origin = data::origin_of(entry).and_then(|id| self.members.get(&id));
        if origin.is_some_and(|origin| origin.label(keys::TO_REPLACE).is_none()) {
            return false; // the replacement was cancelled
        }
        let next = entry.get(data::REVISION).map(String::as_str);
        let own = pod.label(keys::REVISION);
        let is_known = next.is_some_and(|next| self.history.find_revision(next).is_some());
        !is_known || own.is_none() || next == own
    }

    /// The finished and terminating Pods of an ID.
    pub fn former_pods(&self, id: i64) -> impl Iterator<Item = &Arc<Pod>> {
        let ending = self.terminating.get(&id).into_iter().flatten();
        let ended = self.finished_by_id.get(&id).into_iter().flatten();
        ending.chain(ended)
    }

    /// The time at which the set creates the successor of a finished Pod, in nanoseconds since 1970; `None` if it does
    /// not wait.
    pub fn recreation_due_at(&self, pod: &Pod) -> Option<u64> {
        let until = self.observed.ended_until.get(&pod.metadata.uid).copied()?;
        let awaited = self.recreated_later.get(&self.instance_id_of(pod)?)?;
        (awaited.metadata.uid == pod.metadata.uid).then_some(until)
    }
}
