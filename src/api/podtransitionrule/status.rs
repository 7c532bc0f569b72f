//! Status of a PodTransitionRule. Every replica writes the ledger, at admission; the leader writes everything else.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Ledger, ledger};
use crate::api::{lenient, schema};

/// State that the controller last observed, and the claims that admission has granted.
// Lists are written even when empty, so that a merge patch of the status empties them. Informational values
// that do not fit the types are dropped: the next write of the status replaces them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTransitionRuleStatus {
    /// Generation that this status describes.
    #[serde(deserialize_with = "lenient::fitting")]
    pub observed_generation: i64,
    /// Time at which the status last changed.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub update_time: Option<Time>,
    /// Standard conditions.
    #[schemars(schema_with = "schema::conditions")]
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub conditions: Vec<Condition>,
    /// Number of Pods that should exist: replicas of the workloads that own the selected Pods, and Pods
    /// without a workload.
    #[serde(deserialize_with = "lenient::fitting")]
    pub expected_pods: i32,
    /// Number of selected Pods that are available and hold no claim.
    #[serde(deserialize_with = "lenient::fitting")]
    pub available_pods: i32,
    /// Number of expected Pods that are not available.
    #[serde(deserialize_with = "lenient::fitting")]
    pub unavailable_pods: i32,
    /// Maximum number of Pods that may be unavailable at once, over all rules. Absent if there is no limit:
    /// no rule has availablePolicy, there are no Pods, or the namespace is not enforced.
    #[serde(
        deserialize_with = "lenient::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub unavailable_limit: Option<i32>,
    /// Number of Pods that may become unavailable now. Absent if unavailableLimit is absent.
    #[serde(
        deserialize_with = "lenient::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub disruptions_allowed: Option<i32>,
    /// Number of Pods that wait in PreCheck.
    #[serde(deserialize_with = "lenient::fitting")]
    pub waiting_pods: i32,
    /// Claims that admission has granted and whose effect is not yet observed.
    #[serde(
        deserialize_with = "ledger::read",
        skip_serializing_if = "Option::is_none"
    )]
    pub ledger: Option<Ledger>,
    /// Names of the selected Pods in any phase, sorted: the first 100, up to 32 KiB. The field selectedPods
    /// counts all of them.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub targets: Vec<String>,
    /// Number of selected Pods in any phase, including those that targets omits. Only Operating has this
    /// field: Kuperator lists all Pods in targets.
    #[serde(deserialize_with = "lenient::fitting")]
    pub selected_pods: i32,
    /// Pods that are in a stage now, sorted by name, up to 100 Pods and 32 KiB. The field waitingPods counts
    /// all Pods that wait in PreCheck.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub details: Vec<Detail>,
    /// Reasons for which the Pods in a stage wait, the most frequent first, up to 20 reasons and 4 KiB; empty
    /// unless details omits Pods. All Pods in a stage are counted, and a Pod that waits for several reasons
    /// counts for each. Only Operating has this field.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub wait_reasons: Vec<WaitReason>,
    /// State that rules keep between evaluations.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub rule_states: Vec<RuleState>,
}

/// A Pod that is in a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["passed"]))]
pub struct Detail {
    /// Name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// PreCheck or PostCheck.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Whether the Pod passes all rules of the stage.
    pub passed: bool,
    /// Names of the rules that the Pod passes.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub passed_rules: Vec<String>,
    /// Rules that refuse the Pod.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reject_info: Vec<RejectInfo>,
}

/// Number of Pods that wait for the same reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitReason {
    /// PreCheck or PostCheck; absent if the entry sums up several reasons.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Name of the rule; absent if the reason belongs to no single rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_name: String,
    /// Explanation for people; an asterisk stands for the name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Number of Pods.
    pub pods: i32,
}

/// A rule that refuses a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectInfo {
    /// Name of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_name: String,
    /// ID of the refused operation, if several operations on the Pod wait in the stage and an endpoint has
    /// answered each of them separately. Only Operating has this field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Explanation for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// State of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// Name of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// State of a webhook rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_status: Option<WebhookStatus>,
}

/// Tasks and answers of a webhook rule. All lists are sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookStatus {
    /// Generation of the object at the time of writing.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Hash of the webhook rule that this state describes; under another hash the state is void. If the hash
    /// is absent, the state is void under another generation.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub rule_hash: String,
    /// Operations on Pods that the endpoint has let pass, and that still wait.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub passed: Vec<AskedPod>,
    /// Tasks in progress.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub task_states: Vec<TaskInfo>,
    /// Tasks that ended recently.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub history: Vec<TaskInfo>,
    /// Reason why the last call or poll failed; absent after an answer.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub failing: String,
    /// Whether Pods have passed by failurePolicy Ignore since the endpoint last answered a call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub passed_unanswered: bool,
    /// Problem of the rule although its endpoint answers.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub warning: String,
    /// Summary of the entries that are left out, since all ruleStates of an object take at most 256 KiB.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub omitted: String,
}

impl WebhookStatus {
    /// Whether this state was written for the rule with this hash, in an object of this generation.
    pub fn is_current_for(&self, rule_hash: &str, generation: i64) -> bool {
        match self.rule_hash.as_str() {
            "" => self.generation == generation,
            hash => hash == rule_hash,
        }
    }
}

/// An operation on a Pod about which an endpoint is asked. An answer is valid for this operation only.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct AskedPod {
    /// Name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// UID of the Pod.
    #[serde(rename = "podUID", skip_serializing_if = "String::is_empty")]
    pub pod_uid: String,
    /// ID of the lifecycle.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Value of the label by which the operation waits in the stage of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub since: String,
}

/// A long check at an endpoint. In the history also a failed call that was ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskInfo {
    /// ID that the endpoint returned.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub task_id: String,
    /// Names of Pods without an answer yet.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub processing: Vec<String>,
    /// Names of Pods that passed.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub approved: Vec<String>,
    /// Operations to which the names in processing belong.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pods: Vec<AskedPod>,
    /// Time at which the task began.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub begin_time: Option<Time>,
    /// Time at which the endpoint last answered with a new state.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_time: Option<Time>,
    /// Message of the endpoint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}
