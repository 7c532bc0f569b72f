//! The data of the diagnosis of an OperationJob, which `-o json` prints. Fields are only ever added. Times are RFC 3339
//! in UTC. A value that does not apply is absent, but lists are always present.

use jiff::Timestamp;
use serde::Serialize;

/// The diagnosis of an OperationJob: which targets are not operated on yet, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobDiagnosis {
    /// The answer in one sentence.
    pub summary: String,
    /// The state of the job.
    pub job: JobFacts,
    /// How many targets the job has, by their state.
    pub counts: TargetCounts,
    /// Targets that have neither succeeded nor are held back by the partition, at most 20. Those that failed come first,
    /// then those that have begun, the longest first, then the others in the order of the spec.
    pub targets: Vec<TargetFacts>,
    /// How many more such targets there are.
    pub unlisted: usize,
    /// The first targets that the partition holds back, at most 20, in the order of the spec.
    pub held_back: Vec<String>,
    /// What happens next, or what the user can do.
    pub next: Vec<String>,
}

/// The state of an OperationJob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JobFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// `spec.action`. Empty if it is missing.
    pub action: String,
    /// Pending, Processing, Failed or Succeeded. Absent if the controller has not seen the job yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// When the controller first saw the job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When all targets were finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// `spec.partition`. Absent if all targets are operated on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Since when the job is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleting_since: Option<Timestamp>,
    /// When a finished job is deleted by its TTL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_due: Option<Timestamp>,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// How many targets are in which state. Each target is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetCounts {
    /// All targets.
    pub total: usize,
    /// Targets that succeeded.
    pub succeeded: usize,
    /// Targets that failed.
    pub failed: usize,
    /// Targets that have begun, or are about to begin.
    pub waiting: usize,
    /// Targets that the partition holds back.
    pub held_back: usize,
}

/// A target that has not succeeded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetFacts {
    /// Name of the Pod.
    pub name: String,
    /// Pending, Processing or Failed.
    pub progress: String,
    /// When the target began, or, if it failed, when it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When the target fails unless it is finished. Absent if it has not begun or has failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What the target waits for, in a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Why the target failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorFacts>,
    /// For Replace: name of the new Pod, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_pod: Option<String>,
    /// Whether the job still has to withdraw what it asked of the Pod, because the target failed or the job is deleted.
    pub to_release: bool,
}

/// Why a target failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorFacts {
    /// Reason in CamelCase, such as PodNotFound.
    pub reason: String,
    /// Explanation for people.
    pub message: String,
}
