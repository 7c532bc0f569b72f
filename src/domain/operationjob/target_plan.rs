//! The plan of one target, and how it begins, waits and ends.

use std::sync::Arc;

use jiff::Timestamp;

use super::actions::TargetAction;
use super::job_settings;
use super::names::extra_info;
use super::observed::ObservedJob;
use crate::api::operationjob::{OperationJob, Progress, Target, TargetDetail, TargetError};
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
    /// Whether the partition selects the target.
    pub is_selected: bool,
    /// Bytes that a new note of its containers may have in the status.
    pub note_room: usize,
    /// Why images stay that the job has changed, if the target was released without them.
    pub kept_images: Option<String>,
    /// Most bytes of a text in the status.
    max_text: usize,
}

/// Most bytes of a text that the status keeps for each target, and for each target of a large job. The status must fit
/// into etcd.
const MAX_TEXT: (usize, usize) = (400, 120);
/// Number of targets of a large job.
const LARGE_JOB: usize = 500;

impl TargetPlan {
    /// Keeps the stored entry.
    pub fn of(job: &OperationJob, target: &Target, stored: Option<&TargetDetail>) -> TargetPlan {
        let mut detail = stored.cloned().unwrap_or_default();
        detail.name.clone_from(&target.name);
        let is_known = matches!(
            detail.progress,
            Some(Progress::Processing | Progress::Succeeded | Progress::Failed)
        );
        if !is_known {
            detail.progress = Some(Progress::Pending);
        }
        let is_large = job.spec.targets.len() > LARGE_JOB;
        TargetPlan {
            detail,
            max_text: if is_large { MAX_TEXT.1 } else { MAX_TEXT.0 },
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

    /// Cuts a text to the length that the status keeps.
    fn shorten(&self, text: String) -> String {
        if text.len() <= self.max_text {
            return text;
        }
        let ends = text.char_indices().map(|(end, _)| end);
        let end = ends.take_while(|end| *end <= self.max_text).last();
        format!("{}…", text.get(..end.unwrap_or(0)).unwrap_or_default())
    }

    /// Whether the target has ended.
    pub fn is_finished(&self) -> bool {
        self.detail
            .progress
            .as_ref()
            .is_some_and(Progress::is_final)
    }

    /// Whether the target is selected and not finished.
    pub fn is_due(&self) -> bool {
        self.is_selected && !self.is_finished()
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
        let why = self.shorten(why.into());
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
            message: self.shorten(message.into()),
        });
        self.end(observed, Progress::Failed);
        if !has_begun {
            self.release();
        }
    }

    /// Says that images stay which the job has changed. `why` completes the sentence.
    pub fn keep_images(&mut self, why: String) {
        if let Some(mut error) = self.detail.error.take() {
            let message = format!("the images were not put back: {why}. {}", error.message);
            error.message = self.shorten(message);
            self.detail.error = Some(error);
        }
        self.kept_images = Some(why);
    }

    /// Notes that nothing that the job asked of the Pod is left.
    pub fn release(&mut self) {
        self.set_info(extra_info::RELEASED, "true");
        self.remove_info(extra_info::BEFORE);
        self.remove_info(extra_info::WAITING);
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

/// The Pod that the job operates on, by its recorded UID. `None` if it is gone, or is not managed any more.
pub fn recorded_pod<'a>(observed: &'a ObservedJob, plan: &TargetPlan) -> Option<&'a Arc<Pod>> {
    let uid = plan.info(extra_info::POD_UID)?;
    observed.pods.with_uid(uid)
}

/// The Pod of a target as a live read has found it, for a target that has no managed Pod. `None` if the Pod is gone.
///
/// # Errors
///
/// The read, if it is still to be made.
pub fn read_unmanaged(
    observed: &ObservedJob,
    plan: &TargetPlan,
) -> Result<Option<Arc<Pod>>, Box<TargetAction>> {
    let (name, uid) = (&plan.detail.name, plan.info(extra_info::POD_UID));
    let found = observed.unmanaged.get(uid.unwrap_or(name));
    found.cloned().ok_or_else(|| {
        let (name, uid) = (name.clone(), uid.map(str::to_owned));
        Box::new(TargetAction::ReadUnmanaged { name, uid })
    })
}
