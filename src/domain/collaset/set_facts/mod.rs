//! Derives from the observed objects the facts that the planning steps read.

mod decorations;
mod finished_pods;
mod instance_ids;
mod known_changes;
mod leaving_pods;
mod pvc_lookup;
mod revisions;
mod targets;

pub use decorations::ComposedOrFailure;
pub use revisions::resize_marks;
pub use targets::{Target, Targets};

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use self::known_changes::KnownChanges;
use super::composition::{Composition, StoredDecorations};
use super::observed::{ObservedSet, Pvc, pool_name, set_name};
use super::plan::DryRunChange;
use super::pvcs::hash::TemplateHashes;
use super::revision::history::RevisionHistory;
use super::revision::inplace::InPlaceChange;
use super::rollout::StoredRollout;
use super::strategy::ResolvedStrategy;
use crate::api::keys;
use crate::api::selector::Selector;
use crate::domain::pod::Pod;

/// The facts that the planning steps read.
pub struct SetFacts<'a> {
    pub observed: &'a ObservedSet,
    /// The spec with its defaults.
    pub strategy: ResolvedStrategy,
    /// The compiled `spec.selector`.
    pub selector: Selector,
    pub history: RevisionHistory,
    /// The rollout of the present template.
    pub rollout: StoredRollout,
    /// The compositions that were needed so far, by name.
    compositions: RefCell<BTreeMap<String, ComposedOrFailure>>,
    /// The stored revisions of decorations. Collected on first use.
    stored_decorations: OnceCell<StoredDecorations>,
    /// The changes in place between compositions. The comparison is slow.
    in_place_changes: KnownChanges<Rc<InPlaceChange>>,
    /// The dry runs before updates in place between compositions.
    pub dry_run_changes: KnownChanges<Option<Arc<DryRunChange>>>,
    /// The targets of the members. [`super::update`] computes them once for each plan.
    pub targets: OnceCell<Targets>,
    /// Compositions whose resources a Pod has, by the name of the Pod. Computed once, because many steps read it.
    resized: BTreeMap<&'a str, Vec<Rc<Composition>>>,
    /// Hashes of all `volumeClaimTemplates` of these revisions.
    pub template_hashes: TemplateHashes,
    /// The same hashes and those of the spec. Computed on first use, which only PVCs cause.
    hashes_with_spec: OnceCell<TemplateHashes>,
    /// PVCs by the instance ID in their label, without those of Pods that have left the set.
    pvcs_by_id: BTreeMap<i64, Vec<Arc<Pvc>>>,
    /// Instance IDs of the PVCs that belong to the set, by the name of the PVC.
    owned_pvc_ids: BTreeMap<&'a str, i64>,
    pvcs_by_name: BTreeMap<&'a str, &'a Arc<Pvc>>,
    /// IDs that the pool holds for Pods of the set.
    recorded_ids: BTreeSet<i64>,
    /// Name of the set.
    pub name: &'a str,
    /// Name of the pool.
    pub pool: &'a str,
    /// IDs of the pool that belong to other sets.
    pub foreign: BTreeSet<i64>,
    /// Pods that count as members, by instance ID: controlled, selected, not terminating, not finished.
    pub members: BTreeMap<i64, Arc<Pod>>,
    /// Whether at least one member is not of the updated revision.
    pub is_rolling_out: bool,
    /// Names of the Pods that the set controls and that are not terminating.
    present_names: BTreeSet<&'a str>,
    /// Pods that would be members, but whose instance ID an older Pod has.
    pub misnumbered: Vec<Arc<Pod>>,
    /// Controlled Pods that are terminating, by instance ID.
    pub terminating: BTreeMap<i64, Vec<Arc<Pod>>>,
    /// Controlled and selected Pods that are finished (`Succeeded` or `Failed`).
    pub finished: Vec<Arc<Pod>>,
    /// The finished Pods by instance ID.
    finished_by_id: BTreeMap<i64, Vec<Arc<Pod>>>,
    /// The finished Pods whose successor the set creates later, by instance ID. Until then the finished Pod holds the
    /// ID.
    pub recreated_later: BTreeMap<i64, Arc<Pod>>,
    /// Controlled Pods that the selector no longer matches.
    pub unselected: Vec<Arc<Pod>>,
}

impl<'a> SetFacts<'a> {
    /// Sorts the observed Pods and PVCs.
    pub fn from_observed(
        observed: &'a ObservedSet,
        strategy: ResolvedStrategy,
        selector: Selector,
        history: RevisionHistory,
        rollout: StoredRollout,
    ) -> SetFacts<'a> {
        let set = &observed.set;
        let mut facts = SetFacts {
            observed,
            strategy,
            selector,
            compositions: RefCell::default(),
            stored_decorations: OnceCell::new(),
            in_place_changes: KnownChanges::default(),
            dry_run_changes: KnownChanges::default(),
            targets: OnceCell::new(),
            resized: BTreeMap::new(),
            template_hashes: TemplateHashes::from_revisions(history.readable_revisions()),
            hashes_with_spec: OnceCell::new(),
            pvcs_by_id: BTreeMap::new(),
            owned_pvc_ids: BTreeMap::new(),
            pvcs_by_name: observed.pvcs.iter().map(|c| (&*c.name, c)).collect(),
            recorded_ids: BTreeSet::new(),
            history,
            rollout,
            name: set_name(set),
            pool: pool_name(set),
            foreign: BTreeSet::new(),
            members: BTreeMap::new(),
            is_rolling_out: false,
            present_names: BTreeSet::new(),
            misnumbered: Vec::new(),
            terminating: BTreeMap::new(),
            finished: Vec::new(),
            finished_by_id: BTreeMap::new(),
            recreated_later: BTreeMap::new(),
            unselected: Vec::new(),
        };
        for pod in &observed.pods {
            let resized = facts.find_resized(pod);
            if !resized.is_empty() {
                facts.resized.insert(&pod.metadata.name, resized);
            }
        }
        facts.foreign = facts.pool_ids(false);
        facts.recorded_ids = facts.pool_ids(true);
        facts.sort_pvcs();
        facts.sort_pods();
        facts.number_pods();
        facts.recreated_later = facts.find_pods_recreated_later();
        facts.is_rolling_out = facts.members.values().any(|pod| !facts.is_updated(pod));
        facts
    }

    fn sort_pvcs(&mut self) {
        let observed = self.observed;
        let uid = observed.set.metadata.uid.as_deref();
        for pvc in &observed.pvcs {
            let id = pvc.labels.get(keys::INSTANCE_ID);
            // A PVC that a Pod outside the set mounts serves no other Pod, even if the PVC has no label that says so.
            let mut mounting = self.pods_mounting(&pvc.name).iter();
            let is_own = pvc.belongs_to_set(uid);
            let has_left = !is_own && mounting.any(|pod| self.has_left(pod));
            if let Some(id) = id
                .and_then(|id| instance_ids::parse_instance_id(id))
                .filter(|_| !has_left)
            {
                self.pvcs_by_id.entry(id).or_default().push(pvc.clone());
                if is_own {
                    self.owned_pvc_ids.insert(&pvc.name, id);
                }
            }
        }
    }

    fn sort_pods(&mut self) {
        let mut pods: Vec<&Arc<Pod>> = self.observed.pods.iter().collect();
        let present = pods.iter().filter(|pod| !pod.is_terminating());
        self.present_names = present.map(|pod| &*pod.metadata.name).collect();
        // If two Pods have the same ID, the older Pod keeps it.
        pods.sort_by_key(|p| (&p.metadata.creation_timestamp, &p.metadata.name));
        for pod in pods {
            self.sort_pod(pod);
        }
        let finished = self.finished.iter();
        let finished = finished.filter_map(|pod| Some((self.instance_id_of(pod)?, pod)));
        let mut finished_by_id: BTreeMap<i64, Vec<Arc<Pod>>> = BTreeMap::new();
        for (id, pod) in finished {
            finished_by_id.entry(id).or_default().push(Arc::clone(pod));
        }
        self.finished_by_id = finished_by_id;
    }

    fn sort_pod(&mut self, pod: &Arc<Pod>) {
        let pod = Arc::clone(pod);
        if pod.is_terminating() {
            if let Some(id) = self.instance_id_of(&pod) {
                self.terminating.entry(id).or_default().push(pod);
            }
        } else if !self.selector.matches(&pod.metadata.labels) {
            self.unselected.push(pod);
        } else if pod.is_finished() {
            self.finished.push(pod);
        } else {
            match self
                .instance_id_of(&pod)
                .filter(|id| !self.foreign.contains(id))
            {
                Some(id) if !self.members.contains_key(&id) => {
                    self.members.insert(id, pod);
                }
                _ => self.misnumbered.push(pod),
            }
        }
    }
}
