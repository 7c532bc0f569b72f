//! PodTransitionRule: conditions under which Pods may enter or leave an operation (contract 1.3).

mod kind;
mod ledger;
mod lenient_spec;
mod status;

use k8s_openapi::api::core::v1::ObjectFieldSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use kind::Kind;
pub use ledger::{Claim, ClaimedContainer, Ledger, UnknownFields};
pub use lenient_spec::{UnreadableRule, read_rule_by_parts};
pub use status::{
    AskedPod, Detail, PodTransitionRuleStatus, RejectInfo, RuleState, TaskInfo, WaitReason,
    WebhookStatus,
};

use super::{lenient, schema};

/// Rules for a set of Pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "PodTransitionRule",
    plural = "podtransitionrules",
    shortname = "ptr",
    category = "all",
    namespaced,
    status = "PodTransitionRuleStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "PodTransitionRule says under which conditions Pods may be disrupted; it is enforced at admission.",
    printcolumn = r#"{"name":"ENFORCED","type":"string","jsonPath":".status.conditions[?(@.type==\"Enforced\")].status","description":"Whether the rules are held; the condition Enforced says why not"}"#,
    printcolumn = r#"{"name":"MATCHED","type":"string","jsonPath":".status.conditions[?(@.type==\"Matched\")].status","description":"Whether the rules select managed Pods; the condition Matched says why not"}"#,
    printcolumn = r#"{"name":"ALLOWED","type":"integer","jsonPath":".status.disruptionsAllowed","description":"Pods that may become unavailable now"}"#,
    printcolumn = r#"{"name":"UNAVAILABLE","type":"integer","jsonPath":".status.unavailablePods","description":"Pods that are missing, unavailable or about to be"}"#,
    printcolumn = r#"{"name":"LIMIT","type":"integer","jsonPath":".status.unavailableLimit","description":"Most Pods that may be unavailable at once"}"#,
    printcolumn = r#"{"name":"WAITING","type":"integer","jsonPath":".status.waitingPods","description":"Pods that wait in PreCheck"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct PodTransitionRuleSpec {
    /// Pods of this namespace to which the rules apply; an empty selector selects all.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The rules; a Pod passes when it passes all rules that apply to it.
    #[schemars(length(max = MAX_RULES), extend("x-kubernetes-validations" = schema::rules(LIST_RULES)))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub rules: Vec<Rule>,
    /// The field because of which this version cannot read the spec, if there is one. Then `rules` is empty,
    /// and the selector is present only if it could be read.
    #[serde(skip)]
    pub unreadable: Option<UnreadableRule>,
}

/// Seconds between two polls if the rule has no interval.
pub const POLL_INTERVAL_SECONDS: i64 = 5;
/// Seconds after which the server gives up polling if the rule has no timeout.
pub const POLL_TIMEOUT_SECONDS: i64 = 60;
/// Maximum number of rules of one object. It limits the cost of the CEL rules in the schema.
pub const MAX_RULES: usize = 64;

/// One rule: exactly one of availablePolicy, labelCheck and webhook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(RULE_RULES)))]
pub struct Rule {
    /// Name, unique among the rules.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Skips the rule.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disabled: bool,
    /// Stage in which the rule is evaluated: before an operation (PreCheck) or after it (PostCheck); PreCheck
    /// when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Names of conditions under which the rule applies. No condition is defined: leave the list empty.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<String>,
    /// Limits the rule to some of the selected Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Filter>,
    /// Limits how many Pods are unavailable at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available_policy: Option<AvailablePolicy>,
    /// Requires labels of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_check: Option<LabelCheck>,
    /// Calls an HTTP endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookRule>,
}

impl Rule {
    /// The stage of the rule; PreCheck when absent.
    pub fn effective_stage(&self) -> Stage {
        self.stage.clone().unwrap_or(Stage::PreCheck)
    }
}

lenient::string_enum! {
    /// Stage in which a rule is evaluated.
    pub enum Stage {
        /// Before an operation begins.
        PreCheck,
        /// After the operation, before traffic returns.
        PostCheck,
    }
}

/// Limits a rule to some of the selected Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Filter {
    /// The Pods that the rule applies to; all when absent.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

/// Limits how many Pods are unavailable at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(AVAILABLE_RULES)))]
pub struct AvailablePolicy {
    /// Maximum number of unavailable Pods: a count, or a percentage such as 30% of the expected Pods, rounded
    /// up.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_unavailable_value: Option<IntOrString>,
    /// Minimum number of available Pods: a count, or a percentage such as 70% of the expected Pods, rounded
    /// down.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub min_available_value: Option<IntOrString>,
    /// Whether running Pods that are not available may be deleted and evicted: always (AlwaysAllow), or only
    /// while enough Pods are available (IfHealthyBudget), as in a PodDisruptionBudget; AlwaysAllow when
    /// absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_pod_policy: Option<UnhealthyPodPolicy>,
    /// Accepted, but has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable_policy: Option<AdaptivePolicy>,
    /// Accepted, but has no effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available_policy: Option<AdaptivePolicy>,
}

lenient::string_enum! {
    /// Whether running Pods that are not available may be deleted and evicted.
    pub enum UnhealthyPodPolicy {
        /// Always.
        AlwaysAllow,
        /// While the number of available Pods is at least the required number.
        IfHealthyBudget,
    }
}

/// A limit that depends on the number of Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AdaptivePolicy {
    /// coeff * x ^ pow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exp_func: Option<ExpFunc>,
}

/// coeff * x ^ pow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExpFunc {
    /// Coefficient, decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coeff: Option<String>,
    /// Power, decimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pow: Option<String>,
}

/// Requires labels of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["requires"]))]
pub struct LabelCheck {
    /// The labels that the Pod must match.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<LabelSelector>,
}

/// Calls an HTTP endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookRule {
    /// Address of the endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_config: Option<ClientConfig>,
    /// Effect of a failing endpoint: Ignore lets Pods pass, Fail makes them wait; Fail when absent. An Ignore
    /// that Kuperator stored makes them wait, as it did under Kuperator, unless the annotation
    /// operating.kusionstack.io/ignores-failures of the object names the rule. The server adds the name for
    /// each Ignore that is newly written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Parameters about each Pod that are sent along.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub parameters: Vec<Parameter>,
}

lenient::string_enum! {
    /// Effect of a failing endpoint.
    pub enum FailurePolicy {
        /// Pods pass.
        Ignore,
        /// Pods wait.
        Fail,
    }
}

/// Address of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["url"]))]
pub struct ClientConfig {
    /// http or https URL.
    #[schemars(schema_with = "url")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Base64 of the PEM certificates that verify the endpoint; those of the system when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_bundle: String,
    /// Address for polling the result of a long check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// Address for polling the result of a long check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["url"]))]
pub struct Poll {
    /// http or https URL.
    #[schemars(schema_with = "url")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Query parameter that carries the task ID; task-id when absent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub raw_query_key: String,
    /// Base64 of the PEM certificates that verify the endpoint; those of the system when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_bundle: String,
    /// Seconds between two polls; 5 when absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    /// Seconds after which the server gives up polling; 60 when absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
}

/// A parameter about each Pod that is sent along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameter {
    /// Name of the parameter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Literal value; it takes precedence over valueFrom.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Source of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ParameterSource>,
}

/// Source of a value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParameterSource {
    /// Has no effect.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// A field of the Pod, such as status.podIP. Containers, volumes and the states of containers may contain
    /// secrets and are not sent. A rule that is already stored with such a path sends an empty value.
    #[schemars(schema_with = "schema::field_ref")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field_ref: Option<ObjectFieldSelector>,
}

fn url(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "string",
        "maxLength": 2048,
        "x-kubernetes-validations": schema::rules(&[(
            "isURL(self) && url(self).getScheme() in ['http', 'https'] && url(self).getHost() != ''",
            "must be an http or https URL with a host, such as https://check.example.com/pods",
        )]),
    })
}

const LIST_RULES: &[(&str, &str)] = &[(
    "self.all(r, !has(r.name) || self.exists_one(s, has(s.name) && s.name == r.name))",
    "two rules have the same name: give each rule a name of its own, since skip annotations and reports refer to it",
)];

const RULE_RULES: &[(&str, &str)] = &[
    (
        "has(self.name) && self.name != ''",
        "name is required: skip annotations and reports refer to the rule by it",
    ),
    (
        "[has(self.availablePolicy), has(self.labelCheck), has(self.webhook)].exists_one(kind, kind)",
        "exactly one of availablePolicy, labelCheck and webhook is required: split a rule that has several, \
         complete one that has none",
    ),
    (
        "!has(self.conditions) || size(self.conditions) == 0",
        "conditions must be empty: no condition is known; use filter.labelSelector to limit the rule to some Pods",
    ),
];

const AVAILABLE_RULES: &[(&str, &str)] = &[(
    "has(self.maxUnavailableValue) || has(self.minAvailableValue)",
    "maxUnavailableValue or minAvailableValue is required: set one to a count such as 3 or a percentage such as 30%",
)];

fn spec_rules() -> serde_json::Value {
    schema::forgiving_rules(&[(
        "has({}.selector)",
        "selector is required: set it to {} to select every Pod of the namespace",
    )])
}
