//! The counts and texts from which the conditions are made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::revision::progress::{UpdateProgress, update_progress};
use super::super::set_facts::SetFacts;
use super::super::set_operations::{self, SetOperation};
use super::super::strategy::{UpdatePolicy, UpdateScope};
use super::super::{pool, update};
use super::membership_requests::MembershipRequests;
use super::pods_down::{
    container_failure, describe_stuck_pods, is_coming_back, is_down, is_held_up,
};
use super::{MAX_NAMES, is_operating, waits};
use crate::api::collaset::CollaSetStatus;
use crate::api::keys;
use crate::domain::lifecycle::{Phase, stored_phase};
use crate::domain::pod::Pod;

/// The differences between a set and its spec, as counts and texts.
pub(super) struct ConditionInputs {
    pub(super) missing: usize,
    pub(super) surplus: usize,
    /// Pods of another revision than the complete rollout will give them.
    pub(super) behind: usize,
    /// Pods that keep their revision and are to get other decorations.
    pub(super) to_decorate: usize,
    /// Missing Pods that a rollout in progress will create of the updated revision.
    pub(super) to_make: usize,
    /// Whether all missing Pods existed before and a rollout in progress creates them again. A rollout at a pause has
    /// deleted none of them.
    pub(super) is_remaking: bool,
    /// Whether the rollout of the updated revision is not complete.
    pub(super) is_under_way: bool,
    /// Pods that stay on older revisions, as the spec asks.
    pub(super) staying_outdated: usize,
    /// Pods with an operation of the set, an update or a scale-in.
    pub(super) updating: usize,
    /// Pods whose operation of the set has ended and that are not back on traffic yet.
    pub(super) returning: usize,
    /// Pairs of which neither Pod has an operation of the set, because the new Pod is not available yet.
    pub(super) opening: usize,
    /// How many of these Pods and pairs wait for rules, or do not start until somebody corrects the cause.
    pub(super) held_up: usize,
    /// Pods whose update is in progress.
    pub(super) updates: usize,
    /// Replace pairs of which both Pods exist.
    pub(super) pairs: usize,
    /// Requests about single Pods.
    pub(super) requests: MembershipRequests,
    pub(super) unavailable: Vec<Arc<Pod>>,
    /// Terminating Pods whose persistent names other Pods need.
    pub(super) awaited: Vec<Arc<Pod>>,
    /// Requests about Pods that can't be fulfilled: reason and message.
    pub(super) refused: Vec<(&'static str, String)>,
    /// Why Pods of the updated revision do not run, while a rollout or a replacement is in progress.
    pub(super) stuck: Option<String>,
    /// The Pods that are stuck on older revisions and that the rollout does not reach, each after `; `.
    pub(super) left_out: String,
    /// What uses up `maxUnavailable` while the update of another Pod waits for a slot.
    pub(super) using_up: update::MaxUnavailableUse,
    /// Pods whose replacements use up `maxSurge` while another Pod waits to be replaced.
    pub(super) using_surge_up: Vec<Arc<Pod>>,
    /// Says that the pool has no space for the wanted Pods or pairs; empty if it has.
    pub(super) no_room: String,
}

impl ConditionInputs {
    pub(super) fn from_facts(
        facts: &SetFacts,
        draft: &Draft,
        status: &CollaSetStatus,
    ) -> ConditionInputs {
        let members = CountedMembers::from_facts(facts, draft);
        let (pods, pairs) = (&members.pods, members.pairs);
        let behind = members.count_behind();
        let targets = update::targets(facts, draft).values();
        let to_decorate = targets
            .filter(|target| target.is_behind && target.by_decorations || target.is_postponed);
        let to_decorate = to_decorate.count();
        let (missing, surplus) = members.count_missing_and_surplus();
        let is_under_way = status.current_revision != status.updated_revision;
        let to_make = match is_under_way {
            true => members.count_to_make(missing, behind),
            false => 0,
        };
        let updates = pods
            .iter()
            .filter(|p| SetOperation::Update.is_in_progress(p))
            .count();
        let is_changing = behind + to_decorate + pairs + updates > 0;
        let none_goes = facts.misnumbered.is_empty() && facts.unselected.is_empty();
        let is_remaking = missing > 0
            && none_goes
            && is_under_way
            && !facts.strategy.paused
            && !waits::is_at_pause(facts, status)
            && count_recorded_as_updated(facts, draft, true) >= missing;
        let unavailable = pods.iter().filter(|p| !p.is_available());
        let opening = members.opening_pairs();
        ConditionInputs {
            is_remaking,
            is_under_way,
            missing,
            surplus,
            behind,
            to_decorate,
            to_make,
            staying_outdated: members.outdated().count().saturating_sub(behind),
            updating: usize::try_from(status.operating_replicas).unwrap_or(0),
            returning: pods.iter().filter(|p| is_coming_back(p)).count(),
            opening: opening.len(),
            held_up: members.count_held_up(&opening),
            updates,
            pairs,
            requests: MembershipRequests::from_facts(facts, draft),
            unavailable: unavailable.map(|p| Arc::clone(p)).collect(),
            awaited: pods_to_end(facts, draft),
            refused: draft.refused.clone(),
            stuck: describe_stuck_pods(facts, pods).filter(|_| is_under_way || is_changing),
            left_out: describe_left_out_pods(facts, draft),
            using_up: max_unavailable_use(facts, draft),
            using_surge_up: update::max_surge_use(facts, draft),
            no_room: describe_pool_limits(facts, draft, missing, (behind, pairs)),
        }
    }
}

/// The members of a set, counted so that a replace pair is one instance.
struct CountedMembers<'a> {
    facts: &'a SetFacts<'a>,
    draft: &'a Draft,
    pods: Vec<&'a Arc<Pod>>,
    /// Number of replace pairs of which both Pods exist.
    pairs: usize,
    /// Names of the members that do not have the updated revision; empty if there are no pairs.
    outdated_names: BTreeSet<&'a str>,
}

impl<'a> CountedMembers<'a> {
    fn from_facts(facts: &'a SetFacts, draft: &'a Draft) -> CountedMembers<'a> {
        let mut members = CountedMembers {
            facts,
            draft,
            pods: facts.members.values().collect(),
            pairs: 0,
            outdated_names: BTreeSet::new(),
        };
        members.pairs = members.new_halves().count();
        if members.pairs > 0 {
            let outdated = members.pods.iter().filter(|p| !facts.is_updated(p));
            members.outdated_names = outdated.map(|p| &*p.metadata.name).collect();
        }
        members
    }

    /// The new Pods of pairs.
    fn new_halves(&self) -> impl Iterator<Item = &&'a Arc<Pod>> {
        let pods = self.pods.iter();
        pods.filter(|p| self.facts.is_new_half(p) && !self.leaves_pair(p))
    }

    /// Whether this plan removes the label of a pair, because the origin in the label is another Pod now. A name may be
    /// used again.
    fn leaves_pair(&self, pod: &Pod) -> bool {
        self.draft
            .removes_label(pod, keys::REPLACE_PAIR_ORIGIN_NAME)
    }

    /// Whether a Pod has left and its place is free. The place of an origin is taken by its new Pod.
    fn has_left(&self, pod: &Pod) -> bool {
        let id = self.facts.instance_id_of(pod);
        let is_out = |id| self.draft.leaving.contains(&id) && !self.draft.ids.contains_key(&id);
        id.is_some_and(is_out) && pod.label(keys::REPLACE_PAIR_NEW_ID).is_none()
    }

    fn is_new_half_of_outdated(&self, pod: &Pod) -> bool {
        let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
        origin.is_some_and(|origin| self.outdated_names.contains(origin)) && !self.leaves_pair(pod)
    }

    /// The instances that do not have the updated revision. A pair counts as one Pod.
    fn outdated(&self) -> impl Iterator<Item = &&'a Arc<Pod>> {
        let outdated = self.pods.iter().filter(|p| !self.facts.is_updated(p));
        outdated.filter(|pod| !self.is_new_half_of_outdated(pod))
    }

    /// Counts the Pods and the `opening` pairs of the rollout that can't go on by themselves.
    fn count_held_up(&self, opening: &[&'a Arc<Pod>]) -> usize {
        let worked_on = self.pods.iter();
        let worked_on = worked_on.filter(|pod| is_operating(pod) || is_coming_back(pod));
        let all = worked_on.chain(opening);
        all.filter(|pod| is_held_up(pod)).count()
    }

    /// The new Pods of the pairs of a rollout of which neither Pod has an operation of the set.
    fn opening_pairs(&self) -> Vec<&'a Arc<Pod>> {
        let busy = self.pods.iter().filter(|_| self.pairs > 0);
        let busy = busy.filter(|p| is_operating(p) || is_coming_back(p));
        let busy: BTreeSet<&str> = busy.map(|p| &*p.metadata.name).collect();
        let halves = self.new_halves().copied();
        let opening = halves.filter(|half| {
            let origin = half.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_of_rollout = origin.is_some_and(|origin| self.outdated_names.contains(origin));
            let both = [Some(&*half.metadata.name), origin];
            is_of_rollout && !both.into_iter().flatten().any(|name| busy.contains(name))
        });
        opening.collect()
    }

    /// Counts the Pods of another revision than the complete rollout will give them.
    fn count_behind(&self) -> usize {
        let facts = self.facts;
        match facts.rollout.final_scope() {
            UpdateScope::Partition(partition) => {
                let back = update::rolled_back_ids(facts);
                let back = back.filter_map(|id| facts.members.get(&id));
                let back = back.filter(|pod| !self.is_new_half_of_outdated(pod));
                let outdated = self.outdated().count();
                outdated.saturating_sub(partition).max(back.count())
            }
            UpdateScope::ByLabel => self
                .outdated()
                .filter(|p| p.label(keys::UPDATE_INCLUDED).is_some())
                .count(),
        }
    }

    /// Counts the missing instances, and those that are too many. One Pod may be missing while another is scaled in.
    fn count_missing_and_surplus(&self) -> (usize, usize) {
        let (facts, draft) = (self.facts, self.draft);
        let wanted = facts.strategy.replicas;
        let instances = self.pods.len() - self.pairs;
        let is_member = |id: &&i64| facts.members.contains_key(id);
        let scaled_in = draft.surplus.iter().filter(is_member).count();
        let departed = self.pods.iter().filter(|pod| self.has_left(pod)).count();
        let staying = instances.saturating_sub(departed);
        let missing = wanted.saturating_sub(staying.saturating_sub(scaled_in));
        // Pods whose places are not free yet leave, too.
        let leaving = draft.leaving.iter().filter(is_member).count();
        let surplus = instances.saturating_sub(leaving + wanted).max(scaled_in);
        let others = facts.misnumbered.len() + facts.unselected.len();
        (missing, surplus + others)
    }

    /// Counts the missing Pods that a rollout in progress will create of the updated revision.
    fn count_to_make(&self, missing: usize, behind: usize) -> usize {
        match self.facts.rollout.final_scope() {
            UpdateScope::Partition(partition) => {
                let outdated = self.outdated().count();
                // The set creates these instances again under other IDs, and counts them as missing.
                let made_anew = self.outdated().filter(|pod| self.has_left(pod)).count();
                (missing + outdated - made_anew)
                    .saturating_sub(partition)
                    .saturating_sub(behind)
            }
            UpdateScope::ByLabel => {
                missing.min(count_recorded_as_updated(self.facts, self.draft, false))
            }
        }
    }
}

/// Says that the pool has no space for the missing IDs, or for the Pods to replace; empty if it has.
fn describe_pool_limits(
    facts: &SetFacts,
    draft: &Draft,
    missing: usize,
    (behind, pairs): (usize, usize),
) -> String {
    if missing > 0 {
        let lacks = pool::counted_ids(facts, draft).len() < facts.strategy.replicas;
        return match lacks {
            true => waits::describe_full_pool(facts, draft),
            false => String::new(),
        };
    }
    let mut members = facts.members.iter();
    let waits = members.any(|(id, pod)| {
        pod.label(keys::TO_REPLACE).is_some()
            && !pool::has_entry_mark(draft, *id, pool::REPLACE_NEW)
    });
    let linked = |data: &&BTreeMap<String, String>| data.contains_key(pool::REPLACE_NEW);
    let open = draft.ids.values().filter(linked).count();
    match waits || (facts.strategy.policy == UpdatePolicy::Replace && behind > pairs) {
        true => waits::describe_pair_limit(facts, draft, pairs.max(open)),
        false => String::new(),
    }
}

/// Counts the missing Pods that will be created of the updated revision. With `again`, the function counts only Pods
/// that existed before and did not end by themselves.
fn count_recorded_as_updated(facts: &SetFacts, draft: &Draft, again: bool) -> usize {
    let vacant = draft.ids.iter().filter(|(id, data)| {
        let recorded = data.get(pool::REVISION);
        let is_new = data.contains_key(pool::JUST_CREATE) || facts.recreated_later.contains_key(id);
        !facts.members.contains_key(id)
            && recorded == Some(&facts.history.updated.name)
            && !(again && is_new)
    });
    vacant.count()
}

/// The first Pods that must end before other Pods with their names can be created. On a lost node such Pods remain
/// until the node is back, its object is deleted, or somebody deletes the Pods by force.
fn pods_to_end(facts: &SetFacts, draft: &Draft) -> Vec<Arc<Pod>> {
    let is_wanted = |id: &i64| {
        let data = draft.ids.get(id);
        let marks = [pool::SCALE_IN, pool::REPLACED];
        data.is_some_and(|data| !marks.iter().any(|mark| data.contains_key(*mark)))
    };
    let vacant = facts.terminating.iter().filter(|(id, _)| {
        facts.strategy.sequence && !facts.members.contains_key(id) && is_wanted(id)
    });
    let pods = vacant.flat_map(|(_, pods)| pods);
    pods.take(MAX_NAMES).map(Arc::clone).collect()
}

/// Describes the first Pods that are stuck on older revisions and that the rollout does not reach. Each follows `; `
/// and says how the Pod can get the updated revision.
fn describe_left_out_pods(facts: &SetFacts, draft: &Draft) -> String {
    let is_half_updated = |pod: &Pod| {
        SetOperation::Update.is_in_progress(pod)
            && stored_phase(pod, set_operations::LIFECYCLE_ID) == Phase::Operate
            && update_progress(pod) != UpdateProgress::Done
    };
    let old = facts.members.iter();
    let goes = |id: &i64, pod: &Pod| {
        let is_out = draft.leaving.contains(id) || draft.surplus.contains(id);
        // The new Pod of a pair depends on its origin.
        let is_second = facts.is_new_half(pod);
        is_out
            || is_second
            || set_operations::is_leaving(pod)
            || SetOperation::ScaleIn.is_in_progress(pod)
    };
    let old = old.filter(|(id, pod)| !facts.is_updated(pod) && !goes(id, pod));
    let broken = old.filter(|(_, pod)| container_failure(pod).is_some() || is_half_updated(pod));
    let mut broken = broken.peekable();
    let rollout = &facts.rollout;
    let reaches_nobody = rollout.is_aborted() || rollout.is_frozen() || facts.strategy.paused;
    if broken.peek().is_none() || reaches_nobody {
        return String::new();
    }
    let remedy = match (rollout.final_scope(), rollout.has_steps_left()) {
        (UpdateScope::ByLabel, _) => format!("set its label {}=true", keys::UPDATE_INCLUDED),
        (UpdateScope::Partition(0), true) => "promote the rollout".to_owned(),
        (UpdateScope::Partition(partition), true) => {
            format!("promote the rollout, or lower the partition, which is {partition} in the end,")
        }
        (UpdateScope::Partition(0), false) => return String::new(),
        (UpdateScope::Partition(partition), false) => {
            format!("lower the partition, which is {partition},")
        }
    };
    let scope = update::in_scope(facts, draft, &pool::counted_ids(facts, draft));
    let left_out = broken.filter(|(id, _)| !scope.contains(id)).map(|(_, pod)| {
        let (name, revision) = (&pod.metadata.name, pod.label(keys::REVISION));
        let revision = revision.unwrap_or("unknown");
        format!("; Pod {name} is stuck on revision {revision}, and the rollout does not reach it: {remedy} to have it updated")
    });
    left_out.take(MAX_NAMES).collect()
}

/// Returns what uses up `maxUnavailable`, without Pods that are on their way back to service and that the message
/// already names as down.
fn max_unavailable_use(facts: &SetFacts, draft: &Draft) -> update::MaxUnavailableUse {
    let mut using_up = update::max_unavailable_use(facts, draft);
    let comes_back = |pod: &Pod| {
        let is_on_its_way =
            pod.is_ready() || stored_phase(pod, set_operations::LIFECYCLE_ID) != Phase::Idle;
        is_on_its_way && !waits::is_kept_off(pod)
    };
    let is_counted = |pod: &Arc<Pod>| !is_down(facts, pod) || !comes_back(pod);
    using_up.pods.retain(is_counted);
    using_up
}
