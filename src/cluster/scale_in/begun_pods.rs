//! Decides which of the chosen Pods may begin their lifecycle.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::deletion_marks::{is_held_too_long, is_requested_by_others};
use crate::cluster::index::NamespaceIndex;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// UIDs of Pods whose lifecycle the leader has begun. The leader's cache may not show this yet.
#[derive(Debug, Default)]
pub struct BegunPods(Mutex<HashSet<Uid>>);

impl BegunPods {
    /// Whether a Pod that its owner has chosen may begin its lifecycle: fewer other Pods have begun than the owner has
    /// too many. If the Pod may begin, it counts as begun from now on.
    pub fn try_begin(
        &self,
        namespace_index: &NamespaceIndex,
        owner: &str,
        pod: &Pod,
        now_nanos: u64,
    ) -> bool {
        let mut begun = self.0.lock();
        let others = namespace_index
            .living_pods_of(owner)
            .filter(|other| other.metadata.uid != pod.metadata.uid);
        let others = others.filter(|other| {
            let begins = is_yet_to_begin(other) && begun.contains(&*other.metadata.uid);
            match is_requested_by_others(other) {
                true => !is_held_too_long(other, now_nanos),
                // A Pod that is kept after all counts until it is back on traffic.
                false => begins || grace_delete::is_deletion_in_flight(other),
            }
        });
        let may = others.count() < max_begun_pods(namespace_index, owner);
        if may {
            begun.insert(Uid::from(&*pod.metadata.uid));
        }
        may
    }

    /// Forgets a Pod, unless the cache shows that it has not begun yet.
    pub fn sync_pod(&self, pod: &Pod) {
        if !is_yet_to_begin(pod) {
            self.forget_pod(&pod.metadata.uid);
        }
    }

    /// Forgets a Pod that is gone.
    pub fn forget_pod(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

fn is_yet_to_begin(pod: &Pod) -> bool {
    grace_delete::is_deletion_requested(pod) && !grace_delete::is_deletion_in_flight(pod)
}

/// How many of the chosen Pods may begin. If only Pods that are not managed make a surplus, one Pod may begin at a
/// time: their number is known only from the owner's status, which may still count terminating Pods.
fn max_begun_pods(namespace_index: &NamespaceIndex, owner: &str) -> usize {
    let terminating = namespace_index
        .pods_owned_by(owner)
        .filter(|pod| pod.is_terminating());
    match namespace_index.surplus_pods(owner) {
        0 if namespace_index.max_surplus_pods(owner) as usize > terminating.count() => 1,
        surplus => surplus as usize,
    }
}
