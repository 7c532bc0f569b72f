//! Plans one target: its start, its deadline, its action, and its release.

use super::actions::TargetAction;
use super::job_settings;
use super::lifecycle_action;
use super::names::{extra_info, reason};
use super::observed::{LiveName, ObservedJob};
use super::places::StartHold;
use super::release;
use super::replace;
use super::restart_action;
use super::target_plan::TargetPlan;
use super::third_party;
use crate::api::operationjob::{Action, Progress, Target, TargetDetail};

/// Seconds after which a waiting target is looked at again, because not every change of what it waits for wakes the job.
const WAIT_SECONDS: i64 = 2;
/// So many targets double this time, because each plan reads all targets.
const TARGETS_PER_WAIT: usize = 250;

/// Whether it is the turn of a target, and what is left for it.
#[derive(Clone, Copy, Debug)]
pub struct TargetTurn<'a> {
    /// Whether the partition selects the target.
    pub is_selected: bool,
    /// Why no other target may start now.
    pub hold: Option<StartHold<'a>>,
    /// Bytes that a new note of its containers may have in the status.
    pub note_room: usize,
}

/// Plans one target. `stored` is its entry in the stored status.
pub fn plan_target(
    observed: &ObservedJob,
    target: &Target,
    stored: Option<&TargetDetail>,
    turn: TargetTurn<'_>,
) -> TargetPlan {
    let mut plan = TargetPlan::of(&observed.job, target, stored);
    plan.is_selected = turn.is_selected;
    plan.note_room = turn.note_room;
    if plan.is_finished() {
        release_finished(observed, &mut plan);
        return plan;
    }
    let has_begun = plan.detail.progress == Some(Progress::Processing);
    if observed.is_deleting() {
        plan.fail(observed, reason::CANCELED, "the job was deleted");
        // The object goes, so the release does not wait until the failure is stored.
        release_finished(observed, &mut plan);
    } else if has_begun {
        continue_target(observed, target, &mut plan);
    } else if turn.is_selected {
        start_target(observed, target, turn.hold, &mut plan);
    }
    plan
}

/// Releases a finished target if that is still to be done. Says why a write of the release is refused.
fn release_finished(observed: &ObservedJob, plan: &mut TargetPlan) {
    if plan.needs_finalizer() {
        release::release_target(observed, plan);
        say_refusal(observed, plan);
    }
}

/// Says that the API server refuses what is to be done for the target, or that it could not be done.
fn say_refusal(observed: &ObservedJob, plan: &mut TargetPlan) {
    let keys = plan.actions.iter().filter_map(TargetAction::refusal_key);
    let mut failed = keys.filter_map(|key| observed.failed_requests.get(&key));
    if let Some(request) = failed.next().cloned() {
        let message = request.message;
        plan.wait(match request.is_refusal {
            true => format!("the API server, which refuses a request: {message}"),
            false => format!("a request to succeed, which has failed: {message}"),
        });
    }
}

/// Starts a target, if its Pod can be operated on. Nothing is done on the Pod until the start is stored.
fn start_target(
    observed: &ObservedJob,
    target: &Target,
    hold: Option<StartHold<'_>>,
    plan: &mut TargetPlan,
) {
    let action = observed.job.spec.action.as_ref();
    let Some(action) = action.filter(|action| action.is_known()) else {
        let action = action.map_or("", |action| &action.0);
        let message = format!(
            "spec.action {action:?} is not known: create a job with Replace, Restart or <domain>/<name>"
        );
        return plan.fail(observed, reason::ACTION_FAILED, message);
    };
    let name = &target.name;
    let Some(pod) = observed.pods.named(name) else {
        return match observed.live_names.get(name) {
            None => {
                plan.actions.push(TargetAction::Lookup(name.clone()));
                plan.look_again_in(observed, 1);
            }
            Some(LiveName::Absent) => {
                let message = "the Pod does not exist";
                plan.fail(observed, reason::POD_NOT_FOUND, message);
            }
            Some(LiveName::Unmanaged) => plan.fail(
                observed,
                reason::NOT_MANAGED,
                "the Pod does not have the label kusionstack.io/control=true, so it has no lifecycle",
            ),
        };
    };
    let obstacle = match &*action.0 {
        Action::REPLACE => replace::start_obstacle(observed, pod),
        Action::RESTART => restart_action::start_obstacle(target, pod),
        _ => lifecycle_action::start_obstacle(pod),
    };
    if let Some((reason, message)) = obstacle {
        return plan.fail(observed, reason, message);
    }
    match hold {
        None => {}
        Some(StartHold::JobOver) => return,
        Some(StartHold::Full(wait)) => return plan.wait(wait),
    }
    if action.0 != Action::REPLACE && lifecycle_action::has_former_run(observed, pod) {
        plan.actions
            .extend(lifecycle_action::undo_former_run(observed, pod));
        return plan.wait("the operation of a former job of this name, to end");
    }
    plan.detail.progress = Some(Progress::Processing);
    let now = job_settings::status_time(observed.now);
    plan.detail.start_time.get_or_insert(now);
    plan.remove_info(extra_info::WAITING);
    plan.set_info(extra_info::POD_UID, &*pod.metadata.uid);
    if action.0 == Action::REPLACE
        && let Some(owner) = pod.controller()
    {
        plan.set_info(extra_info::COLLASET, &*owner.name);
        plan.set_info(extra_info::COLLASET_UID, &*owner.uid);
    }
}

/// Continues a target that has begun.
fn continue_target(observed: &ObservedJob, target: &Target, plan: &mut TargetPlan) {
    let spec = &observed.job.spec;
    let start = plan.detail.start_time.clone();
    let start = start.unwrap_or_else(|| job_settings::status_time(observed.now));
    let deadline = job_settings::later(&start, job_settings::deadline(spec));
    if deadline <= observed.now {
        let waited = plan.info(extra_info::WAITING);
        let waited = waited.map(|waited| format!("; it waited for {waited}"));
        let blocked = plan.info(extra_info::NOT_ALLOWED_TO_REPLACE_NEW_POD);
        let waited = waited.or_else(|| Some(format!("; {}", blocked?)));
        let waited = waited.unwrap_or_default();
        let message = format!("not finished within spec.activeDeadlineSeconds{waited}");
        return plan.fail(observed, reason::DEADLINE_EXCEEDED, message);
    }
    plan.look_again_at(deadline);
    if plan.info(extra_info::POD_UID).is_none() && adopt_target(observed, target, plan) {
        return;
    }
    let former_wait = plan.info(extra_info::WAITING).map(str::to_owned);
    plan.remove_info(extra_info::WAITING);
    match spec.action.as_ref() {
        Some(action) if action.0 == Action::REPLACE => {
            replace::continue_replace(observed, plan);
        }
        Some(action) if action.0 == Action::RESTART => {
            restart_action::continue_restart(observed, target, plan);
        }
        Some(action) => third_party::continue_action(observed, action, plan),
        None => {}
    }
    if plan.info(extra_info::WAITING).is_some() {
        let targets = observed.job.spec.targets.len() / TARGETS_PER_WAIT;
        let factor = i64::try_from(targets).unwrap_or(i64::MAX).saturating_add(1);
        plan.look_again_in(observed, WAIT_SECONDS.saturating_mul(factor));
    }
    // A request that is about to be sent is no reason for a write of the status.
    if !plan.actions.is_empty()
        && plan.detail.progress == Some(Progress::Processing)
        && plan.info(extra_info::WAITING).is_none()
        && let Some(former) = former_wait
    {
        plan.wait(former);
    }
    say_refusal(observed, plan);
}

/// Notes the UID of the Pod of a target that Kuperator has started. Returns whether it must be stored before the target
/// goes on.
fn adopt_target(observed: &ObservedJob, target: &Target, plan: &mut TargetPlan) -> bool {
    let Some(pod) = observed.pods.named(&target.name) else {
        return false;
    };
    plan.set_info(extra_info::POD_UID, &*pod.metadata.uid);
    true
}
