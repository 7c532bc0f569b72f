//! What the controller reports of a PodTransitionRule.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Ledger, ledger};
use crate::api::{lenient, schema};

/// What the controller last saw, and the claims that admission has granted.
// Lists are written even when empty, so that a merge patch of the status empties them. What does not fit the types is
// dropped where it only informs: the next write of the status replaces it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodTransitionRuleStatus {
    /// Generation that this status speaks of.
    #[serde(deserialize_with = "lenient::fitting")]
    pub observed_generation: i64,
    /// When the status last changed.
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
    /// Pods that should exist: replicas of the workloads behind the selected Pods, and Pods without a workload.
    #[serde(deserialize_with = "lenient::fitting")]
    pub expected_pods: i32,
    /// Selected Pods that are available and hold no claim.
    #[serde(deserialize_with = "lenient::fitting")]
    pub available_pods: i32,
    /// Expected Pods that are not available.
    #[serde(deserialize_with = "lenient::fitting")]
    pub unavailable_pods: i32,
    /// Most Pods that may be unavailable at once, over all rules. Absent where nothing limits them: no rule with
    /// availablePolicy, no Pods, or a namespace that is not enforced.
    #[serde(
        deserialize_with = "lenient::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub unavailable_limit: Option<i32>,
    /// Pods that may become unavailable now. Absent where unavailableLimit is.
    #[serde(
        deserialize_with = "lenient::fitting",
        skip_serializing_if = "Option::is_none"
    )]
    pub disruptions_allowed: Option<i32>,
    /// Pods that wait for permission.
    #[serde(deserialize_with = "lenient::fitting")]
    pub waiting_pods: i32,
    /// Claims that admission has granted and whose effect is not yet seen.
    #[serde(
        deserialize_with = "ledger::read",
        skip_serializing_if = "Option::is_none"
    )]
    pub ledger: Option<Ledger>,
    /// Names of the selected Pods in any phase, sorted: the first 100, at most 32 KiB of them. The field selectedPods counts
    /// all.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub targets: Vec<String>,
    /// Selected Pods in any phase, also those that targets leaves out. An addition of Operating's: Kuperator lists all Pods
    /// in targets and has no such field.
    #[serde(deserialize_with = "lenient::fitting")]
    pub selected_pods: i32,
    /// Pods that are in a stage now, sorted by name, at most 100 and at most 32 KiB of them. The field waitingPods counts
    /// all that wait in PreCheck.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub details: Vec<Detail>,
    /// What the Pods in a stage wait for, the most frequent first, at most 20 reasons and 4 KiB; empty unless details leaves
    /// Pods out. All Pods in a stage are counted, and a Pod that waits for several things counts at each. An addition of
    /// Operating's.
    #[serde(deserialize_with = "lenient::fitting_items")]
    pub wait_reasons: Vec<WaitReason>,
    /// What rules remember from one evaluation to the next.
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
    /// Whether all rules of the stage are passed.
    pub passed: bool,
    /// Names of the rules that are passed.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub passed_rules: Vec<String>,
    /// The rules that refuse.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub reject_info: Vec<RejectInfo>,
}

/// How many Pods wait for the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitReason {
    /// PreCheck or PostCheck; absent where reasons are summed up.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stage: String,
    /// Name of the rule; absent for what no single rule says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_name: String,
    /// Why, in a sentence, in which an asterisk stands for the name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// How many Pods.
    pub pods: i32,
}

/// A rule that refuses a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RejectInfo {
    /// Name of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rule_name: String,
    /// ID of the operation that this is about, where several on the Pod wait in the stage and an endpoint has answered each on
    /// its own. An addition of Operating's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub operation: String,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// What a rule remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleState {
    /// Name of the rule.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Of a webhook rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_status: Option<WebhookStatus>,
}

/// Tasks and answers of a webhook rule. All lists are sorted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookStatus {
    /// Generation of the object when this was written.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Hash of the webhook rule that the rest speaks of; under another one nothing of it counts. Where it is absent, nothing
    /// counts under another generation.
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
    /// Tasks that ended lately.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub history: Vec<TaskInfo>,
    /// Why the last call or poll failed; absent after one that was answered.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub failing: String,
    /// Whether Pods have passed by failurePolicy Ignore since a call was answered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub passed_unanswered: bool,
    /// What is wrong with the rule though its endpoint answers.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub warning: String,
    /// What is not listed here, since all ruleStates of an object take at most 256 KiB.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub omitted: String,
}

impl WebhookStatus {
    /// Whether this was written about a rule with this hash, which is part of an object of this generation.
    pub fn is_current_for(&self, rule_hash: &str, generation: i64) -> bool {
        match self.rule_hash.as_str() {
            "" => self.generation == generation,
            hash => hash == rule_hash,
        }
    }
}

/// One operation on one Pod that an endpoint is asked about. An answer counts for this operation only.
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

/// A long check at an endpoint; in the history also a call that failed and was ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TaskInfo {
    /// ID that the endpoint gave.
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
    /// What the names in `processing` stand for.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pods: Vec<AskedPod>,
    /// When the task began.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub begin_time: Option<Time>,
    /// When the endpoint last said something new.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_time: Option<Time>,
    /// What the endpoint said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn is_zero(number: &i64) -> bool {
    *number == 0
}
