//! The shape of an explanation. It is what `-o json` prints: fields are only ever added, times are RFC 3339 in UTC, what
//! does not apply is absent, and lists are always there.

use jiff::Timestamp;
use serde::Serialize;

use crate::api::keys;
use crate::domain::rules::budget::BindingMinimum;

/// Why a Pod is where it is, and what happens next.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Diagnosis {
    /// The answer in one sentence.
    pub summary: String,
    /// The Pod itself.
    pub pod: PodFacts,
    /// Its controller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerFacts>,
    /// Operations in flight on it, by ID.
    pub operations: Vec<OperationFacts>,
    /// The rules of every PodTransitionRule that selects it, in the order of names and of the spec.
    pub rules: Vec<RuleFacts>,
    /// The PodDisruptionBudgets that select it.
    pub disruption_budgets: Vec<DisruptionBudgetFacts>,
    /// What the API server says to a deletion, asked by a dry-run; absent where that was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion: Option<DryRunDeletion>,
    /// Its own claims: admitted, and not yet seen.
    pub claims: Vec<ClaimFacts>,
    /// What happens next, or what to do.
    pub next: Vec<String>,
    /// What could not be read, and so is missing here.
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
    /// Whether it opted in by the label `kusionstack.io/control: "true"`.
    pub managed: bool,
    /// Whether it serves, as every budget counts it.
    pub available: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unavailable_because: Option<String>,
    /// Whether the kubelet reports it Ready.
    pub ready: bool,
    /// Since when it does, or does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readiness_since: Option<Timestamp>,
    /// Whether deletion has begun.
    pub terminating: bool,
    /// When the kubelet ends it at the latest, once deletion has begun; finalizers may hold it beyond.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_due: Option<Timestamp>,
    /// Whether it is labelled `to-delete`: deleted through the lifecycle.
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
    /// Pods that it wants; absent where that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// Of a CollaSet: what it does to the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutFacts>,
    /// What keeps it from working on the Pod, if something does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Of a CollaSet: what its conditions say of writes that are refused, and that it is stalled; each with the reason first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

/// How a CollaSet brings its Pods to a revision.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutFacts {
    /// Revision of the Pod.
    pub revision: String,
    /// Revision of the present template; empty while it is not known.
    pub updated_revision: String,
    /// `spec.updateStrategy.podUpgradePolicy`.
    pub policy: String,
    /// Pods that stay on older revisions; absent where the Pods are chosen by label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<u32>,
    /// Seconds between `operate` and the change of a Pod.
    pub delay_seconds: u32,
    /// Whether it neither scales nor updates.
    pub paused: bool,
}

/// An operation in flight on a Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationFacts {
    /// Lifecycle ID.
    pub id: String,
    /// Type; empty where its label is missing.
    #[serde(rename = "type")]
    pub type_: String,
    /// PreCheck, Preparing, Operate, PostCheck or Completing.
    pub phase: &'static str,
    /// Since when it is in this phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// Since when the operator wants it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begun: Option<Timestamp>,
    /// What it waits for; all of it must come.
    pub waits_for: Vec<OperationWait>,
    /// What follows once it has.
    pub then: String,
}

/// Something that an operation waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationWait {
    /// What kind of thing.
    pub on: WaitKind,
    /// Its name: `object/rule`, a finalizer, a lifecycle ID; empty where there is none.
    pub name: String,
    /// In words.
    pub text: String,
}

/// What an operation can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WaitKind {
    /// A rule that holds it.
    Rule,
    /// Its turn: other Pods wait longer for the same budget.
    Turn,
    /// The lifecycle controller.
    Controller,
    /// The kubelet.
    Kubelet,
    /// A finalizer that a cooperator adds or takes off.
    Finalizer,
    /// Whoever began the operation.
    Operator,
    /// A delay that its owner asks for.
    Delay,
    /// Another operation on the same Pod.
    Operation,
    /// Something that a user must mend.
    User,
}

/// What a rule says to taking the Pod away now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RuleVerdict {
    /// It lets the Pod go.
    Passes,
    /// It holds the Pod.
    Holds,
    /// It is not asked about this Pod.
    NotApplying,
    /// That is not known yet.
    Unknown,
}

/// A rule that covers the Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleFacts {
    /// Name of the PodTransitionRule.
    pub object: String,
    /// Name of the rule in it; empty for the object as a whole.
    pub rule: String,
    /// `availablePolicy`, `labelCheck`, `webhook`, or empty if it is none of them.
    pub kind: &'static str,
    /// PreCheck or PostCheck.
    pub stage: &'static str,
    /// What it says.
    pub verdict: RuleVerdict,
    /// Why, in a sentence.
    pub reason: String,
    /// Of an availability rule: its budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetFacts>,
}

/// A PodDisruptionBudget that selects the Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DisruptionBudgetFacts {
    /// Name.
    pub name: String,
    /// Whether the API server refuses an eviction of the Pod by it now.
    pub holds: bool,
    /// Why, in a sentence.
    pub reason: String,
}

/// What the API server says to a dry-run deletion of the Pod. A dry-run goes through admission and writes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
pub enum DryRunDeletion {
    /// It would delete the Pod.
    Allowed,
    /// It refuses the deletion.
    Denied {
        /// HTTP status.
        code: u16,
        /// Its message, without the name of the webhook.
        message: String,
    },
    /// It refuses the deletion because it gets no answer from an admission webhook.
    Unanswered {
        /// Its message.
        message: String,
    },
    /// That is not known.
    NotChecked {
        /// Why.
        reason: String,
    },
}

impl DryRunDeletion {
    /// The outcome alone: the text of a denial carries ages.
    pub fn without_text(self) -> DryRunDeletion {
        match self {
            DryRunDeletion::Denied { code, .. } => DryRunDeletion::Denied {
                code,
                message: String::new(),
            },
            other => other,
        }
    }

    /// What the API server's answer means. `code` is the HTTP status, and `message` the one of its `Status`.
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

/// Whether the API server could not reach a webhook of this server, and not one of somebody else.
fn is_own_webhook_failure(message: &str) -> bool {
    let failed = message.split_once("failed calling webhook \"");
    let name = failed.and_then(|(_, rest)| rest.split_once('"'));
    let name = name.and_then(|(name, _)| name.strip_suffix(keys::GROUP));
    name.is_some_and(|name| name.ends_with('.'))
}

/// The budget of an availability rule, as the rule's status has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetFacts {
    /// Pods that should be there and are not, are not available, or are on their way by a claim.
    pub used: u32,
    /// How many may be.
    pub limit: u32,
    /// How many should be there.
    pub expected: u32,
    /// How many more may go now.
    pub allowed: u32,
    /// Set if `minAvailableValue` gives the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum: Option<BindingMinimum>,
    /// Pods that use it up, the longest first, at most ten.
    pub holders: Vec<HolderFacts>,
    /// How many more use it up than are listed: missing Pods, and those that are ending.
    pub unlisted: u32,
    /// Pods that wait for it in PreCheck, and for no other rule of the object.
    pub waiting: u32,
    /// How many of them wait longer than this Pod; absent unless it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u32>,
    /// Of these the one that waits the longest; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
}

/// A Pod that uses a budget up.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HolderFacts {
    /// Name.
    pub pod: String,
    /// Since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// By what: a claim, an operation, or what its unavailability comes from.
    pub because: String,
}

/// A claim of the Pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimFacts {
    /// Name of the PodTransitionRule.
    pub object: String,
    /// Delete, Evict, Begin, InPlace or Leave.
    pub operation: String,
    /// Since when, by the clock of the replica that gave it.
    pub since: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn api_refusals_map_to_dry_run_outcomes() {
        let held = "admission webhook \"pod-delete.apps.kusionstack.io\" denied the request: Pod web-0 is held";
        let denied = DryRunDeletion::Denied {
            code: 429,
            message: "Pod web-0 is held".to_owned(),
        };
        assert_eq!(DryRunDeletion::from_api_refusal(429, held), denied);
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
