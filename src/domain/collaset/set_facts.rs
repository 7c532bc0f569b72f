//! What the objects say.

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

/// What the steps look at.
pub struct SetFacts<'a> {
    /// The observation.
    pub observed: &'a ObservedSet,
    /// The spec with its defaults.
    pub strategy: ResolvedStrategy,
    /// The selector.
    pub selector: Selector,
    /// Revisions.
    pub history: RevisionHistory,
    /// The rollout of the present template.
    pub rollout: StoredRollout,
    /// How a Pod gets from each of them to the updated one; worked out when it is asked for first, as that takes long.
    in_place_changes: BTreeMap<String, OnceCell<InPlaceChange>>,
    /// What of these ways is tried before an update in place begins, as it is asked for.
    dry_run_changes: BTreeMap<String, OnceCell<Option<Arc<DryRunChange>>>>,
    /// Revisions of which Pods have resources, by the names of the Pods; worked out once, as it is asked for at each step.
    resized: BTreeMap<&'a str, Vec<Arc<Revision>>>,
    /// All claim templates of these revisions.
    pub template_hashes: TemplateHashes,
    /// The same and those of the spec. They are hashed once, and only if a claim is asked about.
    known_with_spec: OnceCell<TemplateHashes>,
    /// All claims by the instance ID that they carry.
    pvcs_by_id: BTreeMap<i64, Vec<Arc<Pvc>>>,
    /// Instance IDs of the claims that the set has, by their names.
    owned_pvc_ids: BTreeMap<&'a str, i64>,
    /// All claims by their names.
    pvcs_by_name: BTreeMap<&'a str, &'a Arc<Pvc>>,
    /// IDs that the pool holds for Pods of the set.
    recorded: BTreeSet<i64>,
    /// Name of the set.
    pub name: &'a str,
    /// Name of the pool.
    pub pool: &'a str,
    /// IDs of the pool that belong to other sets.
    pub foreign: BTreeSet<i64>,
    /// Pods that count, by instance ID: controlled, selected, not terminating, not finished.
    pub members: BTreeMap<i64, Arc<Pod>>,
    /// Whether one of them is of another revision than the updated one.
    pub is_rolling_out: bool,
    /// Names of the Pods that the set controls and that are not terminating.
    names: BTreeSet<&'a str>,
    /// Of them those whose instance ID an older one has.
    pub misnumbered: Vec<Arc<Pod>>,
    /// Controlled Pods that are terminating, by instance ID.
    pub terminating: BTreeMap<i64, Vec<Arc<Pod>>>,
    /// Controlled and selected Pods that ran to their end.
    pub finished: Vec<Arc<Pod>>,
    /// The same by instance ID.
    ended: BTreeMap<i64, Vec<Arc<Pod>>>,
    /// Of them those that are made again later, by instance ID, which they hold until then.
    pub waiting: BTreeMap<i64, Arc<Pod>>,
    /// Controlled Pods that the selector no longer matches.
    pub unselected: Vec<Arc<Pod>>,
}

impl<'a> SetFacts<'a> {
    /// Sorts what was observed.
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
            known_with_spec: OnceCell::new(),
            pvcs_by_id: BTreeMap::new(),
            owned_pvc_ids: BTreeMap::new(),
            pvcs_by_name: observed.pvcs.iter().map(|c| (&*c.name, c)).collect(),
            recorded: BTreeSet::new(),
            history,
            rollout,
            name,
            pool: pool_name(set),
            foreign: BTreeSet::new(),
            members: BTreeMap::new(),
            is_rolling_out: false,
            names: BTreeSet::new(),
            misnumbered: Vec::new(),
            terminating: BTreeMap::new(),
            finished: Vec::new(),
            ended: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unselected: Vec::new(),
        };
        for pod in &observed.pods {
            let resized: Vec<_> = facts.find_resized(pod).cloned().collect();
            if !resized.is_empty() {
                facts.resized.insert(&pod.metadata.name, resized);
            }
        }
        facts.foreign = facts.pool_ids(false);
        facts.recorded = facts.pool_ids(true);
        let uid = set.metadata.uid.as_deref();
        for claim in &observed.pvcs {
            let id = claim.labels.get(keys::INSTANCE_ID);
            // That of a Pod that lives on outside serves nobody else, though it does not say so.
            let mut mounting = facts.pods_mounting(&claim.name).iter();
            let is_own = claim.belongs_to_set(uid);
            let has_left = !is_own && mounting.any(|pod| facts.has_left(pod));
            if let Some(id) = id
                .and_then(|id| parse_instance_id(id))
                .filter(|_| !has_left)
            {
                facts.pvcs_by_id.entry(id).or_default().push(claim.clone());
                if is_own {
                    facts.owned_pvc_ids.insert(&claim.name, id);
                }
            }
        }
        let mut pods: Vec<&Arc<Pod>> = observed.pods.iter().collect();
        let present = pods.iter().filter(|pod| !pod.is_terminating());
        facts.names = present.map(|pod| &*pod.metadata.name).collect();
        // The older of two Pods with one ID keeps it.
        pods.sort_by_key(|p| (&p.metadata.creation_timestamp, &p.metadata.name));
        for pod in pods {
            facts.sort_pod(pod);
        }
        for pod in &facts.finished {
            if let Some(id) = facts.instance_id_of(pod) {
                facts.ended.entry(id).or_default().push(Arc::clone(pod));
            }
        }
        facts.number_pods();
        facts.waiting = facts.waiting();
        facts.is_rolling_out = facts.members.values().any(|pod| !facts.is_updated(pod));
        facts
    }

    /// Gives the Pods an instance ID that have none of their own: one that the pool knows and no Pod has, which most likely was
    /// theirs, or else the lowest that is free and of which no other volumes are left. The next plan gives them the same, so it need not be stored at once.
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
        let recorded = self.recorded.iter().copied();
        let mut vacant: BTreeSet<i64> = recorded.filter(|id| self.is_id_vacant(*id)).collect();
        let halves = self.origin_names_by_half();
        let mut lowest = 0;
        let set = &self.observed.set;
        for pod in unnumbered {
            // Not the ID of a new half if the Pod is none, nor one of which the set has other claims.
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_own = |claim: &Pvc| claim.terminating || pod.spec.pvcs.contains(&claim.name);
            let suits = |id: &i64| {
                halves.get(id).is_none_or(|of| Some(&**of) == origin)
                    && self
                        .owned_pvcs_with_id(*id)
                        .all(|claim| is_own(claim) || self.is_pvc_set_aside(&pod, claim))
            };
            let known = vacant.iter().copied().find(suits);
            let id = known.unwrap_or_else(|| {
                let is_free = |id: i64| !self.recorded.contains(&id) && self.is_id_vacant(id);
                while !is_free(lowest) {
                    lowest += 1;
                }
                // Volumes that a former set of this name has left are taken up with their ID.
                let is_empty = |id: i64| {
                    let mut claims = self.pvcs_with_id(id).iter();
                    claims.all(|claim| is_own(claim) || !pvcs::is_usable_pvc(set, claim))
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

    /// Names of the origins of pairs, by the ID of the new half.
    pub fn origin_names_by_half(&self) -> BTreeMap<i64, String> {
        let new = |origin: &Pod| parse_instance_id(origin.label(keys::REPLACE_PAIR_NEW_ID)?);
        let members = self.members.values();
        let pairs = members.filter_map(|origin| Some((new(origin)?, origin.metadata.name.clone())));
        pairs.collect()
    }

    fn is_id_vacant(&self, id: i64) -> bool {
        let has_ended = self.ended.contains_key(&id);
        !has_ended && !self.is_id_held(id) && !self.foreign.contains(&id)
    }

    /// Whether a write of a Pod, or of a claim that it mounts, was refused lately.
    pub fn is_write_refused(&self, pod: &Pod) -> bool {
        let refused = &self.observed.refused;
        let mut claims = pod.spec.pvcs.iter();
        refused.pods.contains(&pod.metadata.uid) || claims.any(|claim| refused.pvcs.contains(claim))
    }

    /// Whether what is to leave with a Pod was refused lately: a write of it, or of one of the claims of its ID, mounted or not.
    pub fn is_leaving_refused(&self, id: i64, pod: &Pod) -> bool {
        let refused = &self.observed.refused.pvcs;
        self.is_write_refused(pod)
            || self
                .owned_pvcs_with_id(id)
                .any(|claim| refused.contains(&claim.name))
    }

    /// Pods that have ended and are made again later. One whose ID another has is none of them.
    fn waiting(&self) -> BTreeMap<i64, Arc<Pod>> {
        let mut waiting = BTreeMap::new();
        if self.finished.is_empty() {
            return waiting;
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
                waiting.entry(id).or_insert_with(|| Arc::clone(pod));
            }
        }
        waiting
    }

    /// Whether the next Pod of an ID, by the pool, fares no better than a Pod that has ended: there is to be one, and of its revision.
    fn is_recreated_later(&self, entries: Option<&PoolEntries<'_>>, id: i64, pod: &Pod) -> bool {
        let Some(entries) = entries else {
            return true; // there is no pool
        };
        let Some(entry) = entries.get(&id) else {
            return false;
        };
        let origin = data::origin_of(entry).and_then(|id| self.members.get(&id));
        if origin.is_some_and(|origin| origin.label(keys::TO_REPLACE).is_none()) {
            return false; // the pair was called off
        }
        let next = entry.get(data::REVISION).map(String::as_str);
        let own = pod.label(keys::REVISION);
        let is_known = next.is_some_and(|next| self.history.find_revision(next).is_some());
        !is_known || own.is_none() || next == own
    }

    /// The Pods of an ID that has none: those that have ended, or are about to.
    pub fn former_pods(&self, id: i64) -> impl Iterator<Item = &Arc<Pod>> {
        let ending = self.terminating.get(&id).into_iter().flatten();
        let ended = self.ended.get(&id).into_iter().flatten();
        ending.chain(ended)
    }

    /// When a Pod that has ended is made again, if that is later; nanoseconds since 1970.
    pub fn recreation_due_at(&self, pod: &Pod) -> Option<u64> {
        let until = self.observed.ended_until.get(&pod.metadata.uid).copied()?;
        let waiting = self.waiting.get(&self.instance_id_of(pod)?)?;
        (waiting.metadata.uid == pod.metadata.uid).then_some(until)
    }

    /// Whether a user wants the Pod out of the set, alive.
    pub fn is_to_exclude(&self, pod: &Pod) -> bool {
        pod.label(keys::TO_EXCLUDE).is_some() || self.strategy.exclude.contains(&pod.metadata.name)
    }

    /// Whether a Pod is to leave the set alive. Where names persist none can, nor one that is to be included too.
    pub fn leaves_alive(&self, pod: &Pod) -> bool {
        let included = self.strategy.include.contains(&pod.metadata.name);
        self.is_to_exclude(pod) && !self.strategy.sequence && !included
    }

    /// Whether a Pod can be called back: see [`lifecycle::may_stay`]. So can one whose deletion is refused: the deletion is made on
    /// condition of the Pod as it was, and comes too late once the word is taken back.
    pub fn may_stay(&self, pod: &Pod) -> bool {
        let is_undeleted = || {
            self.deletion_refusal(pod).is_some()
                && set_operations::is_deletion_requested_by_set(pod)
        };
        set_operations::can_withdraw_deletion(pod) || is_undeleted()
    }

    /// Whether a Pod is on its way out, and nobody can call it back any more.
    pub fn must_leave(&self, pod: &Pod) -> bool {
        set_operations::is_leaving(pod) && !self.may_stay(pod)
    }

    /// Why a Pod that is off traffic to be deleted is not.
    pub fn deletion_refusal(&self, pod: &Pod) -> Option<&str> {
        let why = self.observed.refused.undeleted.get(&pod.metadata.uid);
        why.map(String::as_str)
    }

    /// Whether a Pod is the new half of a pair whose origin is there: it stands for that one.
    pub fn is_new_half(&self, pod: &Pod) -> bool {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|origin| self.names.contains(origin))
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

    /// IDs of the pool that belong to Pods of the set, or to other sets.
    fn pool_ids(&self, own: bool) -> BTreeSet<i64> {
        let contexts = self.observed.pool.iter().flat_map(|pool| &pool.contexts);
        contexts
            .filter(|c| {
                self.is_own_entry(&c.data) == own && !(own && c.data.contains_key(data::REPLACED))
            })
            .map(|c| c.id)
            .collect()
    }

    /// Whether an entry of the pool is the set's own.
    pub fn is_own_entry(&self, data: &BTreeMap<String, String>) -> bool {
        owns_entry(&self.observed.set, data)
    }

    /// The revision that a Pod was made or changed to, if it is still known.
    pub fn revision_of(&self, pod: &Pod) -> Option<&Arc<Revision>> {
        self.history.find_revision(pod.label(keys::REVISION)?)
    }

    /// The revisions of which a Pod has resources although it is of another one: an update has resized it, and came no further.
    pub fn resized_to(&self, pod: &Pod) -> &[Arc<Revision>] {
        let resized = self.resized.get(&*pod.metadata.name);
        resized.map_or(&[], Vec::as_slice)
    }

    fn find_resized(&self, pod: &Pod) -> impl Iterator<Item = &Arc<Revision>> {
        let of = self.revision_of(pod);
        // A resize is another generation: what the Pod had before the mark it has from somebody else.
        let has_changed =
            |generation: i64| generation != pod.metadata.generation || generation == 0;
        let marked = resize_marks(pod).filter(move |(_, generation)| has_changed(*generation));
        let marked = marked.filter_map(|(name, _)| self.history.find_revision(name));
        marked.filter(move |to| {
            of.is_some_and(|of| resize::has_resized_resources(pod, &of.data, &to.data))
        })
    }

    /// Whether there is one.
    pub fn is_resized(&self, pod: &Pod) -> bool {
        !self.resized_to(pod).is_empty()
    }

    /// What turns a Pod of a revision into one of the updated revision.
    pub fn in_place_change_from(&self, revision: &Revision) -> Cow<'_, InPlaceChange> {
        let change = || inplace::in_place_change(&revision.data, &self.history.updated.data);
        match self.in_place_changes.get(&revision.name) {
            Some(way) => Cow::Borrowed(way.get_or_init(change)),
            None => Cow::Owned(change()),
        }
    }

    /// What is tried before a Pod of a revision goes off traffic for a change in place.
    pub fn dry_run_change_from(&self, revision: &Revision) -> Option<Arc<DryRunChange>> {
        match self.dry_run_changes.get(&revision.name) {
            Some(known) => {
                let ahead = || self.dry_run_change(&self.in_place_change_from(revision));
                known.get_or_init(ahead).clone()
            }
            None => self.dry_run_change(&self.in_place_change_from(revision)),
        }
    }

    /// What is tried before a change in place is made.
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

    /// Whether a Pod is of the updated revision.
    pub fn is_updated(&self, pod: &Pod) -> bool {
        self.has_updated_label(pod) && !self.is_resized(pod) && !is_never_resized(pod)
    }

    /// Whether its label says so.
    pub fn has_updated_label(&self, pod: &Pod) -> bool {
        pod.label(keys::REVISION) == Some(&self.history.updated.name)
    }

    /// The claims that carry an instance ID, whoever controls them.
    pub fn pvcs_with_id(&self, id: i64) -> &[Arc<Pvc>] {
        self.pvcs_by_id.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Of these, the ones that the set has.
    pub fn owned_pvcs_with_id(&self, id: i64) -> impl Iterator<Item = &Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let at = self.pvcs_with_id(id).iter();
        at.filter(move |claim| claim.belongs_to_set(uid))
    }

    /// The IDs of which the set has claims that nobody mounts, those of the oldest claims first.
    pub fn ids_of_unmounted_pvcs(&self) -> Vec<i64> {
        let ids = self.pvcs_by_id.keys().copied();
        let mut left: Vec<_> = ids
            .filter_map(|id| {
                let own = || {
                    self.owned_pvcs_with_id(id)
                        .filter(|claim| !claim.terminating)
                };
                let since = own().map(|claim| claim.creation_timestamp).min()?;
                let mut mounting = own().flat_map(|claim| self.pods_mounting(&claim.name));
                mounting.next().is_none().then_some((since, id))
            })
            .collect();
        left.sort_unstable();
        left.into_iter().map(|(_, id)| id).collect()
    }

    /// The claims that a Pod mounts and the set has.
    pub fn owned_pvcs_of_pod(&self, pod: &Pod) -> impl Iterator<Item = &'a Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        mounted.filter(move |claim| claim.belongs_to_set(uid))
    }

    /// The claims that the set has and which only Pods mount of which this is so.
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

    /// A claim that the set controls, or nobody does.
    pub fn find_pvc(&self, name: &str) -> Option<&'a Arc<Pvc>> {
        self.pvcs_by_name.get(name).copied()
    }

    /// Whether the set never deletes a claim that it has.
    pub fn keeps_pvc(&self, claim: &Pvc) -> bool {
        claim.is_kept_for(self.observed.set.metadata.uid.as_deref())
    }

    /// Whether a claim that enters with its Pod is of a template of the spec, as its hash says. Any other would be deleted as left over once
    /// the Pod is updated, though whoever made the set again with another template, or included the Pod, was not warned of that. The updated
    /// revision does not tell: it may be that of a former template, while that of the spec is refused, or the rollout aborted.
    pub fn is_pvc_of_spec(&self, claim: &Pvc) -> bool {
        let template = self.template_in_spec(claim);
        let said = claim.labels.get(keys::PVC_TEMPLATE_HASH);
        said.zip(template).is_some_and(|(said, template)| {
            let known = self.template_hashes_with_spec();
            known.is_equivalent(said, &known.template_hash(template))
        })
    }

    /// Whether a claim that is kept is mounted by Pods of the spec.
    pub fn serves_spec_template(&self, claim: &Pvc) -> bool {
        self.template_in_spec(claim).is_some_and(|template| {
            let known = self.template_hashes_with_spec();
            pvcs::matches_hash(claim, &known.template_hash(template), known)
        })
    }

    /// Whether the spec has a template by whose name a claim goes.
    pub fn has_template_in_spec(&self, claim: &Pvc) -> bool {
        self.template_in_spec(claim).is_some()
    }

    fn template_in_spec(&self, claim: &Pvc) -> Option<&Value> {
        template_of_pvc(&self.observed.set.spec.volume_claim_templates, claim)
    }

    /// The revision of the spec may have its templates in another notation.
    fn template_hashes_with_spec(&self) -> &TemplateHashes {
        let templates = &self.observed.set.spec.volume_claim_templates;
        self.known_with_spec
            .get_or_init(|| self.template_hashes.with_templates(templates))
    }

    /// The hash of the template of a revision by whose name a claim goes, if there is one.
    pub fn template_hash_in(&self, revision: &Revision, claim: &Pvc) -> Option<Cow<'_, str>> {
        let template = template_of_pvc(pvc_templates(&revision.data), claim)?;
        Some(self.template_hashes.template_hash(template))
    }

    /// Whether a claim that a Pod does not mount lies beside it for the way back: it is kept, and the Pod mounts another of its template, or is
    /// of a revision without that template.
    pub fn is_pvc_set_aside(&self, pod: &Pod, claim: &Pvc) -> bool {
        let is_same = |other: &Arc<Pvc>| {
            let mut keys = [keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
            keys.all(|key| other.labels.get(key) == claim.labels.get(key))
        };
        let mut mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        let revision = self.revision_of(pod);
        self.keeps_pvc(claim)
            && (mounted.any(is_same)
                || revision.is_some_and(|of| self.template_hash_in(of, claim).is_none()))
    }

    /// Where a claim that a Pod mounts says to be of another known template than the Pod's revision has, the hash of that one: somebody has
    /// edited the label of one of them, and which can't be told.
    pub fn mismatched_template_hash(&self, pod: &Pod, claim: &Pvc) -> Option<Cow<'_, str>> {
        let said = claim.labels.get(keys::PVC_TEMPLATE_HASH)?;
        let own = self.template_hash_in(self.revision_of(pod)?, claim)?;
        let known = &self.template_hashes;
        (!pvcs::matches_hash(claim, &own, known) && known.contains(said)).then_some(own)
    }

    /// The Pods that mount a claim.
    pub fn pods_mounting(&self, claim: &str) -> &[Arc<Pod>] {
        self.observed.mounts.get(claim).map_or(&[], Vec::as_slice)
    }

    /// A Pod that may still write to a claim: it mounts the claim and has not run to its end. A Pod that is terminating may
    /// write, on a node that is lost too.
    pub fn pvc_writer(&self, claim: &str) -> Option<&Arc<Pod>> {
        self.pods_mounting(claim)
            .iter()
            .find(|pod| !pod.is_finished())
    }

    /// A claim that the next Pod of some instance ID waits for, with the Pod that still mounts it.
    pub fn awaited_pvc(&self) -> Option<(&Pod, &str)> {
        let vacant = self.recorded.iter().filter(|id| !self.is_id_held(**id));
        let claims = vacant.flat_map(|id| self.pvcs_with_id(*id));
        let claims = claims.filter(|claim| !claim.labels.contains_key(keys::ORPHANED));
        let mut mounted =
            claims.filter_map(|claim| Some((&**self.pvc_writer(&claim.name)?, &*claim.name)));
        mounted.next()
    }

    /// Whether a Pod is the one that stands for its instance.
    pub fn is_member(&self, pod: &Pod) -> bool {
        let member = self
            .instance_id_of(pod)
            .and_then(|id| self.members.get(&id));
        member.is_some_and(|member| member.metadata.uid == pod.metadata.uid)
    }

    /// Whether a Pod that has left because of its labels has the name of an instance, where names persist.
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

    /// Whether a Pod was excluded, lives on, and is not to enter again.
    pub fn has_left(&self, pod: &Pod) -> bool {
        let enters = self.strategy.include.contains(&pod.metadata.name);
        let is_out = pod.label(keys::ORPHANED).is_some() && !self.controls(pod);
        is_out && !enters && !pod.is_finished()
    }

    /// Whether the set controls a Pod: its end makes a new plan.
    pub fn controls(&self, pod: &Pod) -> bool {
        let controller = pod.controller().map(|owner| owner.uid.as_str());
        controller.is_some() && controller == self.observed.set.metadata.uid.as_deref()
    }

    /// Whether the set has a Pod of this instance ID, or is to make one again. One that is terminating never comes back.
    pub fn has_pod_with_id(&self, id: i64) -> bool {
        self.members.contains_key(&id) || self.waiting.contains_key(&id)
    }

    /// Whether a Pod stands in the way of another with this instance ID. A name that persists is free only when the
    /// Pod is gone (contract 6.0).
    pub fn is_id_held(&self, id: i64) -> bool {
        self.has_pod_with_id(id)
            || (self.strategy.sequence
                && (self.terminating.contains_key(&id) || self.ended.contains_key(&id)))
    }

    /// The instance ID of a Pod: where names persist, the one in its name; else the one of the claims that it mounts and the
    /// set controls; else the one that it carries. The label may have been edited by hand. Claims that carry another ID than
    /// their Pod would be deleted, or mounted by another Pod.
    pub fn instance_id_of(&self, pod: &Pod) -> Option<i64> {
        let carried = pod.label(keys::INSTANCE_ID).and_then(parse_instance_id);
        let named = || {
            let suffix = pod.metadata.name.strip_prefix(self.name)?;
            let suffix = suffix.strip_prefix('-')?;
            let id = parse_instance_id(suffix)?;
            let known = carried == Some(id) || self.recorded.contains(&id);
            (known || !may_be_random(suffix)).then_some(id)
        };
        let told = match self.strategy.sequence {
            true => named(),
            false => None,
        };
        told.or_else(|| self.instance_id_of_pvcs(pod)).or(carried)
    }

    /// The instance ID on which all claims of the set agree that a Pod mounts.
    pub fn instance_id_of_pvcs(&self, pod: &Pod) -> Option<i64> {
        let claims = pod.spec.pvcs.iter();
        let mut ids = claims.filter_map(|claim| self.owned_pvc_ids.get(claim.as_str()));
        let first = ids.next()?;
        ids.all(|id| id == first).then_some(*first)
    }

    /// The revisions that Pods and IDs refer to. A Pod that is terminating is none that a rollout has kept.
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

/// Names of the revisions for which a Pod was to be resized, and the generation that it had then; 0 where that is not known.
pub fn resize_marks(pod: &Pod) -> impl Iterator<Item = (&str, i64)> {
    let marked = pod.annotation(keys::RESIZING).into_iter();
    let marked = marked.flat_map(|marks| marks.split(','));
    marked.map(|mark| match mark.split_once('@') {
        Some((name, generation)) => (name, generation.parse().unwrap_or(0)),
        None => (mark, 0),
    })
}

/// Whether a Pod serves although its node never makes the resize by which it was updated: it was to go, and stays after all.
fn is_never_resized(pod: &Pod) -> bool {
    pod.annotation(keys::LAST_POD_STATUS).is_some()
        && !SetOperation::Update.is_in_progress(pod)
        && matches!(inplace::update_progress(pod), UpdateProgress::Refused(_))
}

/// Whether a suffix may be one that was chosen at random under naming Random: five letters, of which these are digits.
fn may_be_random(suffix: &str) -> bool {
    suffix.len() == 5 && suffix.chars().all(|c| "2456789".contains(c))
}

/// A cell for each revision.
fn revision_cells<T>(history: &RevisionHistory) -> BTreeMap<String, OnceCell<T>> {
    let revisions = history.readable_revisions();
    let cells = revisions.map(|revision| (revision.name.clone(), OnceCell::new()));
    cells.collect()
}

fn parse_instance_id(id: &str) -> Option<i64> {
    id.parse().ok().filter(|id| *id >= 0)
}

/// The one of some templates by whose name a claim goes.
fn template_of_pvc<'a>(templates: &'a [Value], claim: &Pvc) -> Option<&'a Value> {
    let name = claim.labels.get(keys::PVC_TEMPLATE_NAME)?;
    let mut templates = templates.iter();
    templates.find(|template| pvc_template_name(template) == name)
}
