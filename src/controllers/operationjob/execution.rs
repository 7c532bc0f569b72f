//! Makes the writes of a plan on the job: the finalizer, the status, the deletion. The requests for the Pods are in
//! `target_writes`.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Resource;
use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::info;

use super::memory::JobMemory;
use super::recreate_requests::RequestApi;
use super::unstored_fields::UnstoredFields;
use crate::api::keys;
use crate::api::operationjob::{OperationJob, OperationJobStatus};
use crate::cluster::objects::{JobObject, object_requests};
use crate::controllers::ControllerContext;
use crate::controllers::collaset::refusals::RefusalKey;
use crate::controllers::finalizer_answer;
use crate::controllers::requests::{RequestError, request_with_deadline};
use crate::controllers::status_patch::status_patch;
use crate::domain::operationjob::observed::FailedRequest;
use crate::domain::operationjob::plan::JobPlan;
use crate::domain::pod::PodMetadata;

/// What follows the writes of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Something was written or refused. The next plan takes it into account.
    PlanAgain,
    /// The job has changed since the plan was made. The cache will show the change.
    Stale,
    /// No write can be made now. Contains the time until the next look, if one is needed.
    Wait(Option<Duration>),
}

/// What the writes of one plan need.
pub struct Execution<'a> {
    pub context: &'a ControllerContext,
    pub memory: &'a JobMemory,
    pub request_api: &'a RequestApi,
    /// The job that was planned.
    pub job: &'a Arc<OperationJob>,
}

impl Execution<'_> {
    pub fn namespace(&self) -> &str {
        let namespace = self.job.metadata.namespace.as_deref();
        namespace.unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    pub fn generation(&self) -> i64 {
        self.job.metadata.generation.unwrap_or(0)
    }

    /// Makes the writes that may be made now. The finalizer comes alone, because nothing may be done before it is
    /// stored. The status and the requests for the Pods do not depend on each other.
    pub async fn carry_out(&self, plan: &JobPlan) -> RunStep {
        let mut pauses: Vec<Duration> = Vec::new();
        if let Some(at) = plan.look_at {
            pauses.push(pause_until(at, (self.context.now)()));
        }
        if plan.add_finalizer {
            return self
                .guarded(&RefusalKey::Finalizer, self.add_finalizer())
                .await;
        }
        for report in &plan.reports {
            self.record_event(report.warning, report.reason, &report.message);
        }
        let mut has_written = false;
        if let Some(patch) = plan
            .status
            .as_ref()
            .and_then(|status| self.status_patch(status))
        {
            match self.status_pause(plan) {
                Some(pause) => pauses.push(pause),
                None => match self.write_status(patch, plan).await {
                    Ok(()) => has_written = true,
                    Err(RequestError::Moved | RequestError::Exists) => return RunStep::Stale,
                    Err(error) => {
                        self.record_refusal(RefusalKey::Status, None, &error);
                        pauses.extend(self.refusal_pause(&RefusalKey::Status));
                        // The stored status may still say that all is well.
                        let message = refusal_message(&error).unwrap_or_default();
                        self.record_event(true, "StatusNotWritten", message);
                    }
                },
            }
        }
        let targets = self.carry_out_actions(&plan.actions).await;
        pauses.extend(targets.pause);
        if has_written || targets.has_written {
            return RunStep::PlanAgain;
        }
        if plan.remove_finalizer {
            let key = RefusalKey::Finalizer;
            return self.guarded(&key, self.remove_finalizer()).await;
        }
        if plan.delete {
            let key = RefusalKey::Deletion;
            return self.guarded(&key, self.delete_job()).await;
        }
        RunStep::Wait(pauses.into_iter().min())
    }

    /// Reports a job that can't be read. Its finalizer is removed when it is deleted: what it has asked of Pods is not known.
    pub async fn report_unreadable(&self, fault: &str) -> RunStep {
        if self.memory.begin_unreadable_report() {
            let message = format!(
                "The stored OperationJob can't be read: {fault}. Nothing is operated on. Delete it, and create a correct one."
            );
            self.record_event(true, "Unreadable", &message);
        }
        let is_deleting = self.job.metadata.deletion_timestamp.is_some();
        if is_deleting && self.other_finalizers().len() != self.finalizers().len() {
            let key = RefusalKey::Finalizer;
            return self.guarded(&key, self.remove_finalizer()).await;
        }
        RunStep::Wait(None)
    }

    /// Sends a write unless it was refused a short time ago.
    async fn guarded(
        &self,
        key: &RefusalKey,
        write: impl Future<Output = Result<(), RequestError>>,
    ) -> RunStep {
        if let Some(pause) = self.refusal_pause(key) {
            return RunStep::Wait(Some(pause));
        }
        match write.await {
            Ok(()) => {
                self.memory.clear_refusal(key, None);
                RunStep::PlanAgain
            }
            Err(RequestError::Moved | RequestError::Exists) => RunStep::Stale,
            Err(error) => {
                self.record_refusal(key.clone(), None, &error);
                if *key == RefusalKey::Finalizer {
                    let message = refusal_message(&error).unwrap_or_default();
                    self.record_event(true, "FinalizerNotWritten", message);
                }
                RunStep::PlanAgain
            }
        }
    }

    pub fn record_refusal(&self, key: RefusalKey, text_key: Option<String>, error: &RequestError) {
        if let Some(message) = refusal_message(error) {
            let is_refusal = matches!(error, RequestError::Denied(_) | RequestError::Refused(_));
            let message = message.to_owned();
            let failed = FailedRequest {
                message,
                is_refusal,
            };
            self.memory
                .record_refusal(key, text_key, failed, self.generation());
        }
    }

    fn refusal_pause(&self, key: &RefusalKey) -> Option<Duration> {
        self.memory.pause_of(key, self.generation())
    }

    /// The merge patch for a wanted status; `None` if the stored status is equal, or as equal as the API server lets it
    /// become.
    fn status_patch(&self, wanted: &OperationJobStatus) -> Option<Value> {
        let stored = self.job.status.as_ref();
        let patch = status_patch(stored, wanted)?;
        let unstored = self.memory.unstored();
        if stored.is_some_and(|stored| unstored.cover(&patch, wanted, stored)) {
            return None;
        }
        Some(Value::Object(patch))
    }

    fn status_pause(&self, plan: &JobPlan) -> Option<Duration> {
        let refusal = self.refusal_pause(&RefusalKey::Status);
        let details = plan
            .status
            .as_ref()
            .map_or(0, |status| status.target_details.len());
        refusal.or_else(|| self.memory.begin_status_write(Instant::now(), details))
    }

    /// Writes the status if the job has not changed, and then records the Events.
    async fn write_status(&self, patch: Value, plan: &JobPlan) -> Result<(), RequestError> {
        let patch = json!({
            "metadata": {
                "uid": self.memory.uid(),
                "resourceVersion": self.job.metadata.resource_version,
            },
            "status": patch,
        });
        let description = format!("status of OperationJob {}", self.name());
        let answer = request_with_deadline(&description, self.patch_job(patch, true)).await?;
        self.memory.clear_refusal(&RefusalKey::Status, None);
        if let Some(wanted) = &plan.status {
            self.compare_answer(answer.resource_version, wanted);
        }
        for event in &plan.events {
            let (reason, message) = (event.reason, &event.message);
            info!(
                namespace = self.namespace(),
                job = self.name(),
                reason,
                message,
                "an OperationJob goes on"
            );
            self.record_event(event.warning, event.reason, &event.message);
        }
        Ok(())
    }

    /// Remembers which fields of the status the API server did not store as they were written.
    fn compare_answer(&self, version: u64, wanted: &OperationJobStatus) {
        let jobs = &self.context.objects.jobs;
        let cached = jobs.get(self.namespace(), self.name());
        let answer = cached
            .filter(|cached| cached.object.metadata.resource_version == Some(version.to_string()));
        let Some(answer) = answer else {
            return; // somebody has written the job since
        };
        let stored = answer.object.status.clone().unwrap_or_default();
        let unstored = UnstoredFields::between(wanted, &stored);
        let text = unstored.describe();
        if self.memory.record_unstored(unstored) {
            self.record_event(true, "StatusNotStored", &text);
        }
    }

    async fn add_finalizer(&self) -> Result<(), RequestError> {
        let mut all = self.finalizers().to_vec();
        all.push(keys::PROTECTED_FINALIZER.to_owned());
        let answer = self.write_finalizers(&all).await?;
        finalizer_answer::check_added(
            &answer,
            keys::PROTECTED_FINALIZER,
            &self.finalizer_description(),
        )
    }

    /// Removes the finalizer. A job that is being deleted is gone then, unless it has other finalizers.
    async fn remove_finalizer(&self) -> Result<(), RequestError> {
        let answer = self.write_finalizers(&self.other_finalizers()).await?;
        if finalizer_answer::check_removed(
            &answer,
            keys::PROTECTED_FINALIZER,
            &self.finalizer_description(),
        )? {
            let jobs = &self.context.objects.jobs;
            jobs.apply_own_delete(self.namespace(), self.name(), self.memory.uid());
        }
        Ok(())
    }

    fn finalizer_description(&self) -> String {
        format!("the finalizer of OperationJob {}", self.name())
    }

    fn finalizers(&self) -> &[String] {
        self.job.metadata.finalizers.as_deref().unwrap_or_default()
    }

    fn other_finalizers(&self) -> Vec<String> {
        let mut all = self.finalizers().to_vec();
        all.retain(|finalizer| finalizer != keys::PROTECTED_FINALIZER);
        all
    }

    /// Writes the finalizers. A merge patch replaces the whole list, and therefore has the resourceVersion of the plan
    /// as precondition.
    async fn write_finalizers(&self, finalizers: &[String]) -> Result<PodMetadata, RequestError> {
        let patch = json!({ "metadata": {
            "uid": self.memory.uid(),
            "resourceVersion": self.job.metadata.resource_version,
            "finalizers": finalizers,
        } });
        let description = format!("OperationJob {}", self.name());
        request_with_deadline(&description, self.patch_job(patch, false)).await
    }

    /// Returns the metadata of the answer.
    async fn patch_job(&self, patch: Value, is_status: bool) -> Result<PodMetadata, kube::Error> {
        object_requests::patch_for_answer::<JobObject>(
            &self.context.client,
            &self.context.objects,
            (self.namespace(), self.name()),
            &Patch::Merge(patch),
            is_status,
        )
        .await
    }

    async fn delete_job(&self) -> Result<(), RequestError> {
        let name = (self.namespace(), self.name(), self.memory.uid());
        let request = object_requests::delete_object::<JobObject>(
            &self.context.client,
            &self.context.objects,
            name,
            self.job.metadata.resource_version.as_deref(),
        );
        request_with_deadline(&format!("OperationJob {}", self.name()), request).await?;
        self.record_event(
            false,
            "TTL",
            "deleted: spec.TTLSecondsAfterFinished is over",
        );
        Ok(())
    }

    pub fn record_event(&self, warning: bool, reason: &str, message: &str) {
        let subject = self.job.object_ref(&());
        let recorder = &self.context.events;
        recorder.record_distinct_event(&subject, warning, reason, message);
    }
}

/// The message of a request that was refused or failed; `None` if its object has changed since the plan was made.
fn refusal_message(error: &RequestError) -> Option<&str> {
    match error {
        RequestError::Held(message)
        | RequestError::Failed(message)
        | RequestError::Denied(message)
        | RequestError::Refused(message) => Some(message),
        RequestError::Moved | RequestError::Exists => None,
    }
}

fn pause_until(at: Timestamp, now: Timestamp) -> Duration {
    let pause = at.duration_since(now);
    Duration::try_from(pause).unwrap_or_default()
}
