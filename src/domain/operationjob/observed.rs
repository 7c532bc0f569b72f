//! The input of a plan: an OperationJob, its Pods and their CollaSets, as the controller has read them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::job_pods::JobPods;
use super::restart::recreate_request::RequestState;
use super::restart::settings::RestartSettings;
use crate::api::collaset::CollaSet;
use crate::api::operationjob::OperationJob;
use crate::domain::pod::Pod;

/// All that a plan reads.
#[derive(Clone, Debug)]
pub struct ObservedJob {
    /// The job.
    pub job: Arc<OperationJob>,
    /// The managed Pods of the namespace that concern the job: those that a target names, those that replaced one of
    /// them, and those of the CollaSets from which a new Pod is expected.
    pub pods: JobPods,
    /// The CollaSets of the namespace.
    pub sets: Vec<Arc<CollaSet>>,
    /// The instance IDs of each CollaSet by its name, as its pool has them.
    pub instance_ids: BTreeMap<String, BTreeSet<String>>,
    /// What a live read has found about target names that no managed Pod has.
    pub live_names: BTreeMap<String, LiveName>,
    /// Pods that are not managed, as live reads have found them in the last seconds, by UID, and by name for targets that
    /// Kuperator has started. `None` if the Pod is gone.
    pub unmanaged: BTreeMap<String, Option<Arc<Pod>>>,
    /// UIDs of Pods whose last write by this controller `pods` does not show yet.
    pub unseen: BTreeSet<String>,
    /// UIDs of Pods with a write that was not answered, and whose outcome `pods` does not show.
    pub unanswered: BTreeSet<String>,
    /// Other jobs of the namespace that name a target of this job.
    pub other_jobs: Vec<Arc<OperationJob>>,
    /// How containers are restarted.
    pub restart: RestartSettings,
    /// The state of ContainerRecreateRequests by the UID of the Pod, as far as they were read in the last seconds. `None`
    /// if there is no such request.
    pub recreate_requests: BTreeMap<String, Option<RequestState>>,
    /// Requests that the API server has not carried out, by
    /// [`TargetAction::refusal_key`](super::actions::TargetAction::refusal_key).
    pub failed_requests: BTreeMap<String, FailedRequest>,
    /// Wall clock time.
    pub now: Timestamp,
}

/// Why a request had no effect, or may have had no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// The words of the API server.
    pub message: String,
    /// Whether the API server refuses what the request asks for. It would refuse the same request again. False after a
    /// failure that may pass, such as a missing answer.
    pub is_refusal: bool,
}

/// What a live read of a name has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveName {
    /// No Pod has the name.
    Absent,
    /// The Pod of this name is not managed.
    Unmanaged,
}

impl ObservedJob {
    /// The CollaSet that controls a Pod.
    pub fn set_of(&self, pod: &Pod) -> Option<&Arc<CollaSet>> {
        let owner = pod.controller().filter(|owner| owner.is_collaset())?;
        let mut sets = self.sets.iter();
        sets.find(|set| set.metadata.uid.as_deref() == Some(&owner.uid))
    }

    /// The UID of the job.
    pub fn uid(&self) -> &str {
        self.job.metadata.uid.as_deref().unwrap_or_default()
    }

    /// The name of the job.
    pub fn name(&self) -> &str {
        self.job.metadata.name.as_deref().unwrap_or_default()
    }

    /// Whether the job is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.job.metadata.deletion_timestamp.is_some()
    }

    /// The words with which the API server refuses the last write of a Pod. `None` if the write may still succeed.
    pub fn refusal_of(&self, pod: &Pod) -> Option<&str> {
        let failed = self.failed_requests.get(&pod.metadata.uid)?;
        failed.is_refusal.then_some(&failed.message)
    }

    /// Nanoseconds since 1970, the unit of the labels of the lifecycle.
    pub fn now_nanos(&self) -> u64 {
        u64::try_from(self.now.as_nanosecond()).unwrap_or(0)
    }
}
