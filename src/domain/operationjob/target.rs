//! Plans one target: its start, its deadline, its action, and its release.

use std::sync::Arc;

use jiff::Timestamp;

use super::job_settings;
use super::lifecycle_action;
use super::names::{extra_info, reason};
use super::observed::{LiveName, ObservedJob};
use super::plan::{TargetAction, is_finished_progress};
use super::release;
use super::replace;
use super::restart_action;
use super::third_party;
use crate::api::operationjob::{Action, Progress, Target, TargetDetail, TargetError};
use crate::domain::pod::Pod;

/// The plan of one target.
#[derive(Clone, Debug, Default)]
pub struct TargetPlan {
    /// The wanted entry of `status.targetDetails`.
    pub detail: TargetDetail,
    /// What to do on the Pod.
    pub actions: Vec<TargetAction>,
    /// When to look again although nothing changes.
    pub look_at: Option<Timestamp>,
}

impl TargetPlan {
    /// Keeps the stored entry.
    fn of(target: &Target, stored: Option<&TargetDetail>) -> TargetPlan {
        let mut detail = stored.cloned().unwrap_or_default();
        detail.name.clone_from(&target.name);
        let is_known = matches!(
            detail.progress,
            Some(Progress::Processing | Progress::Succeeded | Progress::Failed)
        );
        if !is_known {
            detail.progress = Some(Progress::Pending);
        }
        TargetPlan {
            detail,
            ..TargetPlan::default()
        }
    }

    /// Whether the finalizer must stay on the job, or must be added before anything is done for this target.
    pub fn needs_finalizer(&self) -> bool {
        match &self.detail.progress {
            Some(Progress::Processing) => true,
            Some(Progress::Failed) => !self.is_released(),
            _ => false,
        }
    }

    /// Whether nothing that the job asked of the Pod is left.
    pub fn is_released(&self) -> bool {
        self.info(extra_info::RELEASED) == Some("true")
    }

    /// A value of `extraInfo`.
    pub fn info(&self, key: &str) -> Option<&str> {
        self.detail.extra_info.get(key).map(String::as_str)
    }

    /// Sets a value of `extraInfo`.
    pub fn set_info(&mut self, key: &str, value: impl Into<String>) {
        let info = &mut self.detail.extra_info;
        info.insert(key.to_owned(), value.into());
    }

    /// Removes a value of `extraInfo`.
    pub fn remove_info(&mut self, key: &str) {
        self.detail.extra_info.remove(key);
    }

    /// Says why nothing happens at the moment. The text must not change while the reason stays, because each change is
    /// a write of the status.
    pub fn wait(&mut self, why: impl Into<String>) {
        self.set_info(extra_info::WAITING, why);
    }

    /// Looks again at this time or earlier.
    pub fn look_again_at(&mut self, at: Timestamp) {
        self.look_at = Some(self.look_at.map_or(at, |present| present.min(at)));
    }

    /// Looks again after so many seconds.
    pub fn look_again_in(&mut self, observed: &ObservedJob, seconds: i64) {
        let pause = jiff::SignedDuration::from_secs(seconds);
        self.look_again_at(observed.now.checked_add(pause).unwrap_or(Timestamp::MAX));
    }

    /// Ends the target with success.
    pub fn succeed(&mut self, observed: &ObservedJob) {
        self.end(observed, Progress::Succeeded);
    }

    /// Ends the target without success. If it has begun, it is released once the failure is stored.
    pub fn fail(&mut self, observed: &ObservedJob, reason: &str, message: impl Into<String>) {
        let has_begun = self.detail.progress == Some(Progress::Processing);
        self.detail.error = Some(TargetError {
            reason: reason.to_owned(),
            message: message.into(),
        });
        self.end(observed, Progress::Failed);
        if !has_begun {
            self.release();
        }
    }

    /// Notes that nothing that the job asked of the Pod is left.
    pub fn release(&mut self) {
        self.set_info(extra_info::RELEASED, "true");
        self.remove_info(extra_info::BEFORE);
    }

    fn end(&mut self, observed: &ObservedJob, progress: Progress) {
        let now = job_settings::status_time(observed.now);
        let detail = &mut self.detail;
        detail.start_time.get_or_insert_with(|| now.clone());
        detail.end_time = Some(now);
        if progress == Progress::Succeeded {
            self.remove_info(extra_info::BEFORE);
        }
        self.detail.progress = Some(progress);
        self.remove_info(extra_info::WAITING);
    }
}

/// Plans one target. `stored` is its entry in the stored status.
pub fn plan_target(
    observed: &ObservedJob,
    target: &Target,
    stored: Option<&TargetDetail>,
    is_selected: bool,
) -> TargetPlan {
    let mut plan = TargetPlan::of(target, stored);
    if is_finished_progress(plan.detail.progress.as_ref()) {
        if plan.needs_finalizer() {
            release::release_target(observed, &mut plan);
        }
        return plan;
    }
    let has_begun = plan.detail.progress == Some(Progress::Processing);
    if observed.is_deleting() {
        plan.fail(observed, reason::CANCELED, "the job was deleted");
    } else if has_begun {
        continue_target(observed, target, &mut plan);
    } else if is_selected {
        start_target(observed, target, &mut plan);
    }
    plan
}

/// Starts a target, if its Pod can be operated on. Nothing is done on the Pod until the start is stored.
fn start_target(observed: &ObservedJob, target: &Target, plan: &mut TargetPlan) {
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
    if action.0 != Action::REPLACE
        && let Some(undo) = lifecycle_action::undo_former_run(observed, pod)
    {
        plan.actions.push(undo);
        return plan.wait("the operation of a former job of this name, to end");
    }
    plan.detail.progress = Some(Progress::Processing);
    let now = job_settings::status_time(observed.now);
    plan.detail.start_time.get_or_insert(now);
    plan.remove_info(extra_info::WAITING);
    plan.set_info(extra_info::POD_UID, &*pod.metadata.uid);
}

/// Continues a target that has begun.
fn continue_target(observed: &ObservedJob, target: &Target, plan: &mut TargetPlan) {
    let spec = &observed.job.spec;
    let start = plan.detail.start_time.clone();
    let start = start.unwrap_or_else(|| job_settings::status_time(observed.now));
    let deadline = job_settings::later(&start, job_settings::deadline(spec));
    if deadline <= observed.now {
        let waited = plan.info(extra_info::WAITING).map(str::to_owned);
        let waited = waited.map_or_else(String::new, |waited| format!("; it waited for {waited}"));
        let message = format!("not finished within spec.activeDeadlineSeconds{waited}");
        return plan.fail(observed, reason::DEADLINE_EXCEEDED, message);
    }
    plan.look_again_at(deadline);
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
    // A request that is about to be sent is no reason for a write of the status.
    if !plan.actions.is_empty()
        && plan.info(extra_info::WAITING).is_none()
        && let Some(former) = former_wait
    {
        plan.wait(former);
    }
    if let Some(refusal) = plan
        .info(extra_info::POD_UID)
        .and_then(|uid| observed.refused.get(uid))
        .filter(|_| !plan.actions.is_empty())
    {
        let refusal = refusal.clone();
        plan.wait(format!("the API server, which refuses a write: {refusal}"));
    }
}

/// The Pod that the job operates on, by its recorded UID. `None` if it is gone, or is not managed any more.
pub fn recorded_pod<'a>(observed: &'a ObservedJob, plan: &TargetPlan) -> Option<&'a Arc<Pod>> {
    let uid = plan.info(extra_info::POD_UID)?;
    observed.pods.with_uid(uid)
}
