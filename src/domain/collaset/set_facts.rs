//! Derives from the observed objects the facts that the planning steps read.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::observed::{ObservedSet, Pvc, Revision, owns_entry, pool_name};
use super::plan::DryRunChange;
use super::pvcs::{self, hash::TemplateHashes};
use super::revision::data::{pvc_template_name, pvc_templates};
use super::revision::history::RevisionHistory;
use super::revision::inplace::{self, InPlaceChange, UpdateProgress};
use super::revision::resize;
use super::revision::stable::RevisionUse;
use super::rollout::StoredRollout;
use super::set_operations::{self, SetOperation};
use super::strategy::ResolvedStrategy;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::pod::Pod;

/// Entries of the pool by instance ID.
type PoolEntries<'a> = BTreeMap<i64, &'a BTreeMap<String, String>>;

/// The facts that the planning steps read.
pub struct SetFacts<'a> {
    /// The observed objects.
    pub observed: &'a ObservedSet,
    /// The spec with its defaults.
    pub strategy: ResolvedStrategy,
    /// The compiled `spec.selector`.
    pub selector: Selector,
    /// The revisions of the set.
    pub history: RevisionHistory,
    /// The rollout of the present template.
    pub rollout: StoredRollout,
    /// For each revision, by name: the change in place from it to the updated revision. Computed on first use, because
    /// the comparison is slow.
    in_place_changes: BTreeMap<String, OnceCell<InPlaceChange>>,
    /// For each revision, by name: the dry run before an update in place begins. Computed on first use.
    dry_run_changes: BTreeMap<String, OnceCell<Option<Arc<DryRunChange>>>>,
    /// Revisions whose resources a Pod has, by the name of the Pod. Computed once, because many steps read it.
    resized: BTreeMap<&'a str, Vec<Arc<Revision>>>,
    /// Hashes of all `volumeClaimTemplates` of these revisions.
    pub template_hashes: TemplateHashes,
    /// The same hashes and those of the spec. Computed on first use, which only PVCs cause.
    hashes_with_spec: OnceCell<TemplateHashes>,
    /// PVCs by the instance ID in their label, without those of Pods that have left the set.
    pvcs_by_id: BTreeMap<i64, Vec<Arc<Pvc>>>,
    /// Instance IDs of the PVCs that belong to the set, by the name of the PVC.
    owned_pvc_ids: BTreeMap<&'a str, i64>,
    /// All observed PVCs by name.
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
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let mut facts = SetFacts {
            observed,
            strategy,
            selector,
            in_place_changes: revision_cells(&history),
            dry_run_changes: revision_cells(&history),
            resized: BTreeMap::new(),
            template_hashes: TemplateHashes::from_revisions(history.readable_revisions()),
            hashes_with_spec: OnceCell::new(),
            pvcs_by_id: BTreeMap::new(),
            owned_pvc_ids: BTreeMap::new(),
            pvcs_by_name: observed.pvcs.iter().map(|c| (&*c.name, c)).collect(),
            recorded_ids: BTreeSet::new(),
            history,
            rollout,
            name,
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
            let resized: Vec<_> = facts.find_resized(pod).cloned().collect();
            if !resized.is_empty() {
                facts.resized.insert(&pod.metadata.name, resized);
            }
        }
        facts.foreign = facts.pool_ids(false);
        facts.recorded_ids = facts.pool_ids(true);
        let uid = set.metadata.uid.as_deref();
        for pvc in &observed.pvcs {
            let id = pvc.labels.get(keys::INSTANCE_ID);
            // A PVC that a Pod outside the set mounts serves no other Pod, even if the PVC has no label that says so.
            let mut mounting = facts.pods_mounting(&pvc.name).iter();
            let is_own = pvc.belongs_to_set(uid);
            let has_left = !is_own && mounting.any(|pod| facts.has_left(pod));
            if let Some(id) = id
                .and_then(|id| parse_instance_id(id))
                .filter(|_| !has_left)
            {
                facts.pvcs_by_id.entry(id).or_default().push(pvc.clone());
                if is_own {
                    facts.owned_pvc_ids.insert(&pvc.name, id);
                }
            }
        }
        let mut pods: Vec<&Arc<Pod>> = observed.pods.iter().collect();
        let present = pods.iter().filter(|pod| !pod.is_terminating());
        facts.present_names = present.map(|pod| &*pod.metadata.name).collect();
        // If two Pods have the same ID, the older Pod keeps it.
        pods.sort_by_key(|p| (&p.metadata.creation_timestamp, &p.metadata.name));
        for pod in pods {
            facts.sort_pod(pod);
        }
        for pod in &facts.finished {
            if let Some(id) = facts.instance_id_of(pod) {
                facts
                    .finished_by_id
                    .entry(id)
                    .or_default()
                    .push(Arc::clone(pod));
            }
        }
        facts.number_pods();
        facts.recreated_later = facts.find_pods_recreated_later();
        facts.is_rolling_out = facts.members.values().any(|pod| !facts.is_updated(pod));
        facts
    }

    /// Gives an instance ID to each Pod that has none of its own. This function prefers an ID that the pool records and
    /// that no Pod has, because it most likely belonged to the Pod. Otherwise it takes the lowest free ID that has no
    /// volumes of other Pods. The next plan gives the same IDs, so they need not be stored at once.
    fn number_pods(&mut self) {
        let misnumbered = std::mem::take(&mut self.misnumbered);
        let has_other = |pod: &Arc<Pod>| {
            let id = self.instance_id_of(pod);
            id.is_some_and(|id| self.members.contains_key(&id))
        };
        let (doubles, unnumbered): (Vec<_>, Vec<_>) = misnumbered.into_iter().partition(has_other);
        self.misnumbered = doubles;
        if unnumbered.is_empty() {
            return;
        }
        let recorded = self.recorded_ids.iter().copied();
        let mut vacant: BTreeSet<i64> = recorded.filter(|id| self.is_id_vacant(*id)).collect();
        let halves = self.origin_names_by_half();
        let mut lowest = 0;
        let set = &self.observed.set;
        for pod in unnumbered {
            // Neither take the ID reserved for the new Pod of another pair, nor an ID for which the set has other PVCs.
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_own = |pvc: &Pvc| pvc.terminating || pod.spec.pvcs.contains(&pvc.name);
            let suits = |id: &i64| {
                halves.get(id).is_none_or(|of| Some(&**of) == origin)
                    && self
                        .owned_pvcs_with_id(*id)
                        .all(|pvc| is_own(pvc) || self.is_pvc_spare(&pod, pvc))
            };
            let recorded_id = vacant.iter().copied().find(suits);
            let id = recorded_id.unwrap_or_else(|| {
                let is_free = |id: i64| !self.recorded_ids.contains(&id) && self.is_id_vacant(id);
                while !is_free(lowest) {
                    lowest += 1;
                }
                // Skip an ID for which a former set of this name has left volumes: the Pod would take them together
                // with the ID.
                let is_empty = |id: i64| {
                    let mut pvcs = self.pvcs_with_id(id).iter();
                    pvcs.all(|pvc| is_own(pvc) || !pvcs::is_usable_pvc(set, pvc))
                };
                let mut id = lowest;
                while !(is_free(id) && suits(&id) && is_empty(id)) {
                    id += 1;
                }
                id
            });
            vacant.remove(&id);
            self.members.insert(id, pod);
        }
    }

    /// Names of the origins of replace pairs, by the instance ID of the new Pod.
    pub fn origin_names_by_half(&self) -> BTreeMap<i64, String> {
        let new = |origin: &Pod| parse_instance_id(origin.label(keys::REPLACE_PAIR_NEW_ID)?);
        let members = self.members.values();
        let pairs = members.filter_map(|origin| Some((new(origin)?, origin.metadata.name.clone())));
        pairs.collect()
    }

    fn is_id_vacant(&self, id: i64) -> bool {
        let has_ended = self.finished_by_id.contains_key(&id);
        !has_ended && !self.is_id_held(id) && !self.foreign.contains(&id)
    }

    /// Whether the API server recently refused a write of the Pod, or of a PVC that it mounts.
    pub fn is_write_refused(&self, pod: &Pod) -> bool {
        let refused = &self.observed.refused;
        let mut pvc_names = pod.spec.pvcs.iter();
        refused.pods.contains(&pod.metadata.uid)
            || pvc_names.any(|pvc_name| refused.pvcs.contains(pvc_name))
    }

    /// Whether the API server recently refused a write that the leaving of a Pod needs: a write of the Pod, or of a PVC
    /// of its ID, mounted or not.
    pub fn is_leaving_refused(&self, id: i64, pod: &Pod) -> bool {
        let refused = &self.observed.refused.pvcs;
        self.is_write_refused(pod)
            || self
                .owned_pvcs_with_id(id)
                .any(|pvc| refused.contains(&pvc.name))
    }

    /// Finished Pods whose successor the set creates later. A finished Pod whose ID another Pod has is not among them.
    fn find_pods_recreated_later(&self) -> BTreeMap<i64, Arc<Pod>> {
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

    /// Whether a user asks the set to release the Pod alive.
    pub fn is_to_exclude(&self, pod: &Pod) -> bool {
        pod.label(keys::TO_EXCLUDE).is_some() || self.strategy.exclude.contains(&pod.metadata.name)
    }

    /// Whether the Pod will leave the set alive. Under `PersistentSequence` no Pod can. A Pod that `podToInclude` names
    /// too stays.
    pub fn leaves_alive(&self, pod: &Pod) -> bool {
        let included = self.strategy.include.contains(&pod.metadata.name);
        self.is_to_exclude(pod) && !self.strategy.sequence && !included
    }

    /// Whether the set can still withdraw the deletion of a Pod, see [`set_operations::can_withdraw_deletion`]. It can
    /// also withdraw a deletion that the API server refuses: the deletion has the Pod's resourceVersion as its
    /// precondition, so it fails after the withdrawal is stored.
    pub fn may_stay(&self, pod: &Pod) -> bool {
        let is_undeleted = || {
            self.deletion_refusal(pod).is_some()
                && set_operations::is_deletion_requested_by_set(pod)
        };
        set_operations::can_withdraw_deletion(pod) || is_undeleted()
    }

    /// Whether the Pod is leaving and nobody can withdraw its deletion.
    pub fn must_leave(&self, pod: &Pod) -> bool {
        set_operations::is_leaving(pod) && !self.may_stay(pod)
    }

    /// Why the API server refuses to delete a Pod that is off traffic for its deletion; `None` if it does not.
    pub fn deletion_refusal(&self, pod: &Pod) -> Option<&str> {
        let message = self.observed.refused.undeleted.get(&pod.metadata.uid);
        message.map(String::as_str)
    }

    /// Whether a Pod is the new Pod of a replace pair whose origin still exists.
    pub fn is_new_half(&self, pod: &Pod) -> bool {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|origin| self.present_names.contains(origin))
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

    /// IDs of the pool that belong to Pods of the set (`own`), or to other sets.
    fn pool_ids(&self, own: bool) -> BTreeSet<i64> {
        let contexts = self.observed.pool.iter().flat_map(|pool| &pool.contexts);
        contexts
            .filter(|c| {
                self.is_own_entry(&c.data) == own && !(own && c.data.contains_key(data::REPLACED))
            })
            .map(|c| c.id)
            .collect()
    }

    /// Whether an entry of the pool belongs to the set.
    pub fn is_own_entry(&self, data: &BTreeMap<String, String>) -> bool {
        owns_entry(&self.observed.set, data)
    }

    /// The revision to which the Pod was created or changed, if it still exists.
    pub fn revision_of(&self, pod: &Pod) -> Option<&Arc<Revision>> {
        self.history.find_revision(pod.label(keys::REVISION)?)
    }

    /// The revisions whose resources a Pod has although its label names another revision. An update has resized the Pod
    /// and got no further.
    pub fn resized_to(&self, pod: &Pod) -> &[Arc<Revision>] {
        let resized = self.resized.get(&*pod.metadata.name);
        resized.map_or(&[], Vec::as_slice)
    }

    fn find_resized(&self, pod: &Pod) -> impl Iterator<Item = &Arc<Revision>> {
        let of = self.revision_of(pod);
        // A resize changes the generation of the Pod. If the generation is still the noted one, somebody else set these
        // resources before. A noted generation of 0 is unknown.
        let has_changed =
            |generation: i64| generation != pod.metadata.generation || generation == 0;
        let marked = resize_marks(pod).filter(move |(_, generation)| has_changed(*generation));
        let marked = marked.filter_map(|(name, _)| self.history.find_revision(name));
        marked.filter(move |to| {
            of.is_some_and(|of| resize::has_resized_resources(pod, &of.data, &to.data))
        })
    }

    /// Whether the Pod has resources of a revision other than its own.
    pub fn is_resized(&self, pod: &Pod) -> bool {
        !self.resized_to(pod).is_empty()
    }

    /// Returns the change in place that turns a Pod of this revision into a Pod of the updated revision.
    pub fn in_place_change_from(&self, revision: &Revision) -> Cow<'_, InPlaceChange> {
        let change = || inplace::in_place_change(&revision.data, &self.history.updated.data);
        match self.in_place_changes.get(&revision.name) {
            Some(cell) => Cow::Borrowed(cell.get_or_init(change)),
            None => Cow::Owned(change()),
        }
    }

    /// Returns the change that a dry run tries before a Pod of this revision goes off traffic for its update in place.
    pub fn dry_run_change_from(&self, revision: &Revision) -> Option<Arc<DryRunChange>> {
        match self.dry_run_changes.get(&revision.name) {
            Some(cell) => {
                let change = || self.dry_run_change(&self.in_place_change_from(revision));
                cell.get_or_init(change).clone()
            }
            None => self.dry_run_change(&self.in_place_change_from(revision)),
        }
    }

    /// Returns the change that a dry run tries before this change in place is made; `None` if the change is not
    /// possible in place.
    pub fn dry_run_change(&self, change: &InPlaceChange) -> Option<Arc<DryRunChange>> {
        let InPlaceChange::Yes {
            labels,
            annotations,
            spec,
            resize,
            ..
        } = change
        else {
            return None;
        };
        let updated = &self.history.updated.name;
        let mut labels = labels.clone();
        let revision = (keys::REVISION.to_owned(), Some(updated.clone()));
        labels.0.extend([revision]);
        Some(Arc::new(DryRunChange {
            revision: updated.clone(),
            labels,
            annotations: annotations.clone(),
            spec: spec.clone(),
            resize: resize.clone(),
        }))
    }

    /// Whether a Pod is of the updated revision, and its resources are, too.
    pub fn is_updated(&self, pod: &Pod) -> bool {
        self.has_updated_label(pod) && !self.is_resized(pod) && !is_never_resized(pod)
    }

    /// Whether the label of a Pod names the updated revision.
    pub fn has_updated_label(&self, pod: &Pod) -> bool {
        pod.label(keys::REVISION) == Some(&self.history.updated.name)
    }

    /// The PVCs with this instance ID, whoever controls them.
    pub fn pvcs_with_id(&self, id: i64) -> &[Arc<Pvc>] {
        self.pvcs_by_id.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The PVCs with this instance ID that belong to the set.
    pub fn owned_pvcs_with_id(&self, id: i64) -> impl Iterator<Item = &Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let at = self.pvcs_with_id(id).iter();
        at.filter(move |pvc| pvc.belongs_to_set(uid))
    }

    /// IDs of PVCs that belong to the set and that no Pod mounts. The ID of the oldest PVC comes first.
    pub fn ids_of_unmounted_pvcs(&self) -> Vec<i64> {
        let ids = self.pvcs_by_id.keys().copied();
        let mut unmounted: Vec<_> = ids
            .filter_map(|id| {
                let own = || self.owned_pvcs_with_id(id).filter(|pvc| !pvc.terminating);
                let since = own().map(|pvc| pvc.creation_timestamp).min()?;
                let mut mounting = own().flat_map(|pvc| self.pods_mounting(&pvc.name));
                mounting.next().is_none().then_some((since, id))
            })
            .collect();
        unmounted.sort_unstable();
        unmounted.into_iter().map(|(_, id)| id).collect()
    }

    /// The PVCs that a Pod mounts and that belong to the set.
    pub fn owned_pvcs_of_pod(&self, pod: &Pod) -> impl Iterator<Item = &'a Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        mounted.filter(move |pvc| pvc.belongs_to_set(uid))
    }

    /// The PVCs of the set that at least one Pod mounts, and for which `is_so` is true for every Pod that mounts them.
    pub fn pvcs_mounted_only_by(
        &self,
        is_so: impl Fn(&Arc<Pod>) -> bool,
    ) -> impl Iterator<Item = &'a Arc<Pvc>> {
        let own = self.owned_pvc_ids.keys().filter(move |name| {
            let mut pods = self.pods_mounting(name).iter();
            pods.next().is_some_and(&is_so) && pods.all(&is_so)
        });
        own.filter_map(|name| self.find_pvc(name))
    }

    /// Finds an observed PVC by name: the set controls it, or nobody does.
    pub fn find_pvc(&self, name: &str) -> Option<&'a Arc<Pvc>> {
        self.pvcs_by_name.get(name).copied()
    }

    /// Whether the set keeps the PVC and therefore never deletes it.
    pub fn keeps_pvc(&self, pvc: &Pvc) -> bool {
        pvc.is_kept_for(self.observed.set.metadata.uid.as_deref())
    }

    /// Whether the hash of a PVC that enters with its Pod is the hash of a template of the spec. The set would delete
    /// any other PVC as left over once the Pod is updated, without a warning to the user who recreated the set or
    /// included the Pod. The updated revision can't answer this question: it may have a former template while the
    /// revision of the spec is refused, or while the rollout is aborted.
    pub fn is_pvc_of_spec(&self, pvc: &Pvc) -> bool {
        let template = self.template_in_spec(pvc);
        let hash = pvc.labels.get(keys::PVC_TEMPLATE_HASH);
        hash.zip(template).is_some_and(|(hash, template)| {
            let hashes = self.template_hashes_with_spec();
            hashes.is_equivalent(hash, &hashes.template_hash(template))
        })
    }

    /// Whether Pods of the spec mount this kept PVC.
    pub fn serves_spec_template(&self, pvc: &Pvc) -> bool {
        self.template_in_spec(pvc).is_some_and(|template| {
            let hashes = self.template_hashes_with_spec();
            pvcs::matches_hash(pvc, &hashes.template_hash(template), hashes)
        })
    }

    /// Whether the spec has a volume claim template with the name that the PVC carries.
    pub fn has_template_in_spec(&self, pvc: &Pvc) -> bool {
        self.template_in_spec(pvc).is_some()
    }

    fn template_in_spec(&self, pvc: &Pvc) -> Option<&Value> {
        template_of_pvc(&self.observed.set.spec.volume_claim_templates, pvc)
    }

    /// Includes the spec, because its revision may have the templates in another notation.
    fn template_hashes_with_spec(&self) -> &TemplateHashes {
        let templates = &self.observed.set.spec.volume_claim_templates;
        self.hashes_with_spec
            .get_or_init(|| self.template_hashes.with_templates(templates))
    }

    /// The hash of the template of this revision that has the name in the PVC's label, if there is such a template.
    pub fn template_hash_in(&self, revision: &Revision, pvc: &Pvc) -> Option<Cow<'_, str>> {
        let template = template_of_pvc(pvc_templates(&revision.data), pvc)?;
        Some(self.template_hashes.template_hash(template))
    }

    /// Whether the set keeps a PVC that a Pod does not mount, for a return to a former template: the Pod mounts another
    /// PVC of the same template name, or the Pod's revision does not have that template.
    pub fn is_pvc_spare(&self, pod: &Pod, pvc: &Pvc) -> bool {
        let is_same = |other: &Arc<Pvc>| {
            let mut keys = [keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
            keys.all(|key| other.labels.get(key) == pvc.labels.get(key))
        };
        let mut mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        let revision = self.revision_of(pod);
        self.keeps_pvc(pvc)
            && (mounted.any(is_same)
                || revision.is_some_and(|of| self.template_hash_in(of, pvc).is_none()))
    }

    /// If the label of a mounted PVC names another known template than the Pod's revision has, returns the hash of the
    /// template of the Pod's revision. Somebody has edited the label of the PVC or of the Pod, and the set can't tell
    /// which.
    pub fn mismatched_template_hash(&self, pod: &Pod, pvc: &Pvc) -> Option<Cow<'_, str>> {
        let hash = pvc.labels.get(keys::PVC_TEMPLATE_HASH)?;
        let own = self.template_hash_in(self.revision_of(pod)?, pvc)?;
        let hashes = &self.template_hashes;
        (!pvcs::matches_hash(pvc, &own, hashes) && hashes.contains(hash)).then_some(own)
    }

    /// The managed Pods that mount a PVC.
    pub fn pods_mounting(&self, pvc_name: &str) -> &[Arc<Pod>] {
        self.observed
            .mounts
            .get(pvc_name)
            .map_or(&[], Vec::as_slice)
    }

    /// A Pod that may still write to a PVC: it mounts the PVC and is not finished. A terminating Pod may still write,
    /// also on a lost node.
    pub fn pvc_writer(&self, pvc_name: &str) -> Option<&Arc<Pod>> {
        self.pods_mounting(pvc_name)
            .iter()
            .find(|pod| !pod.is_finished())
    }

    /// A PVC that the next Pod of an instance ID waits for, with the Pod that still mounts it.
    pub fn awaited_pvc(&self) -> Option<(&Pod, &str)> {
        let vacant = self.recorded_ids.iter().filter(|id| !self.is_id_held(**id));
        let pvcs = vacant.flat_map(|id| self.pvcs_with_id(*id));
        let pvcs = pvcs.filter(|pvc| !pvc.labels.contains_key(keys::ORPHANED));
        let mut mounted = pvcs.filter_map(|pvc| Some((&**self.pvc_writer(&pvc.name)?, &*pvc.name)));
        mounted.next()
    }

    /// Whether the Pod is the member with its instance ID.
    pub fn is_member(&self, pod: &Pod) -> bool {
        let member = self
            .instance_id_of(pod)
            .and_then(|id| self.members.get(&id));
        member.is_some_and(|member| member.metadata.uid == pod.metadata.uid)
    }

    /// Whether a Pod without an owner that the selector does not match has the name of this instance. Only names under
    /// `PersistentSequence` can be taken.
    pub fn is_name_taken(&self, id: i64) -> bool {
        if !self.strategy.sequence {
            return false;
        }
        let name = super::pool::persistent_pod_name(self, id);
        let mut orphans = self.observed.orphans.iter();
        orphans.any(|pod| {
            let is_out = !self.selector.matches(&pod.metadata.labels);
            pod.metadata.name == name && is_out
        })
    }

    /// Whether a Pod was excluded, is not finished, and is not in `podToInclude`.
    pub fn has_left(&self, pod: &Pod) -> bool {
        let enters = self.strategy.include.contains(&pod.metadata.name);
        let is_out = pod.label(keys::ORPHANED).is_some() && !self.controls(pod);
        is_out && !enters && !pod.is_finished()
    }

    /// Whether the set controls a Pod. The end of such a Pod causes a new plan.
    pub fn controls(&self, pod: &Pod) -> bool {
        let controller = pod.controller().map(|owner| owner.uid.as_str());
        controller.is_some() && controller == self.observed.set.metadata.uid.as_deref()
    }

    /// Whether the set has a Pod with this instance ID, or a finished one whose successor it creates later. A
    /// terminating Pod does not count.
    pub fn has_pod_with_id(&self, id: i64) -> bool {
        self.members.contains_key(&id) || self.recreated_later.contains_key(&id)
    }

    /// Whether an existing Pod prevents the creation of another Pod with this instance ID. A persistent name is free
    /// only when the Pod is gone (contract 6.0).
    pub fn is_id_held(&self, id: i64) -> bool {
        self.has_pod_with_id(id)
            || (self.strategy.sequence
                && (self.terminating.contains_key(&id) || self.finished_by_id.contains_key(&id)))
    }

    /// The instance ID of a Pod. Under `PersistentSequence` it is the one in the Pod's name. Otherwise it is the one of
    /// the PVCs that the Pod mounts and that belong to the set, or else the one in the Pod's label. The label comes
    /// last, because somebody may have edited it by hand. If PVCs had another ID than their Pod, the set would delete
    /// them or mount them into another Pod.
    pub fn instance_id_of(&self, pod: &Pod) -> Option<i64> {
        let carried = pod.label(keys::INSTANCE_ID).and_then(parse_instance_id);
        let named = || {
            let suffix = pod.metadata.name.strip_prefix(self.name)?;
            let suffix = suffix.strip_prefix('-')?;
            let id = parse_instance_id(suffix)?;
            let is_known = carried == Some(id) || self.recorded_ids.contains(&id);
            (is_known || !may_be_random(suffix)).then_some(id)
        };
        let id_in_name = match self.strategy.sequence {
            true => named(),
            false => None,
        };
        id_in_name
            .or_else(|| self.instance_id_of_pvcs(pod))
            .or(carried)
    }

    /// The instance ID of the set's PVCs that a Pod mounts; `None` if they do not all have the same ID.
    pub fn instance_id_of_pvcs(&self, pod: &Pod) -> Option<i64> {
        let pvc_names = pod.spec.pvcs.iter();
        let mut ids = pvc_names.filter_map(|pvc_name| self.owned_pvc_ids.get(pvc_name.as_str()));
        let first = ids.next()?;
        ids.all(|id| id == first).then_some(*first)
    }

    /// The revisions that Pods and pool entries refer to, with the number of Pods of each that are not terminating.
    pub fn revisions_in_use(observed: &ObservedSet, selector: &Selector) -> RevisionUse {
        let orphans = observed.orphans.iter();
        let orphans = orphans.filter(|pod| selector.matches(&pod.metadata.labels));
        let mut in_use = RevisionUse::new();
        for pod in observed.pods.iter().chain(orphans) {
            let replaced_by = pod.label(keys::REPLACED_BY_REPLACE_UPDATE);
            let others = replaced_by
                .into_iter()
                .chain(resize_marks(pod).map(|(name, _)| name));
            for name in others {
                in_use.entry(name.to_owned()).or_default();
            }
            if let Some(own) = pod.label(keys::REVISION) {
                let count = in_use.entry(own.to_owned()).or_default();
                *count += usize::from(!pod.is_terminating());
            }
        }
        let contexts = observed.pool.iter().flat_map(|p| &p.contexts);
        for name in contexts.filter_map(|c| c.data.get(data::REVISION)) {
            in_use.entry(name.clone()).or_default();
        }
        in_use
    }
}

/// Names of the revisions for which a Pod was to be resized, and the generation that the Pod had at that time; 0 if the
/// generation is unknown.
pub fn resize_marks(pod: &Pod) -> impl Iterator<Item = (&str, i64)> {
    let marked = pod.annotation(keys::RESIZING).into_iter();
    let marked = marked.flat_map(|marks| marks.split(','));
    marked.map(|mark| match mark.split_once('@') {
        Some((name, generation)) => (name, generation.parse().unwrap_or(0)),
        None => (mark, 0),
    })
}

/// Whether a Pod keeps serving although its node refuses the resize of its update. The Pod was to be made again, but no
/// update is in progress.
fn is_never_resized(pod: &Pod) -> bool {
    pod.annotation(keys::LAST_POD_STATUS).is_some()
        && !SetOperation::Update.is_in_progress(pod)
        && matches!(inplace::update_progress(pod), UpdateProgress::Refused(_))
}

/// Whether a suffix of digits may be a random one. Under naming Random the API server chooses five characters, among
/// them these digits.
fn may_be_random(suffix: &str) -> bool {
    suffix.len() == 5 && suffix.chars().all(|c| "2456789".contains(c))
}

/// Creates an empty cell for each readable revision.
fn revision_cells<T>(history: &RevisionHistory) -> BTreeMap<String, OnceCell<T>> {
    let revisions = history.readable_revisions();
    let cells = revisions.map(|revision| (revision.name.clone(), OnceCell::new()));
    cells.collect()
}

fn parse_instance_id(id: &str) -> Option<i64> {
    id.parse().ok().filter(|id| *id >= 0)
}

/// Finds the template with the name in the PVC's label.
fn template_of_pvc<'a>(templates: &'a [Value], pvc: &Pvc) -> Option<&'a Value> {
    let name = pvc.labels.get(keys::PVC_TEMPLATE_NAME)?;
    let mut templates = templates.iter();
    templates.find(|template| pvc_template_name(template) == name)
}
