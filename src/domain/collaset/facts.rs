//! What the objects say.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::claims::{self, hash::Known};
use super::lifecycle::{self, Operation};
use super::observed::{Claim, Observed, Revision, owns_entry, pool_name};
use super::plan::Ahead;
use super::revision::data::{claim_name, claim_templates};
use super::revision::history::History;
use super::revision::inplace::{self, InPlace, Progress};
use super::revision::resize;
use super::revision::stable::InUse;
use super::rollout::Rollout;
use super::strategy::Strategy;
use crate::api::keys;
use crate::api::resourcecontext::data;
use crate::api::selector::Selector;
use crate::domain::pod::Pod;

/// Entries of the pool by instance ID.
type Entries<'a> = BTreeMap<i64, &'a BTreeMap<String, String>>;

/// What the steps look at.
pub struct Facts<'a> {
    /// The observation.
    pub observed: &'a Observed,
    /// The spec with its defaults.
    pub strategy: Strategy,
    /// The selector.
    pub selector: Selector,
    /// Revisions.
    pub history: History,
    /// The rollout of the present template.
    pub rollout: Rollout,
    /// How a Pod gets from each of them to the updated one; worked out when it is asked for first, as that takes long.
    ways: BTreeMap<String, OnceCell<InPlace>>,
    /// What of these ways is tried before an update in place begins, as it is asked for.
    aheads: BTreeMap<String, OnceCell<Option<Arc<Ahead>>>>,
    /// Revisions of which Pods have resources, by the names of the Pods; worked out once, as it is asked for at each step.
    resized: BTreeMap<&'a str, Vec<Arc<Revision>>>,
    /// All claim templates of these revisions.
    pub known_claims: Known,
    /// The same and those of the spec. They are hashed once, and only if a claim is asked about.
    known_with_spec: OnceCell<Known>,
    /// All claims by the instance ID that they carry.
    claims: BTreeMap<i64, Vec<Arc<Claim>>>,
    /// Instance IDs of the claims that the set has, by their names.
    own_claims: BTreeMap<&'a str, i64>,
    /// All claims by their names.
    named_claims: BTreeMap<&'a str, &'a Arc<Claim>>,
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
    pub rolls: bool,
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

impl<'a> Facts<'a> {
    /// Sorts what was observed.
    pub fn of(
        observed: &'a Observed,
        strategy: Strategy,
        selector: Selector,
        history: History,
        rollout: Rollout,
    ) -> Facts<'a> {
        let set = &observed.set;
        let name = set.metadata.name.as_deref().unwrap_or_default();
        let mut facts = Facts {
            observed,
            strategy,
            selector,
            ways: cells(&history),
            aheads: cells(&history),
            resized: BTreeMap::new(),
            known_claims: Known::of_revisions(history.all()),
            known_with_spec: OnceCell::new(),
            claims: BTreeMap::new(),
            own_claims: BTreeMap::new(),
            named_claims: observed.claims.iter().map(|c| (&*c.name, c)).collect(),
            recorded: BTreeSet::new(),
            history,
            rollout,
            name,
            pool: pool_name(set),
            foreign: BTreeSet::new(),
            members: BTreeMap::new(),
            rolls: false,
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
        facts.foreign = facts.ids_of_pool(false);
        facts.recorded = facts.ids_of_pool(true);
        let uid = set.metadata.uid.as_deref();
        for claim in &observed.claims {
            let id = claim.labels.get(keys::INSTANCE_ID);
            // That of a Pod that lives on outside serves nobody else, though it does not say so.
            let mut mounting = facts.mounting(&claim.name).iter();
            let is_own = claim.belongs_to(uid);
            let has_left = !is_own && mounting.any(|pod| facts.has_left(pod));
            if let Some(id) = id.and_then(|id| parse(id)).filter(|_| !has_left) {
                facts.claims.entry(id).or_default().push(claim.clone());
                if is_own {
                    facts.own_claims.insert(&claim.name, id);
                }
            }
        }
        let mut pods: Vec<&Arc<Pod>> = observed.pods.iter().collect();
        let present = pods.iter().filter(|pod| !pod.is_terminating());
        facts.names = present.map(|pod| &*pod.metadata.name).collect();
        // The older of two Pods with one ID keeps it.
        pods.sort_by_key(|p| (&p.metadata.creation_timestamp, &p.metadata.name));
        for pod in pods {
            facts.sort(pod);
        }
        for pod in &facts.finished {
            if let Some(id) = facts.id_of(pod) {
                facts.ended.entry(id).or_default().push(Arc::clone(pod));
            }
        }
        facts.number();
        facts.waiting = facts.waiting();
        facts.rolls = facts.members.values().any(|pod| !facts.is_updated(pod));
        facts
    }

    /// Gives the Pods an instance ID that have none of their own: one that the pool knows and no Pod has, which most likely was
    /// theirs, or else the lowest that is free and of which no other volumes are left. The next plan gives them the same, so it need not be stored at once.
    fn number(&mut self) {
        let misnumbered = std::mem::take(&mut self.misnumbered);
        let has_other = |pod: &Arc<Pod>| {
            let id = self.id_of(pod);
            id.is_some_and(|id| self.members.contains_key(&id))
        };
        let (doubles, unnumbered): (Vec<_>, Vec<_>) = misnumbered.into_iter().partition(has_other);
        self.misnumbered = doubles;
        if unnumbered.is_empty() {
            return;
        }
        let recorded = self.recorded.iter().copied();
        let mut vacant: BTreeSet<i64> = recorded.filter(|id| self.is_vacant(*id)).collect();
        let halves = self.halves();
        let mut lowest = 0;
        let set = &self.observed.set;
        for pod in unnumbered {
            // Not the ID of a new half if the Pod is none, nor one of which the set has other claims.
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_own = |claim: &Claim| claim.terminating || pod.spec.claims.contains(&claim.name);
            let suits = |id: &i64| {
                halves.get(id).is_none_or(|of| Some(&**of) == origin)
                    && self
                        .claims_of(*id)
                        .all(|claim| is_own(claim) || self.lies_beside(&pod, claim))
            };
            let known = vacant.iter().copied().find(suits);
            let id = known.unwrap_or_else(|| {
                let is_free = |id: i64| !self.recorded.contains(&id) && self.is_vacant(id);
                while !is_free(lowest) {
                    lowest += 1;
                }
                // Volumes that a former set of this name has left are taken up with their ID.
                let is_empty = |id: i64| {
                    let mut claims = self.claims_at(id).iter();
                    claims.all(|claim| is_own(claim) || !claims::is_usable(set, claim))
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
    pub fn halves(&self) -> BTreeMap<i64, String> {
        let new = |origin: &Pod| parse(origin.label(keys::REPLACE_PAIR_NEW_ID)?);
        let members = self.members.values();
        let pairs = members.filter_map(|origin| Some((new(origin)?, origin.metadata.name.clone())));
        pairs.collect()
    }

    fn is_vacant(&self, id: i64) -> bool {
        let has_ended = self.ended.contains_key(&id);
        !has_ended && !self.is_held(id) && !self.foreign.contains(&id)
    }

    /// Whether a write of a Pod, or of a claim that it mounts, was refused lately.
    pub fn is_refused(&self, pod: &Pod) -> bool {
        let refused = &self.observed.refused;
        let mut claims = pod.spec.claims.iter();
        refused.pods.contains(&pod.metadata.uid)
            || claims.any(|claim| refused.claims.contains(claim))
    }

    /// Whether what is to leave with a Pod was refused lately: a write of it, or of one of the claims of its ID, mounted or not.
    pub fn is_kept(&self, id: i64, pod: &Pod) -> bool {
        let refused = &self.observed.refused.claims;
        self.is_refused(pod)
            || self
                .claims_of(id)
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
            let id = self.id_of(pod).filter(|id| !self.members.contains_key(id));
            if let Some(id) =
                id.filter(|id| waits && self.is_made_again(entries.as_ref(), *id, pod))
            {
                waiting.entry(id).or_insert_with(|| Arc::clone(pod));
            }
        }
        waiting
    }

    /// Whether the next Pod of an ID, by the pool, fares no better than a Pod that has ended: there is to be one, and of its revision.
    fn is_made_again(&self, entries: Option<&Entries<'_>>, id: i64, pod: &Pod) -> bool {
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
        let is_known = next.is_some_and(|next| self.history.find(next).is_some());
        !is_known || own.is_none() || next == own
    }

    /// The Pods of an ID that has none: those that have ended, or are about to.
    pub fn former(&self, id: i64) -> impl Iterator<Item = &Arc<Pod>> {
        let ending = self.terminating.get(&id).into_iter().flatten();
        let ended = self.ended.get(&id).into_iter().flatten();
        ending.chain(ended)
    }

    /// When a Pod that has ended is made again, if that is later; nanoseconds since 1970.
    pub fn made_again_at(&self, pod: &Pod) -> Option<u64> {
        let until = self.observed.ended_until.get(&pod.metadata.uid).copied()?;
        let waiting = self.waiting.get(&self.id_of(pod)?)?;
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
        let is_undeleted = || self.undeleted(pod).is_some() && lifecycle::is_told(pod);
        lifecycle::may_stay(pod) || is_undeleted()
    }

    /// Whether a Pod is on its way out, and nobody can call it back any more.
    pub fn must_leave(&self, pod: &Pod) -> bool {
        lifecycle::is_leaving(pod) && !self.may_stay(pod)
    }

    /// Why a Pod that is off traffic to be deleted is not.
    pub fn undeleted(&self, pod: &Pod) -> Option<&str> {
        let why = self.observed.refused.undeleted.get(&pod.metadata.uid);
        why.map(String::as_str)
    }

    /// Whether a Pod is the new half of a pair whose origin is there: it stands for that one.
    pub fn is_half(&self, pod: &Pod) -> bool {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|origin| self.names.contains(origin))
    }

    fn sort(&mut self, pod: &Arc<Pod>) {
        let pod = Arc::clone(pod);
        if pod.is_terminating() {
            if let Some(id) = self.id_of(&pod) {
                self.terminating.entry(id).or_default().push(pod);
            }
        } else if !self.selector.matches(&pod.metadata.labels) {
            self.unselected.push(pod);
        } else if pod.is_finished() {
            self.finished.push(pod);
        } else {
            match self.id_of(&pod).filter(|id| !self.foreign.contains(id)) {
                Some(id) if !self.members.contains_key(&id) => {
                    self.members.insert(id, pod);
                }
                _ => self.misnumbered.push(pod),
            }
        }
    }

    /// IDs of the pool that belong to Pods of the set, or to other sets.
    fn ids_of_pool(&self, own: bool) -> BTreeSet<i64> {
        let contexts = self.observed.pool.iter().flat_map(|pool| &pool.contexts);
        contexts
            .filter(|c| self.owns(&c.data) == own && !(own && c.data.contains_key(data::REPLACED)))
            .map(|c| c.id)
            .collect()
    }

    /// Whether an entry of the pool is the set's own.
    pub fn owns(&self, data: &BTreeMap<String, String>) -> bool {
        owns_entry(&self.observed.set, data)
    }

    /// The revision that a Pod was made or changed to, if it is still known.
    pub fn revision_of(&self, pod: &Pod) -> Option<&Arc<Revision>> {
        self.history.find(pod.label(keys::REVISION)?)
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
        let marked = marked(pod).filter(move |(_, generation)| has_changed(*generation));
        let marked = marked.filter_map(|(name, _)| self.history.find(name));
        marked.filter(move |to| of.is_some_and(|of| resize::is_done(pod, &of.data, &to.data)))
    }

    /// Whether there is one.
    pub fn is_resized(&self, pod: &Pod) -> bool {
        !self.resized_to(pod).is_empty()
    }

    /// What turns a Pod of a revision into one of the updated revision.
    pub fn change_from(&self, revision: &Revision) -> Cow<'_, InPlace> {
        let change = || inplace::change(&revision.data, &self.history.updated.data);
        match self.ways.get(&revision.name) {
            Some(way) => Cow::Borrowed(way.get_or_init(change)),
            None => Cow::Owned(change()),
        }
    }

    /// What is tried before a Pod of a revision goes off traffic for a change in place.
    pub fn ahead_from(&self, revision: &Revision) -> Option<Arc<Ahead>> {
        match self.aheads.get(&revision.name) {
            Some(known) => {
                let ahead = || self.ahead(&self.change_from(revision));
                known.get_or_init(ahead).clone()
            }
            None => self.ahead(&self.change_from(revision)),
        }
    }

    /// What is tried before a change in place is made.
    pub fn ahead(&self, change: &InPlace) -> Option<Arc<Ahead>> {
        let InPlace::Yes {
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
        Some(Arc::new(Ahead {
            revision: updated.clone(),
            labels,
            annotations: annotations.clone(),
            spec: spec.clone(),
            resize: resize.clone(),
        }))
    }

    /// Whether a Pod is of the updated revision.
    pub fn is_updated(&self, pod: &Pod) -> bool {
        self.is_labelled_updated(pod) && !self.is_resized(pod) && !is_never_resized(pod)
    }

    /// Whether its label says so.
    pub fn is_labelled_updated(&self, pod: &Pod) -> bool {
        pod.label(keys::REVISION) == Some(&self.history.updated.name)
    }

    /// The claims that carry an instance ID, whoever controls them.
    pub fn claims_at(&self, id: i64) -> &[Arc<Claim>] {
        self.claims.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Of these, the ones that the set has.
    pub fn claims_of(&self, id: i64) -> impl Iterator<Item = &Arc<Claim>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let at = self.claims_at(id).iter();
        at.filter(move |claim| claim.belongs_to(uid))
    }

    /// The IDs of which the set has claims that nobody mounts, those of the oldest claims first.
    pub fn ids_of_claims_left(&self) -> Vec<i64> {
        let ids = self.claims.keys().copied();
        let mut left: Vec<_> = ids
            .filter_map(|id| {
                let own = || self.claims_of(id).filter(|claim| !claim.terminating);
                let since = own().map(|claim| claim.creation_timestamp).min()?;
                let mut mounting = own().flat_map(|claim| self.mounting(&claim.name));
                mounting.next().is_none().then_some((since, id))
            })
            .collect();
        left.sort_unstable();
        left.into_iter().map(|(_, id)| id).collect()
    }

    /// The claims that a Pod mounts and the set has.
    pub fn claims_of_pod(&self, pod: &Pod) -> impl Iterator<Item = &'a Arc<Claim>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let mounted = pod.spec.claims.iter().filter_map(|name| self.claim(name));
        mounted.filter(move |claim| claim.belongs_to(uid))
    }

    /// The claims that the set has and which only Pods mount of which this is so.
    pub fn claims_mounted_by(
        &self,
        is_so: impl Fn(&Arc<Pod>) -> bool,
    ) -> impl Iterator<Item = &'a Arc<Claim>> {
        let own = self.own_claims.keys().filter(move |name| {
            let mut pods = self.mounting(name).iter();
            pods.next().is_some_and(&is_so) && pods.all(&is_so)
        });
        own.filter_map(|name| self.claim(name))
    }

    /// A claim that the set controls, or nobody does.
    pub fn claim(&self, name: &str) -> Option<&'a Arc<Claim>> {
        self.named_claims.get(name).copied()
    }

    /// Whether the set never deletes a claim that it has.
    pub fn keeps(&self, claim: &Claim) -> bool {
        claim.is_kept_for(self.observed.set.metadata.uid.as_deref())
    }

    /// Whether a claim that enters with its Pod is of a template of the spec, as its hash says. Any other would be deleted as left over once
    /// the Pod is updated, though whoever made the set again with another template, or included the Pod, was not warned of that. The updated
    /// revision does not tell: it may be that of a former template, while that of the spec is refused, or the rollout aborted.
    pub fn is_of_spec(&self, claim: &Claim) -> bool {
        let template = self.template_in_spec(claim);
        let said = claim.labels.get(keys::PVC_TEMPLATE_HASH);
        said.zip(template).is_some_and(|(said, template)| {
            let known = self.known_with_spec();
            known.is_same(said, &known.hash(template))
        })
    }

    /// Whether a claim that is kept is mounted by Pods of the spec.
    pub fn serves_spec(&self, claim: &Claim) -> bool {
        self.template_in_spec(claim).is_some_and(|template| {
            let known = self.known_with_spec();
            claims::has_hash(claim, &known.hash(template), known)
        })
    }

    /// Whether the spec has a template by whose name a claim goes.
    pub fn is_named_in_spec(&self, claim: &Claim) -> bool {
        self.template_in_spec(claim).is_some()
    }

    fn template_in_spec(&self, claim: &Claim) -> Option<&Value> {
        template_of(&self.observed.set.spec.volume_claim_templates, claim)
    }

    /// The revision of the spec may have its templates in another notation.
    fn known_with_spec(&self) -> &Known {
        let templates = &self.observed.set.spec.volume_claim_templates;
        self.known_with_spec
            .get_or_init(|| self.known_claims.and(templates))
    }

    /// The hash of the template of a revision by whose name a claim goes, if there is one.
    pub fn hash_in(&self, revision: &Revision, claim: &Claim) -> Option<Cow<'_, str>> {
        let template = template_of(claim_templates(&revision.data), claim)?;
        Some(self.known_claims.hash(template))
    }

    /// Whether a claim that a Pod does not mount lies beside it for the way back: it is kept, and the Pod mounts another of its template, or is
    /// of a revision without that template.
    pub fn lies_beside(&self, pod: &Pod, claim: &Claim) -> bool {
        let is_same = |other: &Arc<Claim>| {
            let mut keys = [keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
            keys.all(|key| other.labels.get(key) == claim.labels.get(key))
        };
        let mut mounted = pod.spec.claims.iter().filter_map(|name| self.claim(name));
        let revision = self.revision_of(pod);
        self.keeps(claim)
            && (mounted.any(is_same)
                || revision.is_some_and(|of| self.hash_in(of, claim).is_none()))
    }

    /// Where a claim that a Pod mounts says to be of another known template than the Pod's revision has, the hash of that one: somebody has
    /// edited the label of one of them, and which can't be told.
    pub fn contradicting(&self, pod: &Pod, claim: &Claim) -> Option<Cow<'_, str>> {
        let said = claim.labels.get(keys::PVC_TEMPLATE_HASH)?;
        let own = self.hash_in(self.revision_of(pod)?, claim)?;
        let known = &self.known_claims;
        (!claims::has_hash(claim, &own, known) && known.contains(said)).then_some(own)
    }

    /// The Pods that mount a claim.
    pub fn mounting(&self, claim: &str) -> &[Arc<Pod>] {
        self.observed.mounts.get(claim).map_or(&[], Vec::as_slice)
    }

    /// A Pod that may still write to a claim: it mounts the claim and has not run to its end. A Pod that is terminating may
    /// write, on a node that is lost too.
    pub fn writer(&self, claim: &str) -> Option<&Arc<Pod>> {
        self.mounting(claim).iter().find(|pod| !pod.is_finished())
    }

    /// A claim that the next Pod of some instance ID waits for, with the Pod that still mounts it.
    pub fn awaited_claim(&self) -> Option<(&Pod, &str)> {
        let vacant = self.recorded.iter().filter(|id| !self.is_held(**id));
        let claims = vacant.flat_map(|id| self.claims_at(*id));
        let claims = claims.filter(|claim| !claim.labels.contains_key(keys::ORPHANED));
        let mut mounted =
            claims.filter_map(|claim| Some((&**self.writer(&claim.name)?, &*claim.name)));
        mounted.next()
    }

    /// Whether a Pod is the one that stands for its instance.
    pub fn is_member(&self, pod: &Pod) -> bool {
        let member = self.id_of(pod).and_then(|id| self.members.get(&id));
        member.is_some_and(|member| member.metadata.uid == pod.metadata.uid)
    }

    /// Whether a Pod that has left because of its labels has the name of an instance, where names persist.
    pub fn is_name_taken(&self, id: i64) -> bool {
        if !self.strategy.sequence {
            return false;
        }
        let name = super::pool::name_of(self, id);
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
    pub fn is_there(&self, id: i64) -> bool {
        self.members.contains_key(&id) || self.waiting.contains_key(&id)
    }

    /// Whether a Pod stands in the way of another with this instance ID. A name that persists is free only when the
    /// Pod is gone (contract 6.0).
    pub fn is_held(&self, id: i64) -> bool {
        self.is_there(id)
            || (self.strategy.sequence
                && (self.terminating.contains_key(&id) || self.ended.contains_key(&id)))
    }

    /// The instance ID of a Pod: where names persist, the one in its name; else the one of the claims that it mounts and the
    /// set controls; else the one that it carries. The label may have been edited by hand. Claims that carry another ID than
    /// their Pod would be deleted, or mounted by another Pod.
    pub fn id_of(&self, pod: &Pod) -> Option<i64> {
        let carried = pod.label(keys::INSTANCE_ID).and_then(parse);
        let named = || {
            let suffix = pod.metadata.name.strip_prefix(self.name)?;
            let suffix = suffix.strip_prefix('-')?;
            let id = parse(suffix)?;
            let known = carried == Some(id) || self.recorded.contains(&id);
            (known || !may_be_random(suffix)).then_some(id)
        };
        let told = match self.strategy.sequence {
            true => named(),
            false => None,
        };
        told.or_else(|| self.id_of_claims(pod)).or(carried)
    }

    /// The instance ID on which all claims of the set agree that a Pod mounts.
    pub fn id_of_claims(&self, pod: &Pod) -> Option<i64> {
        let claims = pod.spec.claims.iter();
        let mut ids = claims.filter_map(|claim| self.own_claims.get(claim.as_str()));
        let first = ids.next()?;
        ids.all(|id| id == first).then_some(*first)
    }

    /// The revisions that Pods and IDs refer to. A Pod that is terminating is none that a rollout has kept.
    pub fn revisions_in_use(observed: &Observed, selector: &Selector) -> InUse {
        let orphans = observed.orphans.iter();
        let orphans = orphans.filter(|pod| selector.matches(&pod.metadata.labels));
        let mut in_use = InUse::new();
        for pod in observed.pods.iter().chain(orphans) {
            let replaced_by = pod.label(keys::REPLACED_BY_REPLACE_UPDATE);
            let others = replaced_by
                .into_iter()
                .chain(marked(pod).map(|(name, _)| name));
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
pub fn marked(pod: &Pod) -> impl Iterator<Item = (&str, i64)> {
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
        && !Operation::Update.is_on(pod)
        && matches!(inplace::progress(pod), Progress::Refused(_))
}

/// Whether a suffix may be one that was chosen at random under naming Random: five letters, of which these are digits.
fn may_be_random(suffix: &str) -> bool {
    suffix.len() == 5 && suffix.chars().all(|c| "2456789".contains(c))
}

/// A cell for each revision.
fn cells<T>(history: &History) -> BTreeMap<String, OnceCell<T>> {
    let revisions = history.all();
    let cells = revisions.map(|revision| (revision.name.clone(), OnceCell::new()));
    cells.collect()
}

fn parse(id: &str) -> Option<i64> {
    id.parse().ok().filter(|id| *id >= 0)
}

/// The one of some templates by whose name a claim goes.
fn template_of<'a>(templates: &'a [Value], claim: &Claim) -> Option<&'a Value> {
    let name = claim.labels.get(keys::PVC_TEMPLATE_NAME)?;
    let mut templates = templates.iter();
    templates.find(|template| claim_name(template) == name)
}
