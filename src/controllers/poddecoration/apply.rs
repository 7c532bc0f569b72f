//! Makes the writes of a plan, one at a time: the finalizer, the revision of the spec, the status, the deletion of
//! unused revisions, and the removal of the finalizer.

use std::time::Duration;

use kube::Resource;
use kube::core::params::Patch;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::execution::{Execution, WriteResult};
use crate::api::keys;
use crate::api::poddecoration::PodDecorationStatus;
use crate::cluster::objects::{DecorationObject, object_requests};
use crate::controllers::collaset::refusals::RefusalKey;
use crate::controllers::finalizer_answer;
use crate::controllers::requests::{RequestError, request_with_deadline};
use crate::controllers::status_patch::status_patch;
use crate::domain::decoration::plan::{DecorationEvent, DecorationPlan};
use crate::domain::pod::PodMetadata;

/// What follows a look for the next write of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// A write was made or refused. The next plan takes it into account.
    PlanAgain,
    /// An object has changed since the plan was made. The cache will show the change.
    Stale,
    /// No write can be made now. Contains the time until the next look, if one is needed.
    Wait(Option<Duration>),
}

impl Execution<'_> {
    /// Makes the first write of the plan that may be made now. A refused write does not keep the others from being
    /// made, except that no revision is stored without the finalizer.
    pub async fn make_next_write(&self, plan: &DecorationPlan) -> NextStep {
        let requeue = plan.requeue_after_nanos.map(Duration::from_nanos);
        let mut pauses: Vec<Duration> = requeue.into_iter().collect();
        let now = Instant::now();
        let may_write = |key: &RefusalKey, pauses: &mut Vec<Duration>| {
            let pause = self.memory.pause_of(key, now, self.generation());
            pauses.extend(pause);
            pause.is_none()
        };
        if plan.add_finalizer && may_write(&RefusalKey::Finalizer, &mut pauses) {
            return next_step(self.add_finalizer().await);
        }
        if let Some(write) = &plan.revision
            && !plan.add_finalizer
            && may_write(&RefusalKey::Revision, &mut pauses)
        {
            return next_step(self.write_revision(write).await);
        }
        if let Some(value) = &plan.held_back {
            match may_write(&RefusalKey::Annotation, &mut pauses) {
                true => return next_step(self.write_held_back(value.as_deref()).await),
                false => return NextStep::Wait(pauses.into_iter().min()), // it must be stored before the status
            }
        }
        let status = plan.status.as_ref();
        if let Some(patch) = status.and_then(|status| self.status_patch(status))
            && may_write(&RefusalKey::Status, &mut pauses)
        {
            match self.memory.begin_status_write(now) {
                None => return next_step(self.write_status(patch, &plan.events).await),
                Some(pause) => pauses.push(pause),
            }
        }
        for revision in &plan.delete_revisions {
            let key = RefusalKey::RevisionWrite(revision.name.clone());
            if may_write(&key, &mut pauses) {
                return next_step(self.delete_revision(key, revision).await);
            }
        }
        if plan.remove_finalizer && may_write(&RefusalKey::Finalizer, &mut pauses) {
            return next_step(self.remove_finalizer().await);
        }
        NextStep::Wait(pauses.into_iter().min())
    }

    /// The merge patch for a wanted status; `None` if the stored status is equal.
    pub fn status_patch(&self, wanted: &PodDecorationStatus) -> Option<Value> {
        let patch = status_patch(self.object.status.as_ref(), wanted)?;
        Some(Value::Object(patch))
    }

    /// Writes the status without regard to the time of the last write, and then records the Events.
    pub async fn write_status(&self, patch: Value, events: &[DecorationEvent]) -> WriteResult {
        let patch = json!({ "metadata": { "uid": self.uid() }, "status": patch });
        let description = format!("status of PodDecoration {}", self.name());
        let request = self.patch_decoration(patch, true);
        let result = self.send(RefusalKey::Status, &description, request).await;
        match &result {
            WriteResult::Done => events.iter().for_each(|event| {
                self.record_event(event.warning, event.reason, &event.message);
            }),
            // The stored status may still say that all is well.
            WriteResult::Refused(message) => self.record_event(true, "StatusNotWritten", message),
            WriteResult::Stale => {}
        }
        result
    }

    /// Writes or removes the annotation that names the sets which Kuperator held back.
    async fn write_held_back(&self, value: Option<&str>) -> WriteResult {
        let patch = json!({ "metadata": {
            "uid": self.uid(),
            "resourceVersion": self.object.metadata.resource_version,
            "annotations": { keys::HELD_BACK: value },
        } });
        let description = format!("annotation of PodDecoration {}", self.name());
        let request = self.patch_decoration(patch, false);
        self.send(RefusalKey::Annotation, &description, request)
            .await
    }

    async fn add_finalizer(&self) -> WriteResult {
        let mut all = self.other_finalizers();
        all.push(keys::PROTECTED_FINALIZER.to_owned());
        let written = self.write_finalizers(&all).await;
        let written = written.and_then(|answer| {
            finalizer_answer::check_added(
                &answer,
                keys::PROTECTED_FINALIZER,
                &self.finalizer_description(),
            )
        });
        self.record_result(RefusalKey::Finalizer, written)
    }

    /// Removes the finalizer. The PodDecoration is gone then, unless it has other finalizers.
    async fn remove_finalizer(&self) -> WriteResult {
        let written = self.write_finalizers(&self.other_finalizers()).await;
        let is_gone = written.and_then(|answer| {
            finalizer_answer::check_removed(
                &answer,
                keys::PROTECTED_FINALIZER,
                &self.finalizer_description(),
            )
        });
        if is_gone == Ok(true) {
            let decorations = &self.objects().decorations;
            decorations.apply_own_delete(self.namespace(), self.name(), self.uid());
        }
        self.record_result(RefusalKey::Finalizer, is_gone.map(|_| ()))
    }

    fn finalizer_description(&self) -> String {
        format!("the finalizer of PodDecoration {}", self.name())
    }

    fn other_finalizers(&self) -> Vec<String> {
        let mut all = self.object.metadata.finalizers.clone().unwrap_or_default();
        all.retain(|finalizer| finalizer != keys::PROTECTED_FINALIZER);
        all
    }

    /// Writes the finalizers. A merge patch replaces the whole list, and therefore has the resourceVersion of the plan
    /// as precondition.
    async fn write_finalizers(&self, finalizers: &[String]) -> Result<PodMetadata, RequestError> {
        let patch = json!({ "metadata": {
            "uid": self.uid(),
            "resourceVersion": self.object.metadata.resource_version,
            "finalizers": finalizers,
        } });
        let request = self.patch_decoration(patch, false);
        request_with_deadline(&format!("PodDecoration {}", self.name()), request).await
    }

    /// Returns the metadata of the answer.
    async fn patch_decoration(
        &self,
        patch: Value,
        is_status: bool,
    ) -> Result<PodMetadata, kube::Error> {
        object_requests::patch_for_answer::<DecorationObject>(
            self.client(),
            self.objects(),
            (self.namespace(), self.name()),
            &Patch::Merge(patch),
            is_status,
        )
        .await
    }

    /// Records an Event for a spec or status that can't be read, once for each generation. The status can't tell it,
    /// because the stored status may be what can't be read.
    pub fn announce_unreadable(&self, fault: &str) {
        if self.memory.begin_unreadable_report(self.generation()) {
            let message = format!(
                "The stored PodDecoration can't be read: {fault}. Pods that have the decoration keep it, and no other \
                 Pod gets it. Correct the field, or delete the PodDecoration."
            );
            self.record_event(true, "Unreadable", &message);
        }
    }

    fn record_event(&self, is_warning: bool, reason: &str, message: &str) {
        let recorder = &self.context.events;
        let subject = self.object.object_ref(&());
        recorder.record_distinct_event(&subject, is_warning, reason, message);
    }
}

fn next_step(result: WriteResult) -> NextStep {
    match result {
        WriteResult::Done | WriteResult::Refused(_) => NextStep::PlanAgain,
        WriteResult::Stale => NextStep::Stale,
    }
}
