//! The counts behind one rule object, kept incrementally: a decision reads them and costs the same at 10 Pods and at
//! 10,000.

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
use crate::api::keys::Family;
use crate::domain::announced_disruption::counts_as_available;
use crate::domain::pod::{Owner, Pod};
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions::UnknownReplicasOwners;
use crate::ledger::store::Uid;

/// Counts of the Pods that one rule object selects.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    available: u32,
    /// Living Pods without a controller, or whose name no Pod of that controller has.
    bare: u32,
    owned: OwnerCounts,
    selected: SelectedPods,
    waiting: BTreeSet<(u64, Uid)>,
    post_waiting: BTreeSet<Uid>,
    unavailable: BTreeSet<(Option<Timestamp>, Uid)>,
}

impl Tally {
    /// Counts from scratch.
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

    /// How many Pods there should be: as many as their owners ask for, and the selected Pods without an owner.
    pub fn expected(&self) -> u32 {
        let owned = self.owned.expected_total();
        clamp_to_u32(owned.owned + owned.orphaned + u64::from(self.bare))
    }

    /// What a percentage is of: the Pods that owners ask for, or all expected ones if no owner asks for any. Pods without
    /// an owner must not enlarge the percentage of others.
    pub fn percentage_base(&self) -> u32 {
        match self.owned.expected_total().owned {
            0 => self.expected(),
            owned => clamp_to_u32(owned),
        }
    }

    /// Direct owners of the selected Pods, and owners whose templates make such Pods.
    pub fn owners(&self) -> impl Iterator<Item = &Uid> {
        self.owned.direct_owners()
    }

    /// Whether [`Tally::owners`] has this owner.
    pub fn has_owner(&self, uid: &Uid) -> bool {
        self.owned.has_owner(uid)
    }

    /// Owners that do not say how many Pods they are to have; their living Pods count.
    pub fn unknown_owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.owned.owners_without_scale()
    }

    /// Owners of a kind with `scale` that do not set the number of replicas. Every disruption of their Pods is denied until
    /// somebody sets it.
    pub fn unset_owners(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.owned.owners_without_replicas()
    }

    /// What the owners do not say, by the caches; owners that can't be read are not among it.
    pub fn unknown_replicas_owners(&self) -> UnknownReplicasOwners {
        let named = |owner: &Arc<Owner>| format!("{} {}", owner.kind, owner.name);
        UnknownReplicasOwners {
            unreadable: Vec::new(),
            unset: self.unset_owners().map(named).collect(),
            unknown: self.unknown_owners().map(named).collect(),
            ownerless: self.bare > 0 && self.owners().next().is_none(),
        }
    }

    /// Owners that must be read live before a decision: those of kinds that are not watched, those that the caches do
    /// not know yet, and those with more living Pods than the caches expect.
    pub fn doubtful_owners(&self) -> impl Iterator<Item = &Uid> {
        self.owned.doubtful_owners()
    }

    /// How many Pods are selected, in any phase.
    pub fn selected_count(&self) -> usize {
        self.selected.len()
    }

    /// Names of the selected Pods in any phase, sorted.
    pub fn pod_names(&self) -> impl Iterator<Item = &str> {
        self.selected.sorted_names()
    }

    /// Selected Pods that are available, see [`is_counted`].
    pub fn available(&self) -> u32 {
        self.available
    }

    /// Selected Pods waiting in PreCheck, the longest first.
    pub fn pre_check_waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.waiting.iter().map(|(_, uid)| uid)
    }

    /// The Pods of [`Tally::waiting`] that come after one of them (`None`: all), with the time since when each waits.
    pub fn pre_check_waiting_after(
        &self,
        last: Option<&(u64, Uid)>,
    ) -> impl Iterator<Item = &(u64, Uid)> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded))
    }

    /// Selected Pods waiting in PostCheck.
    pub fn post_check_waiting(&self) -> impl ExactSizeIterator<Item = &Uid> {
        self.post_waiting.iter()
    }

    /// Selected Pods that do not count as available and are still there, the longest first. Those that serve still have no time.
    pub fn unavailable_pods(&self) -> impl Iterator<Item = &(Option<Timestamp>, Uid)> {
        self.unavailable.iter()
    }

    /// Counts a Pod in.
    pub fn add_pod(&mut self, rules: &RuleSet, pod: &Arc<Pod>, workloads: &Workloads) {
        self.change_pod(rules, pod, workloads, true);
    }

    /// Counts a Pod out again; it must be the very state that was counted in.
    pub fn remove_pod(&mut self, rules: &RuleSet, pod: &Arc<Pod>, workloads: &Workloads) {
        self.change_pod(rules, pod, workloads, false);
    }

    /// An owner came, changed, was read or went; `workloads` know that already.
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
        self.owned.assess_root(uid, workloads); // where it is the controller of ReplicaSets
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

fn clamp_to_u32(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

fn set_membership<T: Ord>(of: &mut BTreeSet<T>, item: T, add: bool) {
    if add {
        of.insert(item);
    } else {
        of.remove(&item);
    }
}

/// Since when the Pod carries a label of this family (PreCheck, PostCheck), in nanoseconds; `None` if it doesn't.
pub fn waiting_since(pod: &Pod, family: Family) -> Option<u64> {
    pod.metadata
        .labels
        .iter()
        .filter(|(key, _)| Family::parse(key).is_some_and(|(f, _)| f == family))
        .map(|(_, nanos)| nanos.parse().unwrap_or(0))
        .min()
}

/// Since when the Pod is unavailable, as far as its condition tells; creation if it was never Ready. `None` if it serves still.
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
