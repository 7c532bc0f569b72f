//! The data of a diagnosis, which `-o json` prints. Fields are only ever added. Times are RFC 3339 in UTC. A value that
//! does not apply is absent, but lists are always present.

use jiff::Timestamp;
use serde::Serialize;

use super::traffic::facts::PodTrafficFacts;
use crate::api::keys;
use crate::domain::rules::budget::BindingMinimum;

/// The diagnosis of a Pod: why it waits, and what happens next.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The answer in one sentence.
    pub summary: String,
    /// The state of the Pod.
    pub pod: PodFacts,
    /// The controller of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerFacts>,
    /// For a Pod of a CollaSet: the PodDecorations that the Pod has or should have, by name.
    pub decorations: Vec<DecorationFacts>,
    /// The OperationJobs that are not finished with the Pod, by name.
    pub jobs: Vec<PodJobFacts>,
    /// What Services and other employers say about the Pod, if it waits for their finalizers to be added or removed.
    pub traffic: Vec<PodTrafficFacts>,
    /// Operations in flight on the Pod, by ID.
    pub operations: Vec<OperationFacts>,
    /// The rules of every PodTransitionRule that selects the Pod, sorted by the name of the object and in the order of
    /// the spec.
    pub rules: Vec<RuleFacts>,
    /// The PodDisruptionBudgets that select the Pod.
    pub disruption_budgets: Vec<DisruptionBudgetFacts>,
    /// The API server's answer to a dry-run deletion. Absent if no dry run was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DryRunDeletion>,
    /// The claims of the Pod: disruptions that were admitted and whose effect is not seen yet.
    pub claims: Vec<ClaimFacts>,
    /// What happens next, or what the user can do.
    pub next: Vec<String>,
    /// What could not be read and is therefore missing in this diagnosis.
    pub notes: Vec<String>,
}

/// The state of a Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Whether the Pod has the label `kusionstack.io/control: "true"`.
    pub managed: bool,
    /// Whether the Pod serves, as every budget counts it.
    pub available: bool,
    /// Why the Pod does not serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_because: Option<String>,
    /// Whether the kubelet reports the Pod Ready.
    pub ready: bool,
    /// When the condition Ready changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_since: Option<Timestamp>,
    /// Whether the deletion of the Pod has begun.
    pub terminating: bool,
    /// The latest time when the kubelet ends the Pod, once its deletion has begun. Finalizers may keep the Pod longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_due: Option<Timestamp>,
    /// Whether the Pod has the label `to-delete`, so that it is deleted through the lifecycle.
    pub to_delete: bool,
    /// Finalizers.
    pub finalizers: Vec<String>,
}

/// The controller of a Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerFacts {
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Number of Pods that the controller asks for. Absent if it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// For a CollaSet: its rollout, and the revision of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutFacts>,
    /// What prevents the controller from working on the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// For a CollaSet: its conditions about refused writes, and the condition that it is stalled. Each text begins with
    /// the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// How a CollaSet updates its Pods to a revision.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutFacts {
    /// Revision of the Pod.
    pub revision: String,
    /// Revision of the present template. Empty if it is not known yet.
    pub updated_revision: String,
    /// `spec.updateStrategy.podUpgradePolicy`.
    pub policy: String,
    /// Number of Pods that stay on older revisions. Absent if the Pods to update are chosen by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Seconds between the label `operate` and the change of a Pod.
    pub delay_seconds: u32,
    /// Whether the CollaSet is paused, so that it neither scales nor updates.
    pub paused: bool,
}

/// A PodDecoration that the Pod has or should have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecorationFacts {
    /// Name of the PodDecoration.
    pub name: String,
    /// The revision that the Pod has. Absent if the Pod does not have the decoration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// The revision that the Pod should have. Absent if it should not have the decoration, or if the verdict is
    /// `mayStay` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted_revision: Option<String>,
    /// Whether the Pod gets another revision.
    pub verdict: DecorationVerdict,
    /// Why the Pod does not have the updated revision of the PodDecoration, in a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a Pod gets another revision of a PodDecoration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum DecorationVerdict {
    /// The Pod has the updated revision.
    UpToDate,
    /// The Pod stays as it is until something changes.
    Stays,
    /// The Pod may be one of those that stay as they are. The objects do not say which Pods these are.
    MayStay,
    /// The Pod gets the wanted revision, or loses the decoration.
    Waits,
    /// The PodDecorations could not be read.
    Unknown,
}

/// An OperationJob that is not finished with a Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodJobFacts {
    /// Name of the OperationJob.
    pub name: String,
    /// `spec.action`. Empty if it is missing.
    pub action: String,
    /// What the Pod is to the job.
    pub role: PodRole,
    /// Progress of the target: Pending, Processing or Failed. A Pod of a failed target is listed until the job has
    /// withdrawn what it asked of the Pod.
    pub progress: String,
    /// When the target began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When the target fails unless it is finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// Whether the job is being deleted.
    pub deleting: bool,
    /// What the job has asked for, or withdraws, in a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// What the target waits for, in a clause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
}

/// What a Pod is to an OperationJob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum PodRole {
    /// The job operates on the Pod, or is to operate on it.
    Target,
    /// The Pod takes the place of a target that the job replaces.
    NewPod,
}

/// An operation in flight on a Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationFacts {
    /// Lifecycle ID.
    pub id: String,
    /// Operation type. Empty if its label is missing.
    #[serde(rename = "type")]
    pub type_: String,
    /// Name of the OperationJob that began the operation. Absent if no job began it, or if the job is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// PreCheck, Preparing, Operate, PostCheck or Completing.
    pub phase: &'static str,
    /// When the phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When the operator began the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<Timestamp>,
    /// All that the operation waits for.
    pub waits_for: Vec<OperationWait>,
    /// What follows after these waits.
    pub then: String,
}

/// One wait of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationWait {
    /// The kind of the wait.
    pub on: WaitKind,
    /// Its name: `object/rule`, a finalizer or a lifecycle ID. Empty if there is no name.
    pub name: String,
    /// The wait in words.
    pub text: String,
}

/// Kinds of waits of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    /// A rule that holds the operation.
    Rule,
    /// The wait queue: other Pods wait longer for the same budget.
    Turn,
    /// The lifecycle controller.
    Controller,
    /// The kubelet.
    Kubelet,
    /// A cooperator that adds or removes a finalizer.
    Finalizer,
    /// The client that began the operation.
    Operator,
    /// A delay that the owner of the Pod asks for.
    Delay,
    /// Another operation on the same Pod.
    Operation,
    /// A user who must correct something.
    User,
}

/// A rule's decision about taking the Pod away now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RuleVerdict {
    /// The rule lets the Pod go.
    Passes,
    /// The rule holds the Pod.
    Holds,
    /// The rule does not apply to this Pod.
    NotApplying,
    /// The decision is not known yet.
    Unknown,
}

/// A rule that covers the Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleFacts {
    /// Name of the PodTransitionRule.
    pub object: String,
    /// Name of the rule in the PodTransitionRule. Empty for the object as a whole.
    pub rule: String,
    /// `availablePolicy`, `labelCheck`, `webhook`, or empty for any other kind.
    pub kind: &'static str,
    /// PreCheck or PostCheck.
    pub stage: &'static str,
    /// The decision of the rule.
    pub verdict: RuleVerdict,
    /// The reason, in a sentence.
    pub reason: String,
    /// For an availability rule: its budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetFacts>,
}

/// A PodDisruptionBudget that selects the Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionBudgetFacts {
    /// Name.
    pub name: String,
    /// Whether the API server refuses an eviction of the Pod now because of this budget.
    pub holds: bool,
    /// The reason, in a sentence.
    pub reason: String,
}

/// The API server's answer to a dry-run deletion of the Pod. A dry run goes through admission and writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum DryRunDeletion {
    /// The API server would delete the Pod.
    Allowed,
    /// The API server refuses the deletion.
    Denied {
        /// HTTP status.
        code: u16,
        /// The API server's message, without the name of the webhook.
        message: String,
    },
    /// The API server refuses the deletion because an admission webhook does not answer.
    Unanswered {
        /// The API server's message.
        message: String,
    },
    /// The answer is not known.
    NotChecked {
        /// The cause.
        reason: String,
    },
}

impl DryRunDeletion {
    /// The outcome without the text: the text of a denial contains ages, which change.
    pub fn without_text(self) -> DryRunDeletion {
        match self {
            DryRunDeletion::Denied { code, .. } => DryRunDeletion::Denied {
                code,
                message: String::new(),
            },
            other => other,
        }
    }

    /// The meaning of an error of the API server. `code` is the HTTP status, and `message` is the message of the
    /// `Status` object.
    pub fn from_api_refusal(code: u16, message: &str) -> DryRunDeletion {
        let text = message.split_once("denied the request: ");
        match (code, text) {
            (_, Some((_, text))) => DryRunDeletion::Denied {
                code,
                message: text.to_owned(),
            },
            (500.., None) if is_own_webhook_failure(message) => DryRunDeletion::Unanswered {
                message: message.to_owned(),
            },
            (403, None) if message.contains("cannot delete resource") => {
                DryRunDeletion::NotChecked {
                    reason: "you may not delete this Pod, not even by a dry-run".to_owned(),
                }
            }
            _ => DryRunDeletion::Denied {
                code,
                message: message.to_owned(),
            },
        }
    }
}

/// Whether the API server could not reach a webhook of Operating. False for the webhooks of others.
pub(in crate::domain) fn is_own_webhook_failure(message: &str) -> bool {
    let failed = message.split_once("failed calling webhook \"");
    let name = failed.and_then(|(_, after_prefix)| after_prefix.split_once('"'));
    let name = name.and_then(|(name, _)| name.strip_suffix(keys::GROUP));
    name.is_some_and(|name| name.ends_with('.'))
}

/// The budget of an availability rule, from the status of the rule object.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetFacts {
    /// Expected Pods that are missing, not available, or have a claim.
    pub used: u32,
    /// How many Pods may be unavailable.
    pub limit: u32,
    /// How many Pods are expected.
    pub expected: u32,
    /// How many more Pods may go now.
    pub allowed: u32,
    /// Present if `minAvailableValue` sets the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<BindingMinimum>,
    /// Pods that use the budget, at most ten. The Pod that has been unavailable longest comes first.
    pub holders: Vec<HolderFacts>,
    /// How many more Pods use the budget: missing Pods, and terminating ones.
    pub unlisted: u32,
    /// Pods that wait in PreCheck for this budget, and for no other rule of the object.
    pub waiting: u32,
    /// How many of the waiting Pods have waited longer than this Pod. Absent if this Pod does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// The Pod among them that has waited longest. Absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

/// A Pod that uses a budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderFacts {
    /// Name.
    pub pod: String,
    /// Since when the Pod uses the budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The cause: a claim, an operation, or why the Pod is unavailable.
    pub because: String,
}

/// A claim of the Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFacts {
    /// Name of the PodTransitionRule.
    pub object: String,
    /// Delete, Evict, Begin, InPlace, Leave, Deadline or Reown.
    pub operation: String,
    /// When the claim was written, by the clock of the replica that wrote it.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_refusals_map_to_dry_run_outcomes() {
        let denial = "admission webhook \"pod-delete.apps.kusionstack.io\" denied the request: Pod web-0 is held";
        let denied = DryRunDeletion::Denied {
            code: 429,
            message: "Pod web-0 is held".to_owned(),
        };
        assert_eq!(DryRunDeletion::from_api_refusal(429, denial), denied);
        let dead = "Internal error occurred: failed calling webhook \"pod-delete.apps.kusionstack.io\": refused";
        assert!(matches!(
            DryRunDeletion::from_api_refusal(500, dead),
            DryRunDeletion::Unanswered { .. }
        ));
        let foreign = dead.replace("apps.kusionstack.io", "example.com");
        assert!(matches!(
            DryRunDeletion::from_api_refusal(500, &foreign),
            DryRunDeletion::Denied { code: 500, .. }
        ));
        let rights = "pods \"web-0\" is forbidden: User \"ann\" cannot delete resource \"pods\" in API group \"\"";
        assert!(matches!(
            DryRunDeletion::from_api_refusal(403, rights),
            DryRunDeletion::NotChecked { .. }
        ));
        let policy =
            "pods \"web-0\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no";
        assert!(matches!(
            DryRunDeletion::from_api_refusal(403, policy),
            DryRunDeletion::Denied { code: 403, .. }
        ));
    }
}
