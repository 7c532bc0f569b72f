//! The cluster as this replica knows it: one index that one watch per kind fills, shared by admission and controllers.

mod collaset_deletion;
mod ended_pods;
mod namespaces;
mod owners;
mod pods;
mod rule_view;
mod rules;
mod short_outages;
#[cfg(test)]
mod tests;
mod unblocked_operations;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch;

use super::changes::{Change, Changes};
use super::etcd_history::EtcdHistory;
use super::kind::{KindSet, WatchedKind};
use super::owner_sizes::{OwnerSize, Workload, Workloads};
use super::pods_by_controller::PodsByController;
use super::tally::Tally;
use super::watch_trust::DecisionWatches;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::pod::{Owner, Pod};
use crate::domain::rules::SkipAnnotation;
use crate::domain::rules::webhook::EndpointVerdicts;
use crate::ledger::store::{RuleKey, RuleSnapshot, Uid};
use ended_pods::EndedPods;
use short_outages::ShortOutages;

pub use namespaces::NamespaceFacts;

/// The index of Pods, rules, namespaces and owners.
#[derive(Debug)]
pub struct Index {
    /// Whether the API server still has the history that this index rests on.
    pub etcd_history: EtcdHistory,
    /// Whether the watches that decisions rest on are fresh.
    pub decision_watches: Arc<DecisionWatches>,
    /// Replaced Pods that are known to be gone.
    pub ended_pods: EndedPods,
    state: RwLock<IndexState>,
    position: watch::Sender<u64>,
    listed: watch::Sender<ListedKinds>,
    changes: Changes,
    skips: SkipAnnotation,
}

/// The kinds that have been listed at least once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListedKinds(KindSet);

impl ListedKinds {
    /// Whether all kinds that decisions rest on have been listed.
    pub fn has_decision_kinds(self) -> bool {
        WatchedKind::decision_kinds().all(|kind| self.0.contains(kind))
    }

    /// Names of the kinds that [`ListedKinds::has_decision_kinds`] still waits for.
    pub fn missing_kinds(self) -> Vec<&'static str> {
        let missing = WatchedKind::decision_kinds().filter(|kind| !self.0.contains(*kind));
        missing.map(WatchedKind::name).collect()
    }

    /// Whether all kinds that the controllers of CollaSets, PodDecorations and OperationJobs read have been listed.
    pub fn has_collaset_kinds(self) -> bool {
        let mut kinds = [WatchedKind::Pod]
            .into_iter()
            .chain(WatchedKind::COLLASET_KINDS);
        kinds.all(|kind| self.0.contains(kind))
    }
}

/// The state behind the lock.
#[derive(Debug, Default)]
pub struct IndexState {
    /// The largest resourceVersion that the Pod watch has delivered.
    pub position: u64,
    /// The largest resourceVersion of a Pod event or list, without bookmarks. Every other cache reaches it, too.
    pub last_event: u64,
    following: Arc<DecisionWatches>,
    namespaces: HashMap<String, NamespaceIndex>,
}

/// The objects of one namespace.
#[derive(Debug, Default)]
pub struct NamespaceIndex {
    /// The deletion timestamp of the namespace. A new namespace of the same name has none, but the watch may deliver
    /// the new namespace late.
    pub terminating_since: Option<Timestamp>,
    /// The UID of the namespace. Empty until the namespace has been seen.
    pub uid: String,
    /// The resourceVersion of the namespace. 0 until the namespace has been seen.
    pub version: u64,
    /// The labels of the namespace. `None` until the namespace has been seen.
    pub labels: Option<BTreeMap<String, String>>,
    /// Managed Pods by UID.
    pub pods: HashMap<Uid, Arc<Pod>>,
    /// Rule objects by name.
    pub rules: BTreeMap<String, RuleEntry>,
    /// Names of rule objects that are being deleted and that still have a finalizer. They are not enforced.
    pub ending_rules: BTreeSet<String>,
    owners: PodsByController,
    workloads: Workloads,
    short_outages: ShortOutages,
}

/// A rule object with its counts.
#[derive(Debug)]
pub struct RuleEntry {
    /// The rule object.
    pub object: Arc<PodTransitionRule>,
    /// The compiled rules, with their claims.
    pub snapshot: RuleSnapshot,
    /// The operations that the endpoints of its webhook rules have let pass.
    pub verdicts: Arc<EndpointVerdicts>,
    /// The counts of the Pods that the rule selects.
    pub tally: Tally,
}

impl RuleEntry {
    /// The identity of the rule object.
    pub fn rule_key(&self) -> RuleKey {
        let rules = &self.snapshot.rules;
        RuleKey {
            uid: rules.uid.clone(),
            namespace: rules.namespace.clone(),
            name: rules.name.clone(),
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        let following = Arc::<DecisionWatches>::default();
        let state = IndexState {
            following: Arc::clone(&following),
            ..IndexState::default()
        };
        Index {
            etcd_history: EtcdHistory::default(),
            decision_watches: following,
            ended_pods: EndedPods::default(),
            state: RwLock::new(state),
            position: watch::Sender::new(0),
            listed: watch::Sender::new(ListedKinds::default()),
            changes: Changes::default(),
            skips: SkipAnnotation::default(),
        }
    }
}

impl Index {
    /// Creates an empty index. `skips` says whether Pods can skip the rules in it.
    pub fn new(skips: SkipAnnotation) -> Index {
        Index {
            skips,
            ..Index::default()
        }
    }

    /// Whether Pods can skip rules.
    pub fn skips(&self) -> SkipAnnotation {
        self.skips
    }

    /// Locks the state for reading. Hold the guard only briefly, and never across an `await`.
    pub fn read_state(&self) -> RwLockReadGuard<'_, IndexState> {
        self.state.read()
    }

    /// Whether the state is not locked for longer than `wait`. This function blocks; the watchdog calls it.
    pub fn is_unlocked_within(&self, wait: Duration) -> bool {
        self.state.try_read_for(wait).is_some()
    }

    /// The channel on which the index announces changes.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The kinds that have been listed.
    pub fn listed_kinds(&self) -> ListedKinds {
        *self.listed.borrow()
    }

    /// Returns when all kinds that decisions rest on have been listed once.
    pub async fn wait_listed(&self) {
        let mut listed = self.listed.subscribe();
        let _ = listed.wait_for(|listed| listed.has_decision_kinds()).await; // the sender lives as long as self
    }

    /// Returns when the Pod cache has reached `position`.
    pub async fn wait_position(&self, position: u64) {
        let mut reached = self.position.subscribe();
        let _ = reached.wait_for(|p| *p >= position).await; // the sender lives as long as self
    }

    /// The rule objects that cover a Pod, by the labels of `pod`.
    pub fn rules_covering_pod(&self, pod: &Pod) -> Vec<RuleKey> {
        self.read_state()
            .rules_covering(pod)
            .map(RuleEntry::rule_key)
            .collect()
    }

    fn advance_position(&self, state: &mut IndexState, version: u64, event: bool) {
        if event {
            state.last_event = state.last_event.max(version);
        }
        if version > state.position {
            state.position = version;
            self.position.send_replace(version);
        }
    }

    pub(super) fn notify(&self, change: Change) {
        self.changes.notify(change);
    }

    /// Records that a kind has been listed.
    pub fn mark_listed(&self, kind: WatchedKind) {
        self.listed.send_modify(|listed| listed.0.insert(kind));
    }

    /// Records that every kind has been listed.
    #[cfg(test)]
    pub fn mark_all_listed(&self) {
        let kinds = WatchedKind::decision_kinds().chain(WatchedKind::COLLASET_KINDS);
        kinds.for_each(|kind| self.mark_listed(kind));
    }
}

impl IndexState {
    /// A namespace, if the index has anything of it.
    pub fn namespace(&self, name: &str) -> Option<&NamespaceIndex> {
        self.namespaces.get(name)
    }

    /// All namespaces.
    pub fn namespaces(&self) -> impl Iterator<Item = (&String, &NamespaceIndex)> {
        self.namespaces.iter()
    }

    /// A Pod by its UID.
    pub fn pod(&self, namespace: &str, uid: &str) -> Option<&Arc<Pod>> {
        self.namespace(namespace)?.pods.get(uid)
    }

    /// A rule object by its name.
    pub fn rule(&self, namespace: &str, name: &str) -> Option<&RuleEntry> {
        self.namespace(namespace)?.rules.get(name)
    }
}

impl NamespaceIndex {
    /// The Pods that a controller owns. The empty UID gives the Pods without a controller.
    pub fn pods_owned_by(&self, controller: &str) -> impl Iterator<Item = &Arc<Pod>> {
        self.owners.pods(controller)
    }

    /// The Pods of a controller that are neither finished nor terminating.
    pub fn living_pods_of(&self, controller: &str) -> impl Iterator<Item = &Arc<Pod>> {
        let owned = self.pods_owned_by(controller);
        owned.filter(|pod| !pod.is_terminating() && !pod.is_finished())
    }

    /// Whether the index has this owner of a watched kind.
    pub fn has_workload(&self, uid: &str) -> bool {
        self.workloads.get(uid).is_some()
    }

    /// Whether the index has an owner of a watched kind that a Pod refers to. If the owner is a ReplicaSet that is
    /// gone, its Deployment counts instead: the Deployment creates the ReplicaSet again and still wants its Pods.
    pub fn has_living_owner(&self, owner: &Owner, pod: &Pod) -> bool {
        self.workloads.has_living_owner(owner, pod)
    }

    /// Whether the owner that a reference names exists with this kind, name and UID. The Kubernetes garbage collector
    /// checks the same.
    pub fn has_owner(&self, owner: &Owner) -> bool {
        self.workloads
            .get(&owner.uid)
            .is_some_and(|workload| workload.is_referenced_by(owner))
    }

    /// The reference by which the owner with this UID was found. `None` if it has not been found yet.
    pub fn resolved_owner(&self, uid: &str) -> Option<Arc<Owner>> {
        self.workloads.resolving_reference(uid)
    }

    /// Every distinct reference to an owner with this UID in managed Pods and ReplicaSets, the most frequent first. The
    /// API server checks neither the kind nor the name in a reference, so all but one may be forged.
    pub fn owner_references(&self, uid: &str) -> Vec<Arc<Owner>> {
        let of_pods = self.pods_owned_by(uid).filter_map(|pod| pod.controller());
        let of_sets = self
            .workloads
            .replica_set_controllers(uid)
            .map(|owner| &**owner);
        let mut counted = BTreeMap::<&Owner, usize>::new();
        for owner in of_pods.chain(of_sets) {
            *counted.entry(owner).or_default() += 1;
        }
        let mut all: Vec<_> = counted.into_iter().collect();
        all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        all.into_iter()
            .map(|(owner, _)| Arc::new(owner.clone()))
            .collect()
    }

    /// Whether anything is known about an owner: a watch has delivered it, or all references to it were followed.
    pub fn is_owner_known(&self, uid: &str) -> bool {
        self.workloads.owner_size(uid) != OwnerSize::Unread
    }

    /// The owners of watched kinds, by UID. Each has its own number of replicas, even if the number of its controller
    /// counts.
    pub fn workloads(&self) -> impl Iterator<Item = (&Uid, &Workload)> {
        self.workloads.iter()
    }

    /// An owner of a watched kind, by its UID.
    pub fn workload(&self, uid: &str) -> Option<&Workload> {
        self.workloads.get(uid)
    }

    /// How many living managed Pods an owner has beyond its number of replicas. Its controller will delete these Pods.
    /// 0 for an owner that is not watched.
    pub fn surplus_pods(&self, uid: &str) -> u32 {
        self.pods_beyond_replicas(uid, |_| 0)
    }

    /// As [`Self::surplus_pods`], but also counts the Pods that the owner's controller has seen last, managed or not.
    /// For a short time after a deletion, this number is too high.
    pub fn max_surplus_pods(&self, uid: &str) -> u32 {
        self.pods_beyond_replicas(uid, |workload| workload.pods_seen)
    }

    fn pods_beyond_replicas(&self, uid: &str, seen: impl FnOnce(&Workload) -> u32) -> u32 {
        let workload = self.workloads.get(uid);
        let Some((workload, wanted)) = workload.and_then(|w| Some((w, w.replicas?))) else {
            return 0;
        };
        let living = u32::try_from(self.living_pods_of(uid).count()).unwrap_or(u32::MAX);
        living.max(seen(workload)).saturating_sub(wanted)
    }

    /// Whether this Pod existed when the deletion of the namespace began. A Pod that was created later belongs to
    /// another namespace of the same name, because nothing can be created in a terminating namespace. Timestamps are
    /// whole seconds, so a Pod of the same second may belong to either namespace and does not count.
    pub fn is_deleted_with_namespace(&self, pod: &Pod) -> bool {
        self.ended_after(pod.created_at())
    }

    /// Whether the deletion of the namespace began after this time.
    pub fn ended_after(&self, created: Option<Timestamp>) -> bool {
        let times = created.zip(self.terminating_since);
        times.is_some_and(|(created, since)| created < since)
    }

    /// Whether the namespace and all its objects are gone.
    fn is_unused(&self) -> bool {
        self.labels.is_none()
            && self.pods.is_empty()
            && self.rules.is_empty()
            && self.ending_rules.is_empty()
            && self.workloads.is_empty()
    }
}
