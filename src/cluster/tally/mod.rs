//! Keeps the counts of one rule object incrementally. A decision only reads them, so it costs the same with 10 Pods and
//! with 10,000 Pods.

mod owner_counts;
mod selected_pods;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use jiff::Timestamp;

use self::owner_counts::OwnerCounts;
use self::selected_pods::SelectedPods;
use super::kind::WatchedKind;
use super::owner_sizes::Workloads;
use crate::api::int_or_percent::clamp_to_u32;
use crate::api::keys::Family;
use crate::domain::pending_disruption::counts_as_available;
use crate::domain::pod::{Owner, Pod};
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions::UnknownReplicasOwners;
use crate::ledger::store::Uid;

/// The counts of the Pods that one rule object selects.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    available: u32,
    /// Living Pods without a controller, or with a name that their controller does not give to its Pods.
    bare: u32,
    owned: OwnerCounts,
    selected: SelectedPods,
    waiting: BTreeSet<(u64, Uid)>,
    post_waiting: BTreeSet<Uid>,
    unavailable: BTreeSet<(Option<Timestamp>, Uid)>,
}

impl Tally {
    /// Counts all Pods and owners from scratch.
    pub fn count_all<'a>(
        rules: &RuleSet,
        pods: impl Iterator<Item = &'a Arc<Pod>>,
        workloads: &Workloads,
    ) -> Tally {
        let mut tally = Tally::default();
        for (uid, _) in workloads.iter() {
            tally.update_owner(rules, uid, workloads);
        }
        for pod in pods {
            tally.add_pod(rules, pod, workloads);
        }
        tally
    }

    /// How many Pods there should be: the number for which the owners ask, and the selected Pods without an owner.
    pub fn expected(&self) -> u32 {
        let owned = self.owned.expected_total();
        clamp_to_u32(owned.owned + owned.orphaned + u64::from(self.bare))
    }

    /// The number of Pods to which percentages apply: the Pods for which owners ask, or all expected Pods if no owner
    /// asks for any. Pods without an owner must not raise the percentage of other Pods.
    pub fn percentage_base(&self) -> u32 {
        match self.owned.expected_total().owned {
            0 => self.expected(),
            owned => clamp_to_u32(owned),
        }
    }

    /// The direct owners of the selected Pods, and the owners whose templates create such Pods.
    pub fn owners(&self) -> impl Iterator<Item = &Uid> {
        self.owned.direct_owners()
    }

    /// Whether [`Tally::owners`] contains this owner.
    pub fn has_owner(&self, uid: &Uid) -> bool {
        self.owned.has_owner(uid)
    }

    /// Owners without a number of Pods. Their living Pods count.
    pub fn unknown_owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.owned.owners_without_scale()
    }

    /// Owners of a kind with `scale` whose number of replicas is not set. Every disruption of their Pods is denied
    /// until a user sets the number.
    pub fn unset_owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.owned.owners_without_replicas()
    }

    /// The owners whose number of replicas is not known, by the caches. Owners that cannot be read are not included.
    pub fn unknown_replicas_owners(&self) -> UnknownReplicasOwners {
        let named = |owner: &Arc<Owner>| format!("{} {}", owner.kind, owner.name);
        UnknownReplicasOwners {
            unreadable: Vec::new(),
            unset: self.unset_owners().map(named).collect(),
            unknown: self.unknown_owners().map(named).collect(),
            ownerless: self.bare > 0 && self.owners().next().is_none(),
        }
    }

    /// The owners that must be read live before a decision: owners of kinds that are not watched, owners that the
    /// caches do not know yet, and owners with more living Pods than the caches expect.
    pub fn doubtful_owners(&self) -> impl Iterator<Item = &Uid> {
        self.owned.doubtful_owners()
    }

    /// How many Pods the rule selects, in any phase.
    pub fn selected_count(&self) -> usize {
        self.selected.len()
    }

    /// The names of the selected Pods in any phase, sorted.
    pub fn pod_names(&self) -> impl Iterator<Item = &str> {
        self.selected.sorted_names()
    }

    /// How many selected Pods are available, see [`counts_as_available`].
    pub fn available(&self) -> u32 {
        self.available
    }

    /// The selected Pods that wait in PreCheck, the longest waiting one first.
    pub fn pre_check_waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.waiting.iter().map(|(_, uid)| uid)
    }

    /// The Pods of [`Tally::pre_check_waiting`] that come after `last` (`None`: all), each with the time since when it
    /// waits.
    pub fn pre_check_waiting_after(
        &self,
        last: Option<&(u64, Uid)>,
    ) -> impl Iterator<Item = &(u64, Uid)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded))
    }

    /// The selected Pods that wait in PostCheck.
    pub fn post_check_waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.post_waiting.iter()
    }

    /// The selected living Pods that do not count as available, the longest first. Pods that still serve have no time.
    pub fn unavailable_pods(&self) -> impl Iterator<Item = &(Option<Timestamp>, Uid)> {
        self.unavailable.iter()
    }

    pub fn add_pod(&mut self, rules: &RuleSet, pod: &Arc<Pod>, workloads: &Workloads) {
        self.change_pod(rules, pod, workloads, true);
    }

    /// Removes a Pod from the counts. `pod` must be the same state that was added.
    pub fn remove_pod(&mut self, rules: &RuleSet, pod: &Arc<Pod>, workloads: &Workloads) {
        self.change_pod(rules, pod, workloads, false);
    }

    /// Updates the counts after an owner was added, changed, read or removed. `workloads` must already have the change.
    pub fn update_owner(&mut self, rules: &RuleSet, uid: &Uid, workloads: &Workloads) {
        let making = workloads
            .get(uid)
            .filter(|w| w.replicas != Some(0) && !w.paused);
        let template = making.is_some_and(|w| {
            let labels = w.template_labels.as_ref();
            let matches = |labels| rules.selector.as_ref().is_ok_and(|s| s.matches(labels));
            w.template_labels_dropped || labels.is_some_and(matches)
        });
        if template || self.owned.has_owner(uid) {
            self.owned
                .change_direct_owner(uid, workloads, |direct| direct.template = template);
        }
        self.owned.assess_root(uid, workloads); // the owner may also be the controller of ReplicaSets
    }

    fn change_pod(&mut self, rules: &RuleSet, pod: &Arc<Pod>, workloads: &Workloads, add: bool) {
        if !rules.selects(pod) {
            return;
        }
        self.selected.update_pod(pod, add);
        if pod.is_finished() {
            return;
        }
        let step = |n: &mut u32| *n = if add { *n + 1 } else { n.saturating_sub(1) };
        let alive = !pod.is_terminating();
        let owner = pod.controller();
        match owner.filter(|owner| WatchedKind::may_own(owner, &pod.metadata.name)) {
            Some(owner) => {
                let uid = Uid::from(owner.uid.as_str());
                self.owned.change_direct_owner(&uid, workloads, |direct| {
                    direct.count_pod(owner, alive, add);
                });
            }
            None if alive => step(&mut self.bare),
            None => {}
        }
        let uid = || Uid::from(pod.metadata.uid.as_str());
        if counts_as_available(pod) {
            step(&mut self.available);
        } else if alive {
            set_membership(&mut self.unavailable, (unavailable_since(pod), uid()), add);
        }
        if let Some(since) = waiting_since(pod, Family::PreCheck).filter(|_| alive) {
            set_membership(&mut self.waiting, (since, uid()), add);
        }
        if alive && waiting_since(pod, Family::PostCheck).is_some() {
            set_membership(&mut self.post_waiting, uid(), add);
        }
    }
}

fn set_membership<T: Ord>(of: &mut BTreeSet<T>, item: T, add: bool) {
    if add {
        of.insert(item);
    } else {
        of.remove(&item);
    }
}

/// Since when the Pod has a label of this family (PreCheck or PostCheck), in nanoseconds. `None` if it has no such
/// label.
pub fn waiting_since(pod: &Pod, family: Family) -> Option<u64> {
    pod.metadata
        .labels
        .iter()
        .filter(|(key, _)| Family::parse(key).is_some_and(|(f, _)| f == family))
        .map(|(_, nanos)| nanos.parse().unwrap_or(0))
        .min()
}

/// Since when the Pod is unavailable: the last transition of its condition Ready, or its creation if it has no such
/// condition. `None` if the Pod still serves.
fn unavailable_since(pod: &Pod) -> Option<Timestamp> {
    if pod.is_available() {
        return None;
    }
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready");
    ready
        .and_then(|c| c.last_transition_time.as_ref())
        .or(pod.metadata.creation_timestamp.as_ref())
        .and_then(|text| text.parse().ok())
}
