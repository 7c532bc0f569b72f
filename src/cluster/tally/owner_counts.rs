//! Counts for how many Pods of one rule the owners ask.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::cluster::owner_sizes::{OwnerSize, Workloads};
use crate::domain::pod::Owner;
use crate::ledger::store::Uid;

/// The owners of the Pods that one rule selects, grouped by the owner whose number counts (the root). A change
/// recomputes only the owners of one root.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnerCounts {
    direct: HashMap<Uid, DirectOwner>,
    roots: HashMap<Uid, RootCount>,
    total: ExpectedSum,
    /// The owners that must be read live before a decision, by root. The lists are never empty.
    doubts: BTreeMap<Uid, Vec<Uid>>,
}

/// An owner that Pods name as their controller, or whose template creates selected Pods.
#[derive(Clone, Debug, Default)]
pub(super) struct DirectOwner {
    /// The Pods of the owner, by their owner reference. All references have the UID of the owner. The API server checks
    /// neither kind nor name, so a reference may be forged.
    pods: BTreeMap<Arc<Owner>, PodCounts>,
    /// Whether the rule selects Pods that are created from the owner's template.
    pub template: bool,
    root: Option<Uid>,
}

/// The numbers of selected Pods.
#[derive(Clone, Copy, Debug, Default)]
struct PodCounts {
    /// Pods that are neither terminating nor finished.
    alive: u32,
    /// Pods that are not finished, including terminating ones.
    present: u32,
}

impl DirectOwner {
    /// Adds a Pod with this owner reference to the counts, or removes it.
    pub fn count_pod(&mut self, owner: &Owner, alive: bool, add: bool) {
        let step = |n: &mut u32| *n = if add { *n + 1 } else { n.saturating_sub(1) };
        if !self.pods.contains_key(owner) {
            let reference = Arc::new(owner.clone());
            self.pods.insert(reference, PodCounts::default());
        }
        let Some(pods) = self.pods.get_mut(owner) else {
            return;
        };
        step(&mut pods.present);
        if alive {
            step(&mut pods.alive);
        }
        if pods.present == 0 {
            self.pods.remove(owner);
        }
    }

    /// The number of living Pods whose reference leads to the owner, and the number of living Pods whose reference has
    /// its UID but leads elsewhere.
    fn living_pods(&self, uid: &str, workloads: &Workloads) -> (u32, u32) {
        let mut alive = (0, 0);
        for (owner, pods) in &self.pods {
            match workloads.is_reference_valid(uid, owner) {
                true => alive.0 += pods.alive,
                false => alive.1 += pods.alive,
            }
        }
        alive
    }

    fn is_idle(&self) -> bool {
        self.pods.is_empty() && !self.template
    }
}

#[derive(Clone, Debug, Default)]
struct RootCount {
    members: BTreeSet<Uid>,
    sum: ExpectedSum,
    no_scale: Option<Arc<Owner>>,
    unset: Option<Arc<Owner>>,
}

/// The number of expected Pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpectedSum {
    /// Pods for which owners ask.
    pub owned: u64,
    /// Pods that count for themselves: the owner is gone, has no number of Pods or creates no more Pods, or the Pod's
    /// reference does not lead to the owner.
    pub orphaned: u64,
}

/// The result for one root.
#[derive(Debug, Default)]
struct RootAssessment {
    sum: ExpectedSum,
    no_scale: Option<Arc<Owner>>,
    unset: Option<Arc<Owner>>,
    doubts: Vec<Uid>,
}

impl OwnerCounts {
    pub fn expected_total(&self) -> ExpectedSum {
        self.total
    }

    pub fn direct_owners(&self) -> impl Iterator<Item = &Uid> {
        self.direct.keys()
    }

    /// Owners without a number of Pods.
    pub fn owners_without_scale(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.roots.values().filter_map(|r| r.no_scale.as_ref())
    }

    /// Owners that have a field for the number of Pods, and the field is not set.
    pub fn owners_without_replicas(&self) -> impl Iterator<Item = &Arc<Owner>> {
        self.roots.values().filter_map(|r| r.unset.as_ref())
    }

    /// Owners that must be read live before a decision.
    pub fn doubtful_owners(&self) -> impl Iterator<Item = &Uid> {
        self.doubts.values().flatten()
    }

    /// Whether the owner has selected Pods or creates them.
    pub fn has_owner(&self, uid: &Uid) -> bool {
        self.direct.contains_key(uid)
    }

    /// Changes the counts of a direct owner.
    pub fn change_direct_owner(
        &mut self,
        uid: &Uid,
        workloads: &Workloads,
        change: impl FnOnce(&mut DirectOwner),
    ) {
        let direct = self.direct.entry(uid.clone()).or_default();
        change(direct);
        let idle = direct.is_idle();
        let after = (!idle).then(|| workloads.root_owner(uid).uid());
        let before = std::mem::replace(&mut direct.root, after.clone());
        if idle {
            self.direct.remove(uid);
        }
        if before != after {
            if let Some(before) = &before
                && let Some(root) = self.roots.get_mut(before)
            {
                root.members.remove(uid);
                self.assess_root(before, workloads);
            }
            if let Some(after) = &after {
                let root = self.roots.entry(after.clone()).or_default();
                root.members.insert(uid.clone());
            }
        }
        if let Some(after) = after {
            self.assess_root(&after, workloads);
        }
    }

    /// Recomputes a root.
    pub fn assess_root(&mut self, uid: &Uid, workloads: &Workloads) {
        let Some(root) = self.roots.get_mut(uid) else {
            return;
        };
        let members = root.members.iter();
        let members = members.filter_map(|uid| Some((uid, self.direct.get(uid)?)));
        let new = assess_owners(uid, members, workloads);
        let total = &mut self.total;
        total.owned = total.owned - root.sum.owned + new.sum.owned;
        total.orphaned = total.orphaned - root.sum.orphaned + new.sum.orphaned;
        (root.sum, root.no_scale, root.unset) = (new.sum, new.no_scale, new.unset);
        if root.members.is_empty() {
            self.roots.remove(uid);
        }
        match new.doubts.is_empty() {
            true => self.doubts.remove(uid),
            false => self.doubts.insert(uid.clone(), new.doubts),
        };
    }
}

/// The result for the owners below one root. Each of them has selected Pods or creates them.
fn assess_owners<'a>(
    root: &Uid,
    members: impl Iterator<Item = (&'a Uid, &'a DirectOwner)> + Clone,
    workloads: &Workloads,
) -> RootAssessment {
    let mut found = RootAssessment::default();
    if members.clone().next().is_none() {
        return found;
    }
    let (mut alive, mut strays) = (0, 0);
    for (uid, member) in members.clone() {
        let (own, stray) = member.living_pods(uid, workloads);
        alive += own;
        strays += u64::from(stray);
    }
    let size = workloads.owner_size(root);
    let doubt = match size {
        OwnerSize::Count(n) => workloads.may_change_unseen(root) || alive > n,
        OwnerSize::Alive | OwnerSize::SelfCounted => false,
        OwnerSize::NoScale | OwnerSize::Gone => workloads.may_change_unseen(root),
        OwnerSize::Unread | OwnerSize::Unset => true,
    };
    found.doubts.extend(doubt.then(|| root.clone()));
    match size {
        OwnerSize::Count(n) => {
            found.sum.owned = n.into();
            found.sum.orphaned = strays;
        }
        OwnerSize::Alive => {
            found.sum.owned = alive.into();
            found.sum.orphaned = strays;
        }
        OwnerSize::NoScale => {
            found.no_scale = workloads.owner_without_replicas(root).cloned();
            assess_each_owner(root, members, workloads, &mut found);
        }
        OwnerSize::Unset => {
            found.unset = workloads.owner_without_replicas(root).cloned();
            assess_each_owner(root, members, workloads, &mut found);
        }
        OwnerSize::SelfCounted | OwnerSize::Gone | OwnerSize::Unread => {
            assess_each_owner(root, members, workloads, &mut found)
        }
    }
    found
}

/// Counts each direct owner for itself, because the number of the root is not known or does not count.
fn assess_each_owner<'a>(
    root: &Uid,
    members: impl Iterator<Item = (&'a Uid, &'a DirectOwner)>,
    workloads: &Workloads,
    found: &mut RootAssessment,
) {
    for (uid, member) in members {
        let (alive, strays) = member.living_pods(uid, workloads);
        found.sum.orphaned += u64::from(strays);
        match workloads.owner_size(uid) {
            OwnerSize::Count(n) => {
                found.sum.owned += u64::from(n);
                if uid != root && alive > n {
                    found.doubts.push(uid.clone());
                }
            }
            OwnerSize::SelfCounted | OwnerSize::NoScale | OwnerSize::Gone => {
                found.sum.orphaned += u64::from(alive)
            }
            OwnerSize::Alive | OwnerSize::Unset | OwnerSize::Unread => {
                found.sum.owned += u64::from(alive);
            }
        }
    }
}
