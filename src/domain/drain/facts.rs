//! The data of a preview. `-o json` prints it. Fields are only ever added.

use serde::Serialize;

use super::kubectl_filters::SkipReason;

/// What `kubectl drain` of a node would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DrainPreview {
    /// Name of the node.
    pub node: String,
    /// What the preview means as a whole.
    pub outcome: DrainOutcome,
    /// Whether `kubectl drain` evicts Pods. False if it refuses the node because of one of the `refused` Pods.
    pub begins: bool,
    /// The Pods that go, in the order in which they can go. If `begins` is false, this is what follows when kubectl no
    /// longer refuses the node. A wave without Pods means that budgets have to recover first.
    pub waves: Vec<WaveFacts>,
    /// Pods that no wave reaches.
    pub held: Vec<HeldPod>,
    /// Pods because of which `kubectl drain` evicts no Pod at all.
    pub refused: Vec<RefusedPod>,
    /// Pods whose deletion has begun.
    pub terminating: Vec<TerminatingPod>,
    /// Pods that `kubectl drain` leaves on the node.
    pub skipped: Vec<SkippedPod>,
    /// Pods about which nothing is known.
    pub not_checked: Vec<UncheckedPod>,
    /// What the waves assume, in sentences.
    pub assumptions: Vec<String>,
    /// What could not be read, and what else a reader should know.
    pub notes: Vec<String>,
}

/// What a preview means as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DrainOutcome {
    /// Every Pod goes in a wave.
    Ok,
    /// Nothing is known to hold a Pod, but something could not be read or checked, or a Pod has finalizers or has had
    /// its time to end and is still there.
    Unknown,
    /// A Pod does not go until a person acts.
    Held,
}

impl DrainOutcome {
    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            DrainOutcome::Ok => 0,
            DrainOutcome::Held => 1,
            DrainOutcome::Unknown => 2,
        }
    }
}

/// A Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The Pods of one wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WaveFacts {
    pub pods: Vec<WavePod>,
}

/// A Pod of a wave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WavePod {
    #[serde(flatten)]
    pub pod: PodName,
    /// What the eviction does to the Pod in this wave.
    pub how: EvictionPath,
    /// Whether the Pod goes in this wave whatever the order of the evictions is. If false, other Pods of the same
    /// budgets may go in its place.
    pub certain: bool,
    /// Whether a controller makes a new Pod in its place.
    pub replaced: bool,
    /// The budgets from which the Pod takes.
    pub budgets: Vec<BudgetName>,
    /// What the API server answers now.
    pub answer: AnswerFacts,
}

/// What an eviction does to a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum EvictionPath {
    /// The API server deletes the Pod.
    Deletes,
    /// The lifecycle of the Pod begins, and deletes the Pod at its end.
    BeginsLifecycle,
}

/// A budget that counts a Pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetName {
    /// The kind of the object.
    pub kind: BudgetKind,
    pub namespace: String,
    pub name: String,
}

/// Kinds of objects that hold Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum BudgetKind {
    PodTransitionRule,
    PodDisruptionBudget,
}

impl std::fmt::Display for BudgetName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind {
            BudgetKind::PodTransitionRule => "PodTransitionRule",
            BudgetKind::PodDisruptionBudget => "PodDisruptionBudget",
        };
        write!(f, "{kind} {}", self.name)
    }
}

/// The API server's answer to a dry-run eviction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AnswerFacts {
    /// HTTP status: 201 if the eviction passes.
    pub code: u16,
    /// The message of a refusal. Empty if the eviction passes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A Pod that no wave reaches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldPod {
    #[serde(flatten)]
    pub pod: PodName,
    /// The objects that hold it. Empty if none of the rules and budgets does.
    pub by: Vec<BudgetName>,
    /// Why it stays, in a sentence without its full stop.
    pub reason: String,
    /// What to do, a sentence without its full stop.
    pub remedy: String,
    /// What the API server answers now.
    pub answer: AnswerFacts,
}

/// A Pod because of which `kubectl drain` does not begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RefusedPod {
    #[serde(flatten)]
    pub pod: PodName,
    /// Why, in a clause.
    pub reason: String,
    /// What to do, a sentence without its full stop.
    pub remedy: String,
}

/// A Pod whose deletion has begun.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TerminatingPod {
    #[serde(flatten)]
    pub pod: PodName,
    /// The finalizers that have to be removed before the Pod is gone.
    pub finalizers: Vec<String>,
}

/// A Pod that `kubectl drain` leaves on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SkippedPod {
    #[serde(flatten)]
    pub pod: PodName,
    pub reason: SkipReason,
}

/// A Pod about which nothing is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UncheckedPod {
    #[serde(flatten)]
    pub pod: PodName,
    /// The cause, in a clause.
    pub reason: String,
}
