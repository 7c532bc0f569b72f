//! What a plan asks for, and how it is made: each target by itself, then the job as a whole.

use jiff::Timestamp;

use super::actions::TargetAction;
use super::job_settings;
use super::job_status::{self, JobEvent};
use super::observed::ObservedJob;
use super::places::Places;
use super::selection::selected_targets;
use super::target::{TargetTurn, plan_target};
use super::target_plan::TargetPlan;
use crate::api::keys;
use crate::api::operationjob::OperationJobStatus;

/// All writes that a plan asks for. The finalizer comes before everything else. The other writes do not depend on each
/// other: an action on a Pod is planned only if what it rests on is stored in the status.
#[derive(Clone, Debug, Default)]
pub struct JobPlan {
    /// Add the finalizer.
    pub add_finalizer: bool,
    /// The wanted status; `None` if nothing may be written.
    pub status: Option<OperationJobStatus>,
    /// Events to record when the status is written.
    pub events: Vec<JobEvent>,
    /// Events to record whether or not the status is written: a job that is being deleted may write none.
    pub reports: Vec<JobEvent>,
    /// What to do on the Pods.
    pub actions: Vec<TargetAction>,
    /// Remove the finalizer.
    pub remove_finalizer: bool,
    /// Delete the job: its TTL is over.
    pub delete: bool,
    /// When to look again although nothing changes.
    pub look_at: Option<Timestamp>,
}

/// Plans the next writes for a job.
pub fn plan_job(observed: &ObservedJob) -> JobPlan {
    let job = &observed.job;
    let has_finalizer = has_protected_finalizer(observed);
    if observed.is_deleting() && !has_finalizer {
        return JobPlan::default(); // another finalizer keeps it
    }
    let stored = job_status::stored_details(job);
    let selected = selected_targets(job, &stored);
    let mut plans: Vec<TargetPlan> = Vec::with_capacity(job.spec.targets.len());
    let mut places = Places::of(job, &stored);
    for target in &job.spec.targets {
        let detail = stored.get(&*target.name).copied();
        let turn = TargetTurn {
            is_selected: selected.contains(&*target.name),
            hold: places.hold(),
            note_room: places.note_room(),
        };
        let plan = plan_target(observed, target, detail, turn);
        places.take(detail, &plan.detail);
        plans.push(plan);
    }
    let status = job_status::wanted_status(observed, &plans);
    let events = job_status::transition_events(observed, &plans);
    let is_finished = job_status::is_finished(status.progress.as_ref());
    let needs_finalizer = plans.iter().any(TargetPlan::needs_finalizer);
    let mut plan = JobPlan {
        add_finalizer: needs_finalizer && !has_finalizer && !observed.is_deleting(),
        look_at: plans.iter().filter_map(|plan| plan.look_at).min(),
        reports: job_status::release_reports(&plans),
        ..JobPlan::default()
    };
    // Nothing is done on a Pod before the finalizer is stored.
    let may_act = has_finalizer || !needs_finalizer;
    let actions = plans.into_iter().flat_map(|plan| plan.actions);
    plan.actions = actions
        .filter(|action| may_act || matches!(action, TargetAction::Lookup(_)))
        .collect();
    let is_stored = job
        .status
        .as_ref()
        .is_some_and(|stored| has_result(stored, &status));
    // The status of a job that is being deleted goes with it, so its release does not depend on a write of the status.
    plan.remove_finalizer =
        has_finalizer && !needs_finalizer && (observed.is_deleting() || is_finished && is_stored);
    if !plan.add_finalizer {
        plan.status = Some(status);
        plan.events = events;
    }
    plan_ttl(observed, has_finalizer && !plan.remove_finalizer, &mut plan);
    plan
}

/// Whether the stored status has all that the end of a job rests on. The rest may be missing for ever: the
/// CustomResourceDefinition of another version drops fields that it does not know.
fn has_result(stored: &OperationJobStatus, wanted: &OperationJobStatus) -> bool {
    let result = |status: &OperationJobStatus| (status.progress.clone(), status.end_time.clone());
    result(stored) == result(wanted) && stored.target_details == wanted.target_details
}

/// Deletes a job whose TTL is over, or looks again when it is.
fn plan_ttl(observed: &ObservedJob, is_held: bool, plan: &mut JobPlan) {
    let status = observed.job.status.as_ref();
    let is_finished = job_status::is_finished(status.and_then(|s| s.progress.as_ref()));
    let end_time = status.and_then(|status| status.end_time.as_ref());
    let Some(end_time) = end_time.filter(|_| is_finished && !observed.is_deleting()) else {
        return;
    };
    let due = job_settings::later(end_time, job_settings::ttl(&observed.job.spec));
    if due > observed.now {
        plan.look_at = Some(plan.look_at.map_or(due, |at| at.min(due)));
    } else {
        plan.delete = !is_held && !plan.remove_finalizer;
    }
}

fn has_protected_finalizer(observed: &ObservedJob) -> bool {
    let mut finalizers = observed.job.metadata.finalizers.iter().flatten();
    finalizers.any(|finalizer| finalizer == keys::PROTECTED_FINALIZER)
}
