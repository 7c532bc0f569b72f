//! The conditions of a CollaSet.
//!
//! `Scale`, `Update` and `Terminating` are True when their goal is reached. Until then they are False, with the reasons
//! that Kuperator also uses for a step that failed. `Ready` says whether everything is as the spec asks. `Stalled`
//! appears if that can't be reached without a change, in the form that tools for rollouts read (kstatus).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::draft::Draft;
use super::super::plan::Shortfall;
use super::super::revision::inplace::{UpdateProgress, update_progress as progress_of};
use super::super::set_facts::SetFacts;
use super::super::set_operations::{self, SetOperation};
use super::super::strategy::{UpdatePolicy, UpdateScope};
use super::super::{pairs, pool, update};
use super::membership_requests::MembershipRequests;
use super::{deletion_waits, is_operating, progress, waits};
use crate::api::collaset::{CollaSetCondition, CollaSetStatus};
use crate::api::keys;
use crate::domain::lifecycle::{Phase, Stage, stored_phases};
use crate::domain::messages;
use crate::domain::pod::Pod;

/// A step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedStep {
    /// Pods could not be created.
    ScaleOut,
    /// Pods could not be deleted.
    ScaleIn,
    /// Pods could not be changed.
    Update,
    /// Pods could not enter.
    Include,
    /// Pods could not leave alive.
    Exclude,
    /// PersistentVolumeClaims could not be written.
    Pvcs,
    /// The pool of instance IDs could not be written.
    Pool,
    /// ControllerRevisions could not be written.
    Revisions,
}

impl FailedStep {
    /// The reason of the conditions, and of the Event, that report the failure (contract 2.4).
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            FailedStep::ScaleOut | FailedStep::Pvcs | FailedStep::Pool => "ScaleOutFailed",
            FailedStep::ScaleIn => "ScaleInFailed",
            FailedStep::Update | FailedStep::Revisions => "UpdateFailed",
            FailedStep::Include => "IncludeNotAllowed",
            FailedStep::Exclude => "ExcludeNotAllowed",
        }
    }
}

/// Reports a failed step in the conditions. `former` are the stored conditions: a condition that is already False keeps
/// its time. `left` is what the set lacks: the condition of a failed update adds what is left of the rollout, and
/// `Ready` adds how many Pods are down.
pub fn report_failed_step(
    status: &mut CollaSetStatus,
    former: &[CollaSetCondition],
    (step, message): (FailedStep, &str),
    shortfall: &Shortfall,
    now: Timestamp,
) {
    let reason = step.reason();
    let type_ = match step {
        FailedStep::ScaleOut | FailedStep::Pvcs | FailedStep::Pool | FailedStep::ScaleIn => "Scale",
        FailedStep::Update | FailedStep::Revisions => "Update",
        FailedStep::Include | FailedStep::Exclude => "Ready",
    };
    // The missing Pod may be one that a rollout has deleted or replaces. Then the failure concerns the update, too.
    let of_rollout = reason == "ScaleOutFailed" && is_updating(status);
    name_stall_cause(status, message);
    let is_deleted = status.conditions.iter().any(|c| c.type_ == "Terminating");
    let failed = match of_rollout {
        _ if is_deleted => vec![
            ("Terminating", "ReclaimingTargetsDeletion"),
            ("Ready", "Terminating"),
        ],
        true => vec![
            (type_, reason),
            ("Update", "UpdateFailed"),
            ("Ready", "UpdateFailed"),
        ],
        false if type_ == "Ready" => vec![("Ready", reason)],
        false => vec![(type_, reason), ("Ready", reason)],
    };
    for (type_, reason) in failed {
        let text_if = |applies, text| if applies { text } else { "" };
        let rollout = text_if(reason == "UpdateFailed", &*shortfall.rollout);
        let down = text_if(type_ == "Ready", &*shortfall.down);
        let full_message = match is_deleted {
            true => with_remaining_work(status, message),
            false => format!("{message}{rollout}{down}"),
        };
        set_condition(status, now, type_, false, reason, full_message);
        let former_condition = former.iter().find(|c| c.type_ == type_);
        let since = former_condition.filter(|c| c.status == "False");
        let since = since.and_then(|c| c.last_transition_time.clone());
        let condition = status.conditions.iter_mut().find(|c| c.type_ == type_);
        if let (Some(condition), Some(since)) = (condition, since) {
            condition.last_transition_time = Some(since);
        }
    }
}

/// Joins what a set that is being deleted waits for and what failed.
fn with_remaining_work(status: &CollaSetStatus, message: &str) -> String {
    let mut conditions = status.conditions.iter();
    let terminating = conditions.find(|c| c.type_ == "Terminating");
    match terminating.map_or("", |c| &c.message) {
        "" => message.to_owned(),
        remaining_work if remaining_work.contains(message) => remaining_work.to_owned(),
        remaining_work => format!("{remaining_work}; {message}"),
    }
}

fn is_updating(status: &CollaSetStatus) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|c| c.type_ == "Ready" && c.reason == "Updating")
}

/// Adds the cause to a condition `Stalled` that reports missing progress.
fn name_stall_cause(status: &mut CollaSetStatus, message: &str) {
    let mut conditions = status.conditions.iter_mut();
    if let Some(stalled) =
        conditions.find(|c| c.type_ == "Stalled" && c.reason == progress::DEADLINE_REASON)
        && let Some((deadline_text, _)) = stalled.message.split_once("): ")
    {
        stalled.message = format!("{deadline_text}): {message}");
    }
}

/// Reports an invalid spec. For a set that is being deleted only `Ready` reports it.
pub(super) fn report_invalid_spec(
    status: &mut CollaSetStatus,
    message: &str,
    now: Timestamp,
    goes: bool,
) {
    for (type_, is_so) in [("Scale", false), ("Update", false), ("Stalled", true)] {
        match goes {
            true => status.conditions.retain(|c| c.type_ != type_),
            false => set_condition(status, now, type_, is_so, "Invalid", message.to_owned()),
        }
    }
    set_condition(status, now, "Ready", false, "Invalid", message.to_owned());
}

/// Sets the conditions that follow from the facts. Other conditions stay unchanged.
pub(super) fn update_conditions(facts: &SetFacts, draft: &mut Draft, status: &mut CollaSetStatus) {
    let now = condition_time(facts.observed.now_nanos);
    if facts.observed.set.metadata.deletion_timestamp.is_some() {
        let pod_count = facts.observed.pods.len();
        let orphaning = deletion_waits::describe_orphaning(facts);
        let refused = facts.observed.refused.finalizer.as_ref();
        let remaining_pvcs = deletion_waits::describe_remaining_pvcs(draft);
        let (done, reason) = match (&orphaning, pod_count, refused) {
            (None, 0, None) if remaining_pvcs.is_empty() => (true, "Deleted"),
            _ => (false, "ReclaimingTargetsDeletion"),
        };
        let refused = refused.map(|refusal| {
            format!(
                "; its finalizer can't be removed: {refusal}; let the server update the CollaSet"
            )
        });
        let refused = refused.unwrap_or_default();
        let to_go = || {
            format!(
                "{} left{}{remaining_pvcs}",
                messages::count_pods(pod_count),
                deletion_waits::describe_leaving_pods(facts)
            )
        };
        let message = format!("{}{refused}", orphaning.unwrap_or_else(to_go));
        set_condition(status, now, "Terminating", done, reason, message.clone());
        set_condition(status, now, "Ready", false, "Terminating", message);
        // A set that is being deleted neither scales nor updates, so these conditions have no meaning.
        let is_kept = |type_: &str| !["Scale", "Update", "Stalled"].contains(&type_);
        status.conditions.retain(|c| is_kept(&c.type_));
        return;
    }
    let view = ConditionInputs::from_facts(facts, draft, status);
    draft.shortfall = Shortfall {
        rollout: view.remaining_rollout_suffix(facts, status),
        down: waits::describe_refused_deletion(facts)
            + &view.describe_unavailable(facts)
            + &view.describe_single_pods(),
    };
    let paused = facts.strategy.paused;
    match view.scaling_condition(facts) {
        None => set_condition(status, now, "Scale", true, "Scaled", String::new()),
        Some((reason, message)) => {
            let message = with_remedy(reason, message);
            set_condition(status, now, "Scale", false, reason, message);
        }
    }
    match &view.stuck {
        Some(stuck) => {
            let message = format!("{stuck}{}", draft.shortfall.rollout);
            set_condition(status, now, "Update", false, "UpdateFailed", message);
        }
        None if waits::is_abort_pending(facts, status) => {
            let message = waits::describe_pending_abort(facts);
            set_condition(status, now, "Update", false, "RolloutAborted", message);
        }
        None if facts.rollout.is_aborted() => {
            let waits = paused && view.behind + view.updates > 0;
            let message =
                view.describe_aborted(facts) + if waits { waits::UNPAUSE_REMEDY } else { "" };
            set_condition(status, now, "Update", false, "RolloutAborted", message);
        }
        None if view.is_updating(facts) => {
            let pause = waits::describe_pause(facts, status).filter(|_| !paused);
            let reason = match (paused, &pause) {
                (true, _) => "Paused",
                (false, Some(_)) => "StepPaused",
                (false, None) => "Updating",
            };
            let message =
                pause.unwrap_or_else(|| view.describe_remaining_update(facts)) + &view.left_out;
            let message = with_remedy(reason, message);
            set_condition(status, now, "Update", false, reason, message);
        }
        None => {
            let kept_pods = waits::describe_kept_pods(facts, view.kept);
            set_condition(status, now, "Update", true, "Updated", kept_pods);
        }
    }
    let (ready, reason, message) = view.ready_condition(facts, status);
    set_condition(status, now, "Ready", ready, reason, message.clone());
    let is_overdue = progress::is_deadline_exceeded(facts, draft, status, &view);
    if facts.rollout.is_aborted() && view.behind + view.updates + view.missing == 0 {
        let message = view.describe_aborted(facts);
        set_condition(status, now, "Stalled", true, "RolloutAborted", message);
    } else if is_overdue {
        let seconds = facts.observed.set.spec.progress_deadline_seconds;
        let seconds = seconds.unwrap_or_default();
        let message = format!("no progress for {seconds} s (progressDeadlineSeconds): {message}");
        set_condition(
            status,
            now,
            "Stalled",
            true,
            progress::DEADLINE_REASON,
            message,
        );
    } else {
        status.conditions.retain(|c| c.type_ != "Stalled");
    }
}

/// Adds to the message of a paused set which field lets it go on.
fn with_remedy(reason: &str, message: String) -> String {
    match reason {
        "Paused" => message + waits::UNPAUSE_REMEDY,
        _ => message,
    }
}

/// What a set lacks.
pub(super) struct ConditionInputs {
    pub missing: usize,
    pub surplus: usize,
    /// Pods of another revision than the complete rollout will give them.
    pub behind: usize,
    /// Missing Pods that a rollout in progress will create of the updated revision.
    to_make: usize,
    /// Whether all missing Pods existed before and a rollout in progress creates them again. A rollout at a pause has
    /// deleted none of them.
    is_remaking: bool,
    /// Whether the rollout of the updated revision is not complete.
    is_under_way: bool,
    /// Pods that stay on older revisions, as the spec asks.
    kept: usize,
    /// Pods with an operation of the set, an update or a scale-in.
    updating: usize,
    /// Pods whose operation of the set has ended and that are not back on traffic yet.
    returning: usize,
    /// Pairs of which neither Pod has an operation of the set, because the new Pod is not available yet.
    opening: usize,
    /// Pods whose update is in progress.
    updates: usize,
    /// Replace pairs of which both Pods exist.
    pub pairs: usize,
    /// Requests about single Pods.
    pub requests: MembershipRequests,
    unavailable: Vec<Arc<Pod>>,
    /// Terminating Pods whose persistent names other Pods need.
    awaited: Vec<Arc<Pod>>,
    /// Requests about Pods that can't be fulfilled: reason and message.
    refused: Vec<(&'static str, String)>,
    /// Why Pods of the updated revision do not run, while a rollout or a replacement is in progress.
    stuck: Option<String>,
    /// The Pods that are stuck on older revisions and that the rollout does not reach, each after `; `.
    left_out: String,
    /// What uses up `maxUnavailable` while the update of another Pod waits for a place.
    using_up: update::MaxUnavailableUse,
    /// Pods whose replacements use up `maxSurge` while another Pod waits to be replaced.
    using_surge_up: Vec<Arc<Pod>>,
    /// Says that the pool has no space for the wanted Pods or pairs; empty if it has.
    no_room: String,
}

impl ConditionInputs {
    fn from_facts(facts: &SetFacts, draft: &Draft, status: &CollaSetStatus) -> ConditionInputs {
        let pods: Vec<_> = facts.members.values().collect();
        let wanted = facts.strategy.replicas;
        // A name may be used again. If the origin in the label is another Pod now, this plan removes the label.
        let parts = |p: &Pod| draft.removes_label(p, keys::REPLACE_PAIR_ORIGIN_NAME);
        let halves = pods.iter().filter(|p| facts.is_new_half(p) && !parts(p));
        let pairs = halves.clone().count();
        let instances = pods.len() - pairs;
        // The place of a Pod that has left is free. The place of an origin is taken by its new Pod.
        let has_left = |pod: &&&Arc<Pod>| {
            let id = facts.instance_id_of(pod);
            let is_out = |id| draft.leaving.contains(&id) && !draft.ids.contains_key(&id);
            id.is_some_and(is_out) && pod.label(keys::REPLACE_PAIR_NEW_ID).is_none()
        };
        let old = pods.iter().filter(|p| !facts.is_updated(p));
        // A pair counts as one Pod.
        let names = old.clone().filter(|_| pairs > 0);
        let names: BTreeSet<&str> = names.map(|p| &*p.metadata.name).collect();
        let busy = pods.iter().filter(|_| pairs > 0);
        let busy = busy.filter(|p| is_operating(p) || is_coming_back(p));
        let busy: BTreeSet<&str> = busy.map(|p| &*p.metadata.name).collect();
        let opening = halves.filter(|half| {
            let origin = half.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            let is_of_rollout = origin.is_some_and(|origin| names.contains(origin));
            let both = [Some(&*half.metadata.name), origin];
            is_of_rollout && !both.into_iter().flatten().any(|name| busy.contains(name))
        });
        let opening = opening.count();
        let is_second = |pod: &Pod| {
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            origin.is_some_and(|origin| names.contains(origin)) && !parts(pod)
        };
        let old = old.filter(|pod| !is_second(pod));
        let older = old.clone().count();
        // They are created again under other IDs, and counted as missing.
        let made_anew = old.clone().filter(has_left).count();
        let behind = match facts.rollout.final_scope() {
            UpdateScope::Partition(partition) => {
                let back = update::rolled_back_ids(facts);
                let back = back.filter_map(|id| facts.members.get(&id));
                let back = back.filter(|pod| !is_second(pod)).count();
                old.count().saturating_sub(partition).max(back)
            }
            UpdateScope::ByLabel => old
                .filter(|p| p.label(keys::UPDATE_INCLUDED).is_some())
                .count(),
        };
        let unavailable = pods.iter().filter(|p| !p.is_available());
        let is_member = |id: &&i64| facts.members.contains_key(id);
        let surplus_members = draft.surplus.iter().filter(is_member).count();
        let departed = pods.iter().filter(has_left).count();
        let staying = instances.saturating_sub(departed);
        // Pods whose places are not free yet leave, too.
        let leaving = draft.leaving.iter().filter(is_member).count();
        // One Pod may be missing while another is scaled in.
        let missing = wanted.saturating_sub(staying.saturating_sub(surplus_members));
        let is_under_way = status.current_revision != status.updated_revision;
        let to_make = match facts.rollout.final_scope() {
            _ if !is_under_way => 0,
            UpdateScope::Partition(partition) => (missing + older - made_anew)
                .saturating_sub(partition)
                .saturating_sub(behind),
            UpdateScope::ByLabel => missing.min(count_recorded_as_updated(facts, draft, false)),
        };
        let is_changing =
            behind + pairs > 0 || pods.iter().any(|p| SetOperation::Update.is_in_progress(p));
        let none_goes = facts.misnumbered.is_empty() && facts.unselected.is_empty();
        let is_remaking = missing > 0
            && none_goes
            && is_under_way
            && !facts.strategy.paused
            && !waits::is_at_pause(facts, status)
            && count_recorded_as_updated(facts, draft, true) >= missing;
        ConditionInputs {
            is_remaking,
            is_under_way,
            missing,
            surplus: instances
                .saturating_sub(leaving + wanted)
                .max(surplus_members)
                + facts.misnumbered.len()
                + facts.unselected.len(),
            behind,
            to_make,
            kept: older.saturating_sub(behind),
            updating: usize::try_from(status.operating_replicas).unwrap_or(0),
            returning: pods.iter().filter(|p| is_coming_back(p)).count(),
            opening,
            updates: pods
                .iter()
                .filter(|p| SetOperation::Update.is_in_progress(p))
                .count(),
            pairs,
            requests: MembershipRequests::from_facts(facts, draft),
            unavailable: unavailable.map(|p| Arc::clone(p)).collect(),
            awaited: pods_to_end(facts, draft),
            refused: draft.refused.clone(),
            stuck: describe_stuck_pods(facts, &pods).filter(|_| is_under_way || is_changing),
            left_out: describe_left_out_pods(facts, draft),
            using_up: max_unavailable_use(facts, draft),
            using_surge_up: update::max_surge_use(facts, draft),
            no_room: describe_pool_limits(facts, draft, missing, (behind, pairs)),
        }
    }

    /// Describes what is left of a rollout.
    fn remaining_rollout(&self) -> String {
        let behind = format!("{} to update", messages::count_pods(self.behind));
        match self.to_make {
            0 => behind,
            count => format!("{behind}, {count} to be made"),
        }
    }

    /// Describes in short, after `; `, what is left of a rollout and its position; empty if nothing is left.
    fn remaining_rollout_suffix(&self, facts: &SetFacts, status: &CollaSetStatus) -> String {
        let rollout = status.rollout.as_ref();
        let at = rollout.filter(|r| !r.aborted && facts.rollout.step_at(r).is_some());
        let at = at.map(|r| format!("at step {} of {}", r.step, facts.rollout.len()));
        let is_aborted = rollout.is_some_and(|r| r.aborted);
        let parts = [
            (self.behind + self.to_make > 0).then(|| self.remaining_rollout()),
            at,
            is_aborted.then(|| "aborted".to_owned()),
            facts.strategy.paused.then(|| "paused".to_owned()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => String::new(),
            false => format!("; {}", parts.join(", ")),
        }
    }

    /// Describes in short, after `; `, how many wanted Pods are not available, and why the first one without an
    /// operation of the set is not. Empty if all are available. A pair is available if one of its Pods is.
    fn describe_unavailable(&self, facts: &SetFacts) -> String {
        let serving = facts.members.values().filter(|pod| pod.is_available());
        let names: BTreeSet<&str> = serving.clone().map(|pod| &*pod.metadata.name).collect();
        let is_second = |pod: &&Arc<Pod>| {
            let origin = pod.label(keys::REPLACE_PAIR_ORIGIN_NAME);
            origin.is_some_and(|origin| names.contains(origin))
        };
        let wanted = facts.strategy.replicas;
        let down = wanted.saturating_sub(serving.filter(|pod| !is_second(pod)).count());
        if down == 0 {
            return String::new();
        }
        let is_idle = |pod: &&Arc<Pod>| {
            let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
            let is_free = !operations.any(|operation| operation.is_in_progress(pod));
            is_free && !set_operations::is_leaving(pod) && !facts.is_new_half(pod)
        };
        let first = self.unavailable.iter().filter(is_idle).take(1);
        let first = waits::describe_unavailable(Some(facts.observed), first);
        let first = first.replacen("; ", ": ", 1);
        let verb = if down == 1 { "is" } else { "are" };
        format!(
            "; {down} of {} {verb} not available{first}",
            messages::count_pods(wanted)
        )
    }

    /// Describes the result of an aborted rollout.
    fn describe_aborted(&self, facts: &SetFacts) -> String {
        if self.behind + self.updates > 0 || self.missing == 0 {
            return waits::describe_abort(facts, self.behind, self.updates);
        }
        let revision = &facts.rollout.revision;
        let missing = messages::count_pods_with_verb(self.missing, "is", "are");
        format!("the rollout of revision {revision} was aborted; {missing} to be made")
    }

    /// Whether the rollout still has Pods to update, steps to take, or Pods of the updated revision to wait for.
    fn is_updating(&self, facts: &SetFacts) -> bool {
        let remaining = self.behind + self.to_make + self.updates;
        remaining > 0
            || facts.rollout.has_steps_left()
            || self.updated_pods_down(facts).next().is_some()
    }

    /// Describes what is left of a rollout, and what it waits for.
    fn describe_remaining_update(&self, facts: &SetFacts) -> String {
        let down = self.updated_pods_down(facts).count();
        if self.behind + self.to_make + self.updates > 0 || down == 0 {
            let bound = self.describe_bounds(facts, |_| false);
            let given_up = match self.behind > 0 && self.missing > 0 {
                true => waits::describe_blocked_deletions(facts),
                false => "",
            };
            let ending = match self.missing > 0 {
                true => self.describe_awaited_ends(facts),
                false => String::new(),
            };
            return format!("{}{bound}{ending}{given_up}", self.remaining_rollout());
        }
        let pods = messages::count_pods_with_verb(
            down,
            "of the updated revision is",
            "of the updated revision are",
        );
        let reasons =
            waits::describe_unavailable(Some(facts.observed), self.updated_pods_down(facts));
        format!("{pods} not available{reasons}")
    }

    /// Names the Pods that must end before others can be created, after `; `.
    fn describe_awaited_ends(&self, facts: &SetFacts) -> String {
        if !self.awaited.is_empty() {
            let names: Vec<&str> = self.awaited.iter().map(|pod| &*pod.metadata.name).collect();
            let finalizers =
                deletion_waits::list_blocking_finalizers(self.awaited.iter().map(|pod| &**pod));
            return format!("; waiting for {} to end{finalizers}", names.join(", "));
        }
        let Some((pod, pvc_name)) = facts.awaited_pvc() else {
            return String::new();
        };
        let (name, finalizers) = (
            &pod.metadata.name,
            deletion_waits::list_blocking_finalizers([pod]),
        );
        format!("; waiting for Pod {name}, which still mounts claim {pvc_name}, to end{finalizers}")
    }

    /// Describes the bounds of the set that delay the rollout, each after `; `. Pods for which `named` is true are
    /// described elsewhere.
    fn describe_bounds(&self, facts: &SetFacts, named: impl Fn(&Pod) -> bool) -> String {
        let unavailable = waits::describe_max_unavailable_use(facts, &self.using_up, named);
        let surge = waits::describe_max_surge_use(facts, &self.using_surge_up);
        unavailable + &surge
    }

    /// Pods of the updated revision that are down, while its rollout is not complete. The rollout does not wait for the
    /// new Pod of a replacement that a user has asked for.
    fn updated_pods_down<'a>(&'a self, facts: &'a SetFacts) -> impl Iterator<Item = &'a Arc<Pod>> {
        let down = self.pods_down(facts).filter(|_| self.is_under_way);
        down.filter(|pod| facts.is_updated(pod) && !facts.is_new_half(pod))
    }

    /// Pods that do not serve and that the rollout waits for, although they have no operation of the set.
    fn pods_down<'a>(&'a self, facts: &'a SetFacts) -> impl Iterator<Item = &'a Arc<Pod>> {
        let unavailable = self.unavailable.iter();
        unavailable.filter(|pod| is_down(facts, pod))
    }

    fn ready_condition(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> (bool, &'static str, String) {
        let (ready, reason, message) = self.overall_readiness(facts, status);
        let message = with_remedy(reason, message);
        let more = self.describe_single_pods();
        match self.refused.first() {
            Some((refused, _)) if ready => {
                let more = more.strip_prefix("; ").unwrap_or(&more);
                (false, refused, more.to_owned())
            }
            _ => (ready, reason, message + &more),
        }
    }

    /// Describes the Pods that a rollout does not reach, and the first requests about Pods that can't be fulfilled,
    /// each after `; `.
    fn describe_single_pods(&self) -> String {
        let refused = self.refused.iter().take(waits::MAX_NAMES);
        let refused: String = refused.map(|(_, message)| format!("; {message}")).collect();
        format!("{}{refused}", self.left_out)
    }

    /// Status, reason and message of `Ready`, without requests about single Pods that can't be fulfilled.
    fn overall_readiness(
        &self,
        facts: &SetFacts,
        status: &CollaSetStatus,
    ) -> (bool, &'static str, String) {
        let paused = facts.strategy.paused;
        if let Some((reason, message)) = self.scaling_condition(facts) {
            if self.is_remaking && !self.requests.has_moving_pods() {
                let (remaining, step) = (
                    self.remaining_rollout(),
                    waits::describe_step(facts, status),
                );
                return (false, "Updating", format!("{remaining}{step}; {message}"));
            }
            let rollout = match self.behind {
                _ if reason != "Paused" => String::new(),
                0 => String::new(),
                _ if facts.rollout.is_aborted() => format!("; {}", self.describe_aborted(facts)),
                _ => format!("; {}", self.remaining_rollout()),
            };
            return (false, reason, message + &rollout);
        }
        if let Some(stuck) = &self.stuck {
            let others = waits::describe_under_way(facts, |pod| !is_pod_stuck(facts, pod));
            let later = waits::describe_later_exclusions(facts);
            let rest = self.remaining_rollout_suffix(facts, status);
            let message = format!("{stuck}{others}{later}{rest}");
            return (false, "UpdateFailed", message);
        }
        if self.behind > 0 || self.updating > 0 {
            let behind = self.behind;
            let updating = self.updating + self.returning + self.opening;
            let under_way = waits::describe_under_way(facts, |_| true);
            let step = waits::describe_step(facts, status);
            let down = waits::describe_unavailable(Some(facts.observed), self.pods_down(facts));
            let later = waits::describe_later_exclusions(facts);
            let bound = self.describe_bounds(facts, |pod| is_down(facts, pod));
            let ended = waits::describe_ended_pods(facts); // new Pods of pairs
            let pool_limit = &self.no_room;
            let reason = if paused { "Paused" } else { "Updating" };
            if facts.rollout.is_aborted() {
                let reason = if paused { reason } else { "RolloutAborted" };
                let aborted = self.describe_aborted(facts);
                return (
                    false,
                    reason,
                    format!("{aborted}{under_way}{down}{bound}{later}"),
                );
            }
            let behind = messages::count_pods(behind);
            let message = format!(
                "{behind} to update, {updating} under way{step}{under_way}{down}{ended}{bound}{later}{pool_limit}"
            );
            return (false, reason, message);
        }
        let MembershipRequests {
            leaving,
            postponed,
            unpaired,
            ..
        } = self.requests;
        if self.pairs > 0 || unpaired > 0 {
            let under_way = waits::describe_under_way(facts, |_| true);
            let down = waits::describe_unavailable(Some(facts.observed), self.unavailable.iter());
            let later = waits::describe_later_exclusions(facts);
            let ended = waits::describe_ended_pods(facts);
            let (pairs, pool_limit) = (self.pairs, &self.no_room);
            let more = match unpaired {
                0 => String::new(),
                1 => ", 1 is to be".to_owned(),
                _ => format!(", {unpaired} are to be"),
            };
            let mut origins = facts.members.values();
            let stopped = origins.any(|pod| pairs::is_pair_paused(facts, pod));
            let reason = match paused && (pairs == 0 || stopped) {
                true => "Paused",
                false => "Replacing",
            };
            let pairs = messages::count_pods_with_verb(pairs, "is", "are");
            let message =
                format!("{pairs} being replaced{more}{under_way}{down}{ended}{later}{pool_limit}");
            return (false, reason, message);
        }
        if leaving > 0 || postponed > 0 {
            let under_way = waits::describe_under_way(facts, |_| true);
            let reason = match paused && leaving == 0 {
                true => "Paused",
                false => "Deleting",
            };
            let pods = messages::count_pods_with_verb(leaving + postponed, "is", "are");
            let message = format!("{pods} to be deleted{under_way}");
            return (false, reason, message);
        }
        if facts.rollout.has_steps_left() {
            let step = waits::describe_step(facts, status);
            let reason = if paused { "Paused" } else { "Updating" };
            return (false, reason, format!("all Pods are updated{step}"));
        }
        if waits::is_abort_pending(facts, status) {
            return (
                false,
                "RolloutAborted",
                waits::describe_pending_abort(facts),
            );
        }
        if facts.rollout.is_aborted() && self.unavailable.is_empty() {
            return (false, "RolloutAborted", self.describe_aborted(facts));
        }
        if !self.unavailable.is_empty() {
            let pods = messages::count_pods_with_verb(self.unavailable.len(), "is", "are");
            let reasons =
                waits::describe_unavailable(Some(facts.observed), self.unavailable.iter());
            return (
                false,
                "Unavailable",
                format!("{pods} not available{reasons}"),
            );
        }
        if let Some(message) = waits::describe_resized_pods(facts) {
            return (false, "Updating", message);
        }
        (
            true,
            "AsWanted",
            waits::describe_kept_pods(facts, self.kept),
        )
    }

    /// Reason and message if the number of Pods is not the wanted one, or Pods leave or enter the set; otherwise
    /// `None`.
    fn scaling_condition(&self, facts: &SetFacts) -> Option<(&'static str, String)> {
        let moves = self.requests.has_moving_pods();
        if self.missing == 0 && self.surplus == 0 && !moves {
            return None;
        }
        let reason = match facts.strategy.paused && !moves {
            true => "Paused",
            false => "Scaling",
        };
        let mut message = format!(
            "{} missing, {} to go",
            messages::count_pods(self.missing),
            self.surplus
        );
        message += &self.requests.describe_moving_pods();
        if self.missing > 0 {
            message += &self.describe_awaited_ends(facts);
            message += &waits::describe_ended_pods(facts);
            message += &self.no_room;
        }
        message += &waits::describe_under_way(facts, |_| true);
        message += &waits::describe_later_exclusions(facts);
        Some((reason, message))
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

/// Counts the missing Pods that will be created of the updated revision. With `again`, only those count that existed
/// before and did not end by themselves.
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

/// The first Pods that must end before others with their names can be created. On a lost node such Pods remain until
/// the node is back, its object is deleted, or somebody deletes the Pods by force.
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
    pods.take(waits::MAX_NAMES).map(Arc::clone).collect()
}

/// Describes the first Pods that are stuck on older revisions and that the rollout does not reach. Each follows `; `
/// and says how the Pod can get the updated revision.
fn describe_left_out_pods(facts: &SetFacts, draft: &Draft) -> String {
    let is_half_updated = |pod: &Pod| {
        SetOperation::Update.is_in_progress(pod)
            && stored_phases(pod).get(set_operations::LIFECYCLE_ID) == Some(&Phase::Operate)
            && progress_of(pod) != UpdateProgress::Done
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
    let broken = old.filter(|(_, pod)| container_trouble(pod).is_some() || is_half_updated(pod));
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
    left_out.take(waits::MAX_NAMES).collect()
}

/// Returns what uses up `maxUnavailable`, without Pods that are on their way back to service and that the message
/// already names as down.
fn max_unavailable_use(facts: &SetFacts, draft: &Draft) -> update::MaxUnavailableUse {
    let mut using_up = update::max_unavailable_use(facts, draft);
    let comes_back = |pod: &Pod| {
        let is_on_its_way =
            pod.is_ready() || stored_phases(pod).contains_key(set_operations::LIFECYCLE_ID);
        is_on_its_way && !waits::is_kept_off(pod)
    };
    let is_counted = |pod: &Arc<Pod>| !is_down(facts, pod) || !comes_back(pod);
    using_up.pods.retain(is_counted);
    using_up
}

/// Whether an operation of the set on the Pod has ended and the Pod does not serve yet.
fn is_coming_back(pod: &Pod) -> bool {
    let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
    let is_over = !operations.any(|operation| operation.is_in_progress(pod));
    is_over && !pod.is_available() && stored_phases(pod).contains_key(set_operations::LIFECYCLE_ID)
}

/// Whether a Pod that does not serve has the updated revision or waits in PostCheck for rules, and has no operation of
/// the set.
fn is_down(facts: &SetFacts, pod: &Pod) -> bool {
    let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
    let is_of_rollout =
        facts.is_updated(pod) || set_operations::awaited_rule_stage(pod) == Some(Stage::PostCheck);
    is_of_rollout && !operations.any(|operation| operation.is_in_progress(pod))
}

/// Describes why the first Pods of the updated revision do not run; `None` if there are none.
fn describe_stuck_pods(facts: &SetFacts, pods: &[&Arc<Pod>]) -> Option<String> {
    let stuck = pods.iter().filter(|p| is_pod_stuck(facts, p));
    let descriptions = stuck.filter_map(|p| {
        Some(format!(
            "Pod {}: {}",
            p.metadata.name,
            container_trouble(p)?
        ))
    });
    let descriptions: Vec<String> = descriptions.take(waits::MAX_NAMES).collect();
    (!descriptions.is_empty()).then(|| descriptions.join("; "))
}

fn is_pod_stuck(facts: &SetFacts, pod: &Pod) -> bool {
    facts.is_updated(pod) && container_trouble(pod).is_some()
}

/// Reasons of a waiting container that do not go away by waiting.
const FATAL_WAITING_REASONS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "CreateContainerConfigError",
    "CreateContainerError",
];

/// Describes why a container of a Pod does not run, if that needs a change of the template.
fn container_trouble(pod: &Pod) -> Option<String> {
    let status = &pod.status;
    let all = status
        .container_statuses
        .iter()
        .chain(&status.init_container_statuses);
    all.into_iter().find_map(|container| {
        let waiting = container.waiting.as_deref()?;
        FATAL_WAITING_REASONS
            .contains(&waiting.reason.as_str())
            .then(|| {
                let (name, reason, message) = (&container.name, &waiting.reason, &waiting.message);
                format!("container {name}: {reason}: {message}")
            })
    })
}

/// Returns the time for a condition, in whole seconds. `now_nanos` is in nanoseconds since 1970.
pub fn condition_time(now_nanos: u64) -> Timestamp {
    let seconds = i64::try_from(now_nanos / 1_000_000_000).unwrap_or(0);
    Timestamp::from_second(seconds).unwrap_or_default()
}

/// Sets a condition. Its transition time changes only when its status changes.
fn set_condition(
    status: &mut CollaSetStatus,
    now: Timestamp,
    type_: &str,
    value: bool,
    reason: &str,
    message: String,
) {
    let value = if value { "True" } else { "False" };
    let generation = Some(status.observed_generation).filter(|g| *g > 0);
    let existing = status.conditions.iter_mut().find(|c| c.type_ == type_);
    let since = existing
        .as_ref()
        .filter(|c| c.status == value)
        .and_then(|c| c.last_transition_time.clone());
    let condition = CollaSetCondition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        observed_generation: generation,
        last_transition_time: since.or(Some(Time(now))),
        reason: reason.to_owned(),
        message,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => status.conditions.push(condition),
    }
}
