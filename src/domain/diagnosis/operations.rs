//! What each lifecycle ID on the Pod waits for (contract 3.2), by the same conditions as in the state machine.

use std::sync::Arc;

use super::facts::{OperationFacts, OperationWait, RuleFacts, RuleVerdict, WaitKind};
use super::operationjob::stored::job_name;
use super::rules::BudgetTable;
use super::{ObservedPod, PodController, deletion_path, owner, parse_stamp, pod_jobs, rules};
use crate::api::collaset::CollaSet;
use crate::api::keys::{self, Family};
use crate::domain::collaset::revision::progress::{UpdateProgress, update_progress};
use crate::domain::collaset::strategy::ResolvedStrategy;
use crate::domain::collaset::{OperationState, SetOperation};
use crate::domain::lifecycle::operator::DELETION_ID;
use crate::domain::lifecycle::service_obstacles::{self, ServiceObstacle};
use crate::domain::lifecycle::{ExpectedFinalizers, Phase, Stage, stored_phases};
use crate::domain::messages;
use crate::domain::operationjob::lifecycle_action::ID_PREFIX;
use crate::domain::pod::Pod;

/// Lifecycle ID of a CollaSet's operations (contract 3.1).
const COLLASET_ID: &str = "collaset";

const SECOND: u64 = 1_000_000_000;

/// The operations in flight. `rules` are the rules that cover the Pod. `excluded` says why none of them is enforced.
pub fn operation_facts(
    observed: &ObservedPod,
    rules: &[RuleFacts],
    budgets: &BudgetTable,
    excluded: Option<&str>,
) -> Vec<OperationFacts> {
    let phases = stored_phases(&observed.pod);
    let has_several = phases.len() > 1;
    let phases = phases.into_iter().map(|(id, phase)| {
        // An endpoint answers for each operation separately.
        let own_rules =
            has_several.then(|| rules::rule_facts(observed, budgets, excluded, Some(&id)));
        operation_fact(observed, own_rules.as_deref().unwrap_or(rules), id, phase)
    });
    phases.collect()
}

fn operation_fact(
    observed: &ObservedPod,
    rules: &[RuleFacts],
    id: String,
    phase: Phase,
) -> OperationFacts {
    let pod = &*observed.pod;
    let label = |family: Family| pod.label(&family.key(&id));
    let type_ = label(Family::OperationType).or(label(Family::DoneOperationType));
    let type_ = type_.unwrap_or_default().to_owned();
    let since = match phase {
        Phase::Idle => None,
        Phase::PreCheck => label(Family::PreCheck).or(label(Family::Operating)),
        Phase::Preparing => label(Family::Preparing),
        Phase::Operate => label(Family::Operate),
        Phase::PostCheck => label(Family::PostCheck),
        Phase::Completing => label(Family::Completing),
    };
    let deletes = id == DELETION_ID || type_ == "scale-in";
    let deleted = match lasting_deletion_refusal(observed) {
        Some(_) => {
            "the Pod is deleted once the API server allows it".to_owned()
                + &describe_way_back(observed, &id)
        }
        None => "the Pod is deleted".to_owned(),
    };
    let (waits_for, then) = match phase {
        Phase::Idle => (Vec::new(), ""),
        _ if pod.is_terminating() => {
            let text = "the end of the Pod, which is being deleted";
            (
                vec![new_wait(WaitKind::Kubelet, "", text)],
                "the Pod is gone",
            )
        }
        Phase::PreCheck => (
            stage_waits(rules, Stage::PreCheck, &type_, &id),
            "the Pod is taken off traffic (Preparing)",
        ),
        Phase::Preparing => (
            preparing_waits(pod),
            "the operator may work on the Pod (Operate)",
        ),
        Phase::Operate if deletes => (operate_waits(observed, &id, &type_), &*deleted),
        Phase::Operate => (
            operate_waits(observed, &id, &type_),
            "the rules of PostCheck are asked, and traffic comes back",
        ),
        Phase::PostCheck => (
            stage_waits(rules, Stage::PostCheck, &type_, &id),
            "traffic is put back (Completing)",
        ),
        Phase::Completing => (completing_waits(pod, &id), "the Pod is available again"),
    };
    let job = pod_jobs::job_of_operation(observed, &id);
    OperationFacts {
        phase: phase.name(),
        job: job.map(|job| job_name(job).to_owned()),
        since: parse_stamp(since),
        begun: parse_stamp(label(Family::Operating)),
        waits_for,
        then: then.to_owned(),
        id,
        type_,
    }
}

fn lasting_deletion_refusal(observed: &ObservedPod) -> Option<&str> {
    deletion_path::lasting_refusal(observed.context.dry_run_deletion.as_ref())
}

/// The command that brings a Pod back on traffic if it can't be deleted, after `; `. Empty if the set decides about the
/// Pod.
fn describe_way_back(observed: &ObservedPod, id: &str) -> String {
    if id != DELETION_ID {
        return String::new();
    }
    let (key, pod) = (keys::TO_DELETE, &observed.pod.metadata);
    let command = format!("kubectl label pod {} -n {} {key}-", pod.name, pod.namespace);
    let set = observed
        .controller
        .as_ref()
        .and_then(|controller| match controller {
            PodController::CollaSet(set) => Some(set),
            _ => None,
        });
    let names_pod = |set: &&Arc<CollaSet>| {
        let scale = set.spec.scale_strategy.as_ref();
        scale.is_some_and(|scale| scale.pod_to_delete.contains(&pod.name))
    };
    let prerequisite = set.filter(names_pod).map_or_else(String::new, |set| {
        let name = set.metadata.name.as_deref().unwrap_or_default();
        format!(", after its name is removed from podToDelete of CollaSet {name}")
    });
    format!("; this brings it back on traffic instead{prerequisite}: `{command}`")
}

fn new_wait(on: WaitKind, name: impl Into<String>, text: impl Into<String>) -> OperationWait {
    OperationWait {
        on,
        name: name.into(),
        text: text.into(),
    }
}

/// Rows 2 and 8: the rules of the stage, then the wait queue, then the controller that lets the operation pass.
fn stage_waits(rules: &[RuleFacts], stage: Stage, type_: &str, id: &str) -> Vec<OperationWait> {
    if stage == Stage::PreCheck && type_.is_empty() {
        let key = Family::OperationType.key(id);
        let text = format!(
            "the client that began it, to set the label {key} to the type of the operation"
        );
        return vec![new_wait(WaitKind::Operator, key, text)];
    }
    let of_stage = rules.iter().filter(|rule| rule.stage == stage.as_str());
    let mut waits: Vec<OperationWait> = of_stage
        .clone()
        .filter(|rule| matches!(rule.verdict, RuleVerdict::Holds | RuleVerdict::Unknown))
        .map(|rule| {
            let text = format!(
                "{}: {}",
                messages::qualified_rule_name(&rule.object, &rule.rule),
                rule.reason
            );
            new_wait(
                WaitKind::Rule,
                format!("{}/{}", rule.object, rule.rule),
                text,
            )
        })
        .collect();
    if waits.is_empty() && stage == Stage::PreCheck {
        let longest_queue = of_stage
            .filter(|rule| rule.verdict == RuleVerdict::Passes)
            .filter_map(|rule| Some((rule, rule.budget.as_ref()?.before?)))
            .max_by_key(|(_, before)| *before);
        if let Some((rule, before)) = longest_queue.filter(|(_, before)| *before > 0) {
            let head = rule.budget.as_ref().and_then(|b| b.behind.as_deref());
            let head = head.unwrap_or("another Pod");
            let position = match before {
                1 => format!("its place in the queue behind {head}, which waits"),
                before => format!(
                    "its place in the queue behind {head} and {} more, which wait",
                    before - 1
                ),
            };
            let text = format!(
                "{position} longer for {}",
                messages::qualified_rule_name(&rule.object, &rule.rule)
            );
            waits.push(new_wait(
                WaitKind::Turn,
                format!("{}/{}", rule.object, rule.rule),
                text,
            ));
        }
    }
    if waits.is_empty() {
        let text = "the lifecycle controller, to grant it: no rule holds it";
        waits.push(new_wait(WaitKind::Controller, "", text));
    }
    waits
}

/// Rows 4 and 5: the removal of the cooperators' finalizers, the condition False, and the kubelet's reaction.
fn preparing_waits(pod: &Pod) -> Vec<OperationWait> {
    let expected = ExpectedFinalizers::from_pod(pod).unwrap_or_default();
    let finalizers = pod.metadata.finalizers.iter();
    let mut waits: Vec<OperationWait> = finalizers
        .filter(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX))
        .map(|finalizer| {
            let owner = expected.entries().find(|(_, f)| f == finalizer);
            let owner = owner.map_or_else(String::new, |(key, _)| format!(" of {key}"));
            let text = format!("finalizer {finalizer}{owner}, to be removed once traffic is off");
            new_wait(WaitKind::Finalizer, finalizer, text)
        })
        .collect();
    if pod.has_service_ready_gate() {
        if pod.condition(keys::SERVICE_READY) != Some(false) {
            let text = format!(
                "the lifecycle controller, to set the condition {} to False",
                keys::SERVICE_READY
            );
            waits.push(new_wait(WaitKind::Controller, keys::SERVICE_READY, text));
        } else if pod.is_ready() {
            waits.push(new_wait(
                WaitKind::Kubelet,
                "Ready",
                "the kubelet, to report the Pod not Ready",
            ));
        }
    }
    if waits.is_empty() {
        let text = "the lifecycle controller, to make the next step: nothing delays it, unless an Event of the Pod \
            says that the write was refused";
        waits.push(new_wait(WaitKind::Controller, "", text));
    }
    waits
}

/// Row 6: the operator that works on the Pod.
fn operate_waits(observed: &ObservedPod, id: &str, type_: &str) -> Vec<OperationWait> {
    let pod = &*observed.pod;
    let operator_wait = match id {
        DELETION_ID if let Some(reason) = lasting_deletion_refusal(observed) => new_wait(
            WaitKind::User,
            "",
            format!("the API server, which refuses its deletion: {reason}"),
        ),
        DELETION_ID => new_wait(
            WaitKind::Controller,
            "",
            "the deletion controller, to delete the Pod",
        ),
        COLLASET_ID => collaset_wait(observed, type_),
        id => client_wait(observed, id, type_),
    };
    let kubelet = match update_progress(pod) {
        UpdateProgress::Waiting(reason) | UpdateProgress::Refused(reason) => Some(new_wait(
            WaitKind::Kubelet,
            "",
            format!("the kubelet: {reason}"),
        )),
        UpdateProgress::Done => None,
    };
    kubelet.into_iter().chain([operator_wait]).collect()
}

/// The wait for a client that is neither a controller of this server nor a CollaSet: an OperationJob, or another program.
fn client_wait(observed: &ObservedPod, id: &str, type_: &str) -> OperationWait {
    if let Some(job) = pod_jobs::job_of_operation(observed, id) {
        let text = pod_jobs::describe_operation_wait(job, &observed.pod, type_);
        return new_wait(WaitKind::Operator, id, text);
    }
    if observed.jobs.is_some() && id.starts_with(ID_PREFIX) {
        let metadata = &observed.pod.metadata;
        let key = Family::UndoOperationType.key(id);
        let text = format!(
            "its OperationJob, which does not exist any more or can't be read, so nobody ends the operation; this cancels it: `kubectl label pod {} \
             -n {} {key}={type_}`",
            metadata.name, metadata.namespace
        );
        return new_wait(WaitKind::User, id, text);
    }
    let key = Family::Operating.key(id);
    let text = format!("the client that began it, to do its work and then remove the label {key}");
    new_wait(WaitKind::Operator, id, text)
}

/// The wait for the CollaSet: its delay, its pause, or its work.
fn collaset_wait(observed: &ObservedPod, type_: &str) -> OperationWait {
    let Some(PodController::CollaSet(set)) = &observed.controller else {
        let text = "its CollaSet, which does not exist or could not be read";
        return new_wait(WaitKind::Operator, COLLASET_ID, text);
    };
    let name = set.metadata.name.clone().unwrap_or_default();
    let scales_in = type_ == "scale-in";
    let operation = match scales_in {
        true => SetOperation::ScaleIn,
        false => SetOperation::Update,
    };
    let delay = operation.delay_nanos(&ResolvedStrategy::from_spec(&set.spec));
    let now = u64::try_from(observed.now.as_nanosecond()).unwrap_or(0);
    let has_update_begun = observed.pod.annotation(keys::LAST_POD_STATUS).is_some();
    if let OperationState::Delayed(remaining) = operation.operation_state(&observed.pod, delay, now)
        && !has_update_begun
    {
        let seconds = i64::try_from(remaining.div_ceil(SECOND)).unwrap_or(i64::MAX);
        let (delay, remaining) = (delay / SECOND, messages::format_age(seconds));
        let text =
            format!("CollaSet {name}: its operationDelaySeconds are {delay}, {remaining} are left");
        return new_wait(WaitKind::Delay, name, text);
    }
    if set.spec.paused {
        let text = format!("CollaSet {name}, which is paused: set spec.paused to false");
        return new_wait(WaitKind::User, name, text);
    }
    let present_revision = observed.pod.label(keys::REVISION).unwrap_or_default();
    let text = match (scales_in, has_update_begun) {
        (true, _) => format!("CollaSet {name}, to scale the Pod in"),
        (false, true) => {
            format!("CollaSet {name}, to finish the update to revision {present_revision}")
        }
        (false, false) => match owner::updated_revision(set) {
            Some(updated_revision) => format!(
                "CollaSet {name}, to update the Pod from revision {present_revision} to {updated_revision}"
            ),
            None => format!("CollaSet {name}, to update the Pod from revision {present_revision}"),
        },
    };
    new_wait(WaitKind::Operator, name, text)
}

/// Rows 10 to 12: the condition True, the kubelet's reaction, and the cooperators' finalizers.
fn completing_waits(pod: &Pod, id: &str) -> Vec<OperationWait> {
    let obstacles = service_obstacles::service_obstacles(pod, &[id]);
    let mut waits: Vec<OperationWait> = obstacles.into_iter().map(wait_from_obstacle).collect();
    if waits.is_empty() {
        let text = "the lifecycle controller, to make the last step: nothing delays it, unless an Event of the Pod \
            says that the write was refused";
        waits.push(new_wait(WaitKind::Controller, "", text));
    }
    waits
}

fn wait_from_obstacle(obstacle: ServiceObstacle) -> OperationWait {
    let text = obstacle.to_string();
    match obstacle {
        ServiceObstacle::Operation(id, _) => new_wait(WaitKind::Operation, id, text),
        ServiceObstacle::StayOffline => new_wait(WaitKind::User, keys::STAY_OFFLINE, text),
        ServiceObstacle::Restart(_) => new_wait(WaitKind::Kubelet, keys::AWAITS_RESTART, text),
        ServiceObstacle::Unnoticed | ServiceObstacle::NotReady(_) => {
            new_wait(WaitKind::Kubelet, "Ready", text)
        }
        ServiceObstacle::Gate => new_wait(WaitKind::Controller, keys::SERVICE_READY, text),
        ServiceObstacle::Finalizer(_, finalizer) => new_wait(WaitKind::Finalizer, finalizer, text),
        ServiceObstacle::Unreadable(_) => {
            new_wait(WaitKind::User, keys::AVAILABLE_CONDITIONS, text)
        }
    }
}
