//! The data of the diagnosis of a workload, which `-o json` prints. Fields are only ever added. Times are RFC 3339 in
//! UTC. A value that does not apply is absent, but lists are always present.

use jiff::Timestamp;
use serde::Serialize;

use crate::domain::diagnosis::facts::{DisruptionBudgetFacts, RuleFacts};

/// The diagnosis of a workload: what its rollout or its scaling waits for.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadDiagnosis {
    /// The answer in one sentence.
    pub summary: String,
    /// The state of the workload.
    pub workload: WorkloadFacts,
    /// What the conditions of the workload report as failed, each with its reason first.
    pub problems: Vec<String>,
    /// The Pods that wait or do not serve, grouped by the reason. The reason that most likely stops the rollout comes
    /// first.
    pub waits: Vec<WaitGroup>,
    /// The rules that select Pods of the workload.
    pub rules: Vec<CoveringRule>,
    /// The PodDisruptionBudgets that select running Pods of the workload.
    pub disruption_budgets: Vec<DisruptionBudgetFacts>,
    /// What the user can do, or where to read more.
    pub next: Vec<String>,
    /// What could not be read and is therefore missing in this diagnosis.
    pub notes: Vec<String>,
}

/// The state of a workload. The counts are those of its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadFacts {
    /// Kind.
    pub kind: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Whether the status describes the present spec.
    pub observed: bool,
    /// Number of Pods that the spec asks for.
    pub replicas: u32,
    /// Number of Pods that exist.
    pub existing: u32,
    /// Pods of the present template. Absent for a ReplicaSet, which updates no Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated: Option<u32>,
    /// Pods that are Ready.
    pub ready: u32,
    /// Pods that are available, as the controller of the workload counts them.
    pub available: u32,
    /// How Pods are updated. Absent for a ReplicaSet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<String>,
    /// Number of Pods, or for a StatefulSet the first ordinal, that stays on older revisions. Absent without a partition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Whether the workload is paused.
    pub paused: bool,
    /// What the spec or the status says about the progress of the rollout.
    pub remarks: Vec<String>,
    /// Since when the workload is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deleting_since: Option<Timestamp>,
}

/// Pods that wait for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaitGroup {
    /// What the Pods have in common.
    pub kind: WaitGroupKind,
    /// The reason in words.
    pub reason: String,
    /// For a rule: what it says about the first of the Pods. Absent if several rules hold the Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// How many Pods these are.
    pub count: usize,
    /// The first of these Pods, at most five. Empty for Pods that do not exist, and if it is not known which Pods these
    /// are.
    pub pods: Vec<String>,
    /// The node that has stopped to report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// What Pods that wait have in common. The order is the order in which groups are listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitGroupKind {
    /// They do not start until somebody corrects the cause.
    Stuck,
    /// Their node has stopped to report.
    NodeLost,
    /// They are wanted and do not exist.
    Missing,
    /// A rule holds them.
    Rule,
    /// They do not serve yet.
    Unavailable,
    /// An operation on them waits for something else than a rule.
    Operation,
    /// They are more than are wanted.
    Surplus,
    /// They are terminating.
    Terminating,
    /// They have finished.
    Finished,
    /// They are of an older revision, and nothing holds them.
    Older,
}

/// A rule that selects Pods of a workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CoveringRule {
    /// How many Pods of the workload the rule object selects.
    pub pods: usize,
    /// Which of these Pods the decision is about: the first Pod that the rule object holds, or else the first available
    /// Pod.
    pub pod: String,
    /// The rule, and its decision about this Pod.
    #[serde(flatten)]
    pub rule: RuleFacts,
}
