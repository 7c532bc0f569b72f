//! Describes for the conditions what Pods wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::headroom::Headroom;
use super::super::observed::ObservedSet;
use super::super::revision::progress::{UpdateProgress, resize_progress, update_progress};
use super::super::rollout;
use super::super::set_facts::{SetFacts, Target};
use super::super::set_operations::{self, OperationState, SetOperation};
use super::super::strategy::UpdateScope;
use super::super::update::{MaxUnavailableUse, is_updated_by_deletion};
use super::condition_time::condition_time;
use super::{MAX_NAMES, finalizer_waits};
use crate::api::collaset::CollaSetStatus;
use crate::api::int_or_percent::IntOrPercent;
use crate::api::keys::{self, Family};
use crate::domain::grace_delete;
use crate::domain::lifecycle::service_obstacles::{self, ServiceObstacle};
use crate::domain::lifecycle::{Phase, Stage, min_ready, stored_phase};
use crate::domain::messages;
use crate::domain::not_ready::NotReadyCause;
use crate::domain::pod::Pod;

const SECOND: u64 = 1_000_000_000;

/// Says how a user resumes a paused set, after `; `.
pub const UNPAUSE_REMEDY: &str = "; set spec.paused to false to go on";

/// The rules for which Pods wait, by the UIDs of the Pods, see [`super::super::observed::ObservedSet::held`].
pub type HeldPods = BTreeMap<String, Vec<String>>;

/// Describes what a Pod waits for; `None` if that is unknown.
type DescribeWait = fn(&SetFacts, &Pod) -> Option<String>;

/// Describes what the first Pods with an operation in progress wait for, each after `; `. Only Pods for which
/// `is_chosen` is true count. Empty if no such wait is known.
pub fn describe_under_way(facts: &SetFacts, is_chosen: impl Fn(&Pod) -> bool) -> String {
    let leaving = facts.misnumbered.iter().chain(&facts.unselected);
    let members = facts.members.values().chain(leaving);
    let members = members.map(|pod| (pod, describe_operation as DescribeWait));
    let ended = facts.finished.iter().filter(|pod| facts.leaves_alive(pod));
    let ended = ended.map(|pod| (pod, describe_deletion as DescribeWait));
    let chosen = members.chain(ended).filter(|(pod, _)| is_chosen(pod));
    let waiting = chosen.filter_map(|(pod, describe)| {
        let wait = describe(facts, pod)?;
        Some(format!("; Pod {} {wait}", pod.metadata.name))
    });
    waiting.take(MAX_NAMES).collect()
}

/// Describes why `count` Pods stay on older revisions, as the spec asks.
pub fn describe_kept_pods(facts: &SetFacts, count: usize) -> String {
    let reason = match (facts.rollout.final_scope(), count) {
        (_, 0) => return String::new(),
        (UpdateScope::ByLabel, 1) => format!("it carries no label {}", keys::UPDATE_INCLUDED),
        (UpdateScope::ByLabel, _) => format!("they carry no label {}", keys::UPDATE_INCLUDED),
        (UpdateScope::Partition(_), 1) => "the partition keeps it".to_owned(),
        (UpdateScope::Partition(_), _) => "the partition keeps them".to_owned(),
    };
    let pods = messages::count_pods_with_verb(count, "stays", "stay");
    let raised = describe_raised_partition(facts, count);
    format!("{pods} on older revisions: {reason}{raised}")
}

/// Says, after `; `, that a partition can't take updated Pods back, and how a user can take them back. Empty if the
/// partition keeps as many Pods as it says.
fn describe_raised_partition(facts: &SetFacts, count: usize) -> String {
    let UpdateScope::Partition(partition) = facts.rollout.final_scope() else {
        return String::new();
    };
    if !facts.rollout.is_on || count >= partition.min(facts.strategy.replicas) {
        return String::new();
    }
    let remedy = match facts.history.current.name == facts.rollout.revision {
        true => "apply the former template".to_owned(),
        false => format!("set the annotation {}={}", keys::ROLLOUT, rollout::ABORT),
    };
    format!(
        "; {}: {remedy} to roll all of them back",
        messages::partition_keeps_updated(partition)
    )
}

/// Whether the status records an abort that the facts do not contain yet.
pub fn is_abort_pending(facts: &SetFacts, status: &CollaSetStatus) -> bool {
    let is_recorded = status.rollout.as_ref().is_some_and(|r| r.aborted);
    is_recorded && !facts.rollout.is_aborted()
}

/// Describes the effect of an abort that this plan has just recorded.
pub fn describe_pending_abort(facts: &SetFacts) -> String {
    let (revision, current) = (&facts.rollout.revision, &facts.history.current.name);
    format!("the rollout of revision {revision} is aborted; Pods go back to revision {current}")
}

/// Says that the new Pod of a pair, if a user wants to exclude it, leaves once it has taken the place of its origin;
/// `None` for every other Pod.
pub fn describe_later_exclusion(facts: &SetFacts, pod: &Pod) -> Option<String> {
    let waits = facts.is_new_half(pod) && facts.leaves_alive(pod);
    let origin = pod
        .label(keys::REPLACE_PAIR_ORIGIN_NAME)
        .filter(|_| waits)?;
    let name = &pod.metadata.name;
    Some(format!(
        "Pod {name} is excluded once it has taken the place of Pod {origin}"
    ))
}

/// Describes the first of these exclusions, each after `; `.
pub fn describe_later_exclusions(facts: &SetFacts) -> String {
    let members = facts.members.values();
    let descriptions =
        members.filter_map(|pod| Some(format!("; {}", describe_later_exclusion(facts, pod)?)));
    descriptions.take(MAX_NAMES).collect()
}

/// Says, after `; `, that the pool has no space for more instance IDs; empty if it has.
pub fn describe_full_pool(facts: &SetFacts, draft: &Draft) -> String {
    if !Headroom::beside_draft(facts, draft).is_full() {
        return String::new();
    }
    let (pool, own) = (facts.pool, draft.ids.len());
    let others = match facts.foreign.len() {
        0 => String::new(),
        count => format!(" and {count} of others"),
    };
    format!(
        "; ResourceContext {pool} is full with {own} instance IDs of this CollaSet{others}: no larger object can be stored"
    )
}

/// Says, after `; `, that the pool has no space for more than the `open` pairs; empty if it has.
pub fn describe_pair_limit(facts: &SetFacts, draft: &Draft, open: usize) -> String {
    if Headroom::beside_draft(facts, draft).pairs_that_fit() > 0 {
        return String::new();
    }
    let reason = format!(
        "ResourceContext {} has no room for more instance IDs",
        facts.pool
    );
    match open {
        0 => format!("; no Pod can be replaced: {reason}; scale in, or change podUpgradePolicy"),
        _ => format!("; further Pods are replaced when these are: {reason}"),
    }
}

/// Describes the result of an aborted rollout, and the remedy unless the set is paused and has work left. `behind` Pods
/// have another revision. `updates` Pods have been changed and their update is not over.
pub fn describe_abort(facts: &SetFacts, behind: usize, updates: usize) -> String {
    let (revision, current) = (&facts.rollout.revision, &facts.history.current.name);
    let remaining = match (behind, updates) {
        _ if facts.rollout.is_frozen() => {
            "the revision to go back to is gone, so no Pod is updated; apply the former template"
                .to_owned()
        }
        (0, 0) => format!("all Pods are of revision {current}"),
        (0, _) => {
            let pods = messages::count_pods_with_verb(updates, "is on its", "are on their");
            format!("{pods} way back to revision {current}")
        }
        _ => {
            let pods = messages::count_pods_with_verb(behind, "is", "are");
            format!("{pods} to go back to revision {current}")
        }
    };
    let remedy = match facts.strategy.paused && behind + updates > 0 {
        true => String::new(), // the caller adds the remedy for a paused set
        false => format!(
            "; change spec.template, or set the annotation {}={}",
            keys::ROLLOUT,
            rollout::RETRY
        ),
    };
    format!("the rollout of revision {revision} was aborted; {remaining}{remedy}")
}

/// Whether a rollout is at a pause.
pub fn is_at_pause(facts: &SetFacts, status: &CollaSetStatus) -> bool {
    let rollout = status.rollout.as_ref().filter(|r| !r.aborted);
    rollout.is_some_and(|rollout| rollout::pause_wait(facts, rollout).is_some())
}

/// Describes the pause of a rollout, and how it ends; `None` if the rollout is not at a pause.
pub fn describe_pause(facts: &SetFacts, status: &CollaSetStatus) -> Option<String> {
    let rollout = status.rollout.as_ref().filter(|r| !r.aborted)?;
    let (step, steps) = (rollout.step, facts.rollout.len());
    let key = keys::ROLLOUT;
    Some(match rollout::pause_wait(facts, rollout)? {
        rollout::PauseWait::Until(until) => {
            let until = condition_time(until);
            format!("step {step} of {steps} pauses until {until}")
        }
        rollout::PauseWait::Pods => {
            let pods = rollout::awaited_pods(facts).map(|pod| &*pod.metadata.name);
            let pods: Vec<&str> = pods.collect();
            let waits = match pods.len() {
                0 => "more Pods to be made or updated".to_owned(),
                1 => format!("Pod {} to be available", pods[0]),
                _ => format!(
                    "Pods {} to be available",
                    messages::list_names(&pods, MAX_NAMES)
                ),
            };
            format!("step {step} of {steps} waits for {waits}")
        }
        rollout::PauseWait::Promotion => {
            let promote = rollout::PROMOTE;
            format!("step {step} of {steps} pauses until the annotation {key}={promote} is set")
        }
    })
}

/// Describes the current step of a rollout, after `; `; empty if it has none.
pub fn describe_step(facts: &SetFacts, status: &CollaSetStatus) -> String {
    if let Some(pause) = describe_pause(facts, status) {
        return format!("; {pause}");
    }
    let steps = facts.rollout.len();
    let rollout = status.rollout.as_ref().filter(|r| !r.aborted);
    match rollout.filter(|rollout| facts.rollout.step_at(rollout).is_some()) {
        Some(rollout) => format!("; step {} of {steps}", rollout.step),
        None => String::new(),
    }
}

/// Describes why the first of these Pods are not available, each after `; `. `observed` adds rules and refusals.
pub fn describe_unavailable<'a>(
    observed: Option<&ObservedSet>,
    pods: impl Iterator<Item = &'a Arc<Pod>>,
) -> String {
    let descriptions = pods.map(|pod| {
        format!(
            "; Pod {} {}",
            pod.metadata.name,
            describe_pod(observed, pod)
        )
    });
    descriptions.take(MAX_NAMES).collect()
}

/// Says, after `; `, that `maxUnavailable` is used up, by how many missing Pods and by which existing Pods. The
/// text leaves out the Pods that are `named` elsewhere. Empty if only operations of the set use `maxUnavailable` up,
/// because the message then describes why those operations wait.
pub fn describe_max_unavailable_use(
    facts: &SetFacts,
    by: &MaxUnavailableUse,
    named: impl Fn(&Pod) -> bool,
) -> String {
    let is_idle = |pod: &&Arc<Pod>| {
        let mut operations = [SetOperation::Update, SetOperation::ScaleIn].iter();
        let goes = set_operations::is_leaving(pod) && facts.deletion_refusal(pod).is_none();
        !operations.any(|operation| operation.is_in_progress(pod)) && !goes
    };
    let idle: Vec<_> = by.pods.iter().filter(is_idle).collect();
    let update = facts.observed.set.spec.update_strategy.as_ref();
    let bound = update.and_then(|update| update.max_unavailable.as_ref());
    let bound = bound.and_then(|bound| IntOrPercent::parse(bound).ok());
    let Some(bound) = bound.filter(|_| !idle.is_empty() || by.missing > 0) else {
        return String::new();
    };
    let others = idle.into_iter().filter(|pod| !named(pod));
    let unavailable = describe_unavailable(Some(facts.observed), others);
    let missing = messages::count_pods_with_verb(by.missing, "is missing", "are missing");
    let missing = (by.missing > 0).then_some(missing);
    let unavailable = unavailable.strip_prefix("; ").map(str::to_owned);
    let parts: Vec<String> = missing.into_iter().chain(unavailable).collect();
    let parts = match parts.is_empty() {
        true => String::new(),
        false => format!(": {}", parts.join("; ")),
    };
    format!("; updateStrategy.maxUnavailable ({bound}) is used up{parts}")
}

/// Says, after `; `, that a rollout deletes no Pod while the API server refuses to create other Pods; empty if the API
/// server refuses none.
pub fn describe_blocked_deletions(facts: &SetFacts) -> &'static str {
    let mut targets = facts.targets.get().into_iter().flatten();
    let is_refused = !facts.observed.refused.creations.is_empty();
    let is_deleted = |(id, target): (&i64, &Target)| {
        let pod = facts.members.get(id);
        pod.is_some_and(|pod| is_updated_by_deletion(facts, *id, pod, target))
    };
    match is_refused && targets.any(is_deleted) {
        true => {
            "; the update deletes no Pod while others can't be created: remove the cause of the refusal, or lower spec.replicas"
        }
        false => "",
    }
}

/// Says, after `; `, that `maxSurge` is used up, and by the replacements of which Pods; empty if `by` is.
pub fn describe_max_surge_use(facts: &SetFacts, by: &[Arc<Pod>]) -> String {
    let update = facts.observed.set.spec.update_strategy.as_ref();
    let bound = update.and_then(|update| update.max_surge.as_ref());
    let bound = bound.and_then(|bound| IntOrPercent::parse(bound).ok());
    let names: Vec<&str> = by.iter().map(|pod| &*pod.metadata.name).collect();
    let by = match names.len() {
        0 => return String::new(),
        1 => format!("replacement of Pod {}", names[0]),
        _ => format!(
            "replacements of Pods {}",
            messages::list_names(&names, MAX_NAMES)
        ),
    };
    bound.map_or_else(String::new, |bound| {
        format!("; updateStrategy.maxSurge ({bound}) is used up by the {by}")
    })
}

/// Says when the first finished Pods are created again, each after `; `.
pub fn describe_ended_pods(facts: &SetFacts) -> String {
    let descriptions = facts.recreated_later.values().filter_map(|pod| {
        let at = condition_time(facts.recreation_due_at(pod)?);
        let (name, phase) = (&pod.metadata.name, &pod.status.phase);
        Some(format!("; Pod {name} is {phase} and is recreated at {at}"))
    });
    descriptions.take(MAX_NAMES).collect()
}

fn describe_operation(facts: &SetFacts, pod: &Pod) -> Option<String> {
    let is_idle =
        !SetOperation::Update.is_in_progress(pod) && !SetOperation::ScaleIn.is_in_progress(pod);
    let goes = set_operations::is_leaving(pod)
        && stored_phase(pod, grace_delete::DELETION_ID) == Phase::Operate;
    if is_idle || goes {
        return describe_deletion(facts, pod);
    }
    match stored_phase(pod, set_operations::LIFECYCLE_ID) {
        Phase::Idle => None,
        Phase::PreCheck => Some(describe_rule_wait(facts, pod)),
        Phase::Preparing => Some(describe_traffic_wait(facts, pod)),
        Phase::Operate => match update_progress(pod) {
            UpdateProgress::Waiting(reason) | UpdateProgress::Refused(reason) => {
                Some(format!("waits for its kubelet: {reason}"))
            }
            UpdateProgress::Done => Some(match describe_resize(facts, pod) {
                Some(reason) => format!("waits for its kubelet: {reason}"),
                None => describe_offline_wait(facts, pod),
            }),
        },
        _ => Some(format!(
            "comes back on traffic: {}",
            describe_pod(Some(facts.observed), pod)
        )),
    }
}

/// Describes why a Pod waits that is off traffic and whose operation has not been carried out yet.
fn describe_offline_wait(facts: &SetFacts, pod: &Pod) -> String {
    let operation = match SetOperation::Update.is_in_progress(pod) {
        true => SetOperation::Update,
        false => SetOperation::ScaleIn,
    };
    let delay = operation.delay_nanos(&facts.strategy);
    let since = pod.label(&Family::Operate.key(set_operations::LIFECYCLE_ID));
    let since = since.and_then(|since| since.parse::<u64>().ok());
    match (
        operation.operation_state(pod, delay, facts.observed.now_nanos),
        since,
    ) {
        (OperationState::Delayed(_), Some(since)) => format!(
            "is off traffic until its operationDelaySeconds ({}) are over at {}",
            delay / SECOND,
            condition_time(since.saturating_add(delay))
        ),
        _ => match facts.observed.refused.held.get(&pod.metadata.uid) {
            Some(reason) => format!("is off traffic, and its next write is delayed: {reason}"),
            None => "is off traffic and waits for its turn".to_owned(),
        },
    }
}

/// Describes what the kubelet has yet to do for a resize, if the Pod does not have the revision that the resize is for.
fn describe_resize(facts: &SetFacts, pod: &Pod) -> Option<String> {
    match resize_progress(pod) {
        UpdateProgress::Waiting(reason) if facts.is_resized(pod) => Some(reason),
        _ => None,
    }
}

/// Describes the Pods that stay on their revisions but have resources of other revisions; `None` if there are none.
pub fn describe_resized_pods(facts: &SetFacts) -> Option<String> {
    let members = facts.members.values();
    let resized = members.filter(|pod| facts.is_resized(pod));
    let descriptions = resized.map(|pod| {
        let revisions = facts.resized_to(pod).iter().map(|r| &*r.template.name);
        let revisions: Vec<_> = revisions.collect();
        format!(
            "Pod {} is kept on revision {} and has resources of {}, because its update did not finish; update it, or \
             delete it to have it recreated",
            pod.metadata.name,
            pod.label(keys::REVISION).unwrap_or_default(),
            messages::list_names(&revisions, MAX_NAMES),
        )
    });
    let descriptions: Vec<_> = descriptions.take(MAX_NAMES).collect();
    (!descriptions.is_empty()).then(|| descriptions.join("; "))
}

/// Describes the first Pod that is off traffic and whose deletion is refused, after `; `; empty if there is none.
pub fn describe_refused_deletion(facts: &SetFacts) -> String {
    let refused = |pod: &&Arc<Pod>| facts.deletion_refusal(pod).is_some();
    let mut pods = facts.observed.pods.iter().filter(refused);
    let first = pods.find_map(|pod| Some((&pod.metadata.name, describe_deletion(facts, pod)?)));
    first.map_or_else(String::new, |(name, wait)| format!("; Pod {name} {wait}"))
}

/// Describes why a Pod waits whose deletion is requested.
fn describe_deletion(facts: &SetFacts, pod: &Pod) -> Option<String> {
    if !set_operations::is_leaving(pod) {
        return None;
    }
    let waits = match stored_phase(pod, grace_delete::DELETION_ID) {
        Phase::Idle => describe_blocked_lifecycle(facts.observed, pod),
        Phase::PreCheck => format!(" and {}", describe_rule_wait(facts, pod)),
        Phase::Preparing => format!(" and {}", describe_traffic_wait(facts, pod)),
        _ => match facts.deletion_refusal(pod) {
            Some(reason) => format!(", and off traffic; its deletion is refused: {reason}"),
            None => ", and off traffic".to_owned(),
        },
    };
    Some(format!("will be deleted{waits}"))
}

/// Describes what a Pod waits for before it may go off traffic.
pub fn describe_rule_wait(facts: &SetFacts, pod: &Pod) -> String {
    let rules = holding_rules(&facts.observed.held, pod);
    let unstepped = describe_blocked_lifecycle(facts.observed, pod);
    rules.unwrap_or_else(|| "waits to be let off traffic".to_owned()) + &unstepped
}

/// Names the rules for which a Pod waits; `None` if none is known.
fn holding_rules(held_pods: &HeldPods, pod: &Pod) -> Option<String> {
    let rules = held_pods.get(&pod.metadata.uid)?.join(", and for ");
    (!rules.is_empty()).then(|| format!("waits for {rules}"))
}

pub fn describe_traffic_wait(facts: &SetFacts, pod: &Pod) -> String {
    match finalizer_waits::blocking_finalizers(pod).next() {
        Some(_) => {
            finalizer_waits::describe_finalizer_wait(pod)
                + &describe_blocked_lifecycle(facts.observed, pod)
        }
        None => format!(
            "waits to be off traffic{}",
            describe_blocked_lifecycle(facts.observed, pod)
        ),
    }
}

/// Says, after `: `, that the lifecycle of a Pod can't make its next step; empty if it can.
fn describe_blocked_lifecycle(observed: &ObservedSet, pod: &Pod) -> String {
    let reason = observed.refused.unstepped.get(&pod.metadata.uid);
    reason.map_or_else(String::new, |reason| {
        format!(": the next step of its lifecycle can't be written: {reason}")
    })
}

/// Whether the obstacle is a request that the Pod be off traffic.
fn is_offline_wanted(obstacle: &ServiceObstacle) -> bool {
    matches!(
        obstacle,
        ServiceObstacle::Operation(..) | ServiceObstacle::StayOffline
    )
}

/// Whether somebody other than the set keeps a Pod off traffic.
pub fn is_kept_off(pod: &Pod) -> bool {
    let obstacles = service_obstacles::service_obstacles(
        pod,
        &[set_operations::LIFECYCLE_ID, grace_delete::DELETION_ID],
    );
    obstacles.iter().any(is_offline_wanted)
}

/// Describes why a Pod does not serve.
fn describe_pod(observed: Option<&ObservedSet>, pod: &Pod) -> String {
    let reason = describe_pod_itself(observed, pod);
    let unstepped = observed.map(|observed| describe_blocked_lifecycle(observed, pod));
    format!("{reason}{}", unstepped.unwrap_or_default())
}

fn describe_pod_itself(observed: Option<&ObservedSet>, pod: &Pod) -> String {
    if set_operations::awaited_rule_stage(pod) == Some(Stage::PostCheck) {
        let rules = observed.and_then(|observed| holding_rules(&observed.held, pod));
        return rules.unwrap_or_else(|| "waits to be let back on traffic".to_owned());
    }
    let obstacles = service_obstacles::service_obstacles(
        pod,
        &[set_operations::LIFECYCLE_ID, grace_delete::DELETION_ID],
    );
    if let Some(wanted) = obstacles
        .iter()
        .find(|obstacle| is_offline_wanted(obstacle))
    {
        return format!("waits for {wanted}");
    }
    match NotReadyCause::of_pod(pod) {
        Some(NotReadyCause::NoNode(c)) if c.reason.is_empty() => "has no node".to_owned(),
        Some(NotReadyCause::NoNode(c)) => match &c.message {
            Some(sentence) => {
                let pvc_names = messages::append_pvc_names(sentence, &pod.spec.pvcs);
                format!("has no node: {}: {sentence}{pvc_names}", c.reason)
            }
            None => format!("has no node: {}", c.reason),
        },
        Some(cause) if !is_waiting_for_restart(&obstacles) => {
            format!("is not Ready: {}", cause.describe(pod, None))
        }
        _ => describe_readiness(&obstacles, pod),
    }
}

fn is_waiting_for_restart(obstacles: &[ServiceObstacle]) -> bool {
    let mut obstacles = obstacles.iter();
    obstacles.any(|obstacle| matches!(obstacle, ServiceObstacle::Restart(_)))
}

/// Describes why a Pod does not serve although its containers run.
fn describe_readiness(obstacles: &[ServiceObstacle], pod: &Pod) -> String {
    let is_ready = pod.is_ready();
    let awaited = obstacles.iter().filter(|obstacle| match obstacle {
        ServiceObstacle::Restart(_) => true,
        ServiceObstacle::Finalizer(..) | ServiceObstacle::Unreadable(_) => is_ready,
        _ => false,
    });
    let awaited: Vec<String> = awaited
        .take(MAX_NAMES)
        .map(ServiceObstacle::to_string)
        .collect();
    if !awaited.is_empty() {
        return format!("waits for {}", awaited.join(", and for "));
    }
    let seconds = min_ready::min_ready_seconds(pod).filter(|seconds| *seconds > 0);
    match (is_ready, seconds) {
        (true, Some(n)) => format!("is Ready, but not for {n} s yet (minReadySeconds)"),
        (true, None) => "is Ready and not back in service yet".to_owned(),
        (false, _) => "is not Ready".to_owned(),
    }
}
