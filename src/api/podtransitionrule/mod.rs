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
    printcolumn = r#"{"name":"WAITING","type":"integer","jsonPath":".status.waitingPods","description":"Pods that wait for permission"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct PodTransitionRuleSpec {
    /// The Pods of this namespace that the rules hold for; an empty selector selects all.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// The rules; a Pod passes when it passes all that apply to it.
    #[schemars(length(max = MAX_RULES), extend("x-kubernetes-validations" = schema::rules(LIST_RULES)))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub rules: Vec<Rule>,
    /// The field that keeps this version from reading the spec, if one does. Then there are no rules, and the selector is
    /// there only if it could be read.
    #[serde(skip)]
    pub unreadable: Option<UnreadableRule>,
}

/// Seconds between two polls where a rule does not say.
pub const POLL_INTERVAL_SECONDS: i64 = 5;
/// Seconds after which polling is given up where a rule does not say.
pub const POLL_TIMEOUT_SECONDS: i64 = 60;
/// Most rules that one object may carry: it bounds what the schema's own rules cost.
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
    /// When Pods are judged: before an operation (PreCheck) or after it (PostCheck); PreCheck when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// Names of conditions under which the rule applies. None are known: leave it empty.
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
    /// Asks an HTTP endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookRule>,
}

impl Rule {
    /// The stage that the rule belongs to: PreCheck unless it says otherwise.
    pub fn effective_stage(&self) -> Stage {
        self.stage.clone().unwrap_or(Stage::PreCheck)
    }
}

lenient::string_enum! {
    /// When Pods are judged.
    pub enum Stage {
        /// Before an operation begins.
        PreCheck,
        /// After it, before traffic returns.
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
    /// Most Pods that may be unavailable: a count, or a percentage such as 30% of the expected Pods, rounded up.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_unavailable_value: Option<IntOrString>,
    /// Fewest Pods that must be available: a count, or a percentage such as 70% of the expected Pods, rounded down.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub min_available_value: Option<IntOrString>,
    /// Whether Pods that run and are not available may be deleted and evicted: always (AlwaysAllow), or only while as many
    /// are available as must be (IfHealthyBudget), as in a PodDisruptionBudget; AlwaysAllow when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unhealthy_pod_policy: Option<UnhealthyPodPolicy>,
    /// Accepted and without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_unavailable_policy: Option<AdaptivePolicy>,
    /// Accepted and without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_available_policy: Option<AdaptivePolicy>,
}

lenient::string_enum! {
    /// Whether Pods that run and are not available may be deleted and evicted.
    pub enum UnhealthyPodPolicy {
        /// Whatever the budget.
        AlwaysAllow,
        /// While as many Pods are available as must be.
        IfHealthyBudget,
    }
}

/// A limit that follows the number of Pods.
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

/// Asks an HTTP endpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WebhookRule {
    /// Where the endpoint is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_config: Option<ClientConfig>,
    /// What a failing endpoint means: Ignore lets Pods pass, Fail keeps them waiting; Fail when absent. An Ignore that Kuperator has
    /// stored keeps them waiting, as it did there, until the object is annotated with
    /// operating.kusionstack.io/ignores-failures and the name of the rule, as each Ignore that is written anew is by the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_policy: Option<FailurePolicy>,
    /// Facts about each Pod that are sent along.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub parameters: Vec<Parameter>,
}

lenient::string_enum! {
    /// What a failing endpoint means.
    pub enum FailurePolicy {
        /// Pods pass.
        Ignore,
        /// Pods wait.
        Fail,
    }
}

/// Where an endpoint is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["url"]))]
pub struct ClientConfig {
    /// http or https URL.
    #[schemars(schema_with = "url")]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Base64 of the PEM certificates that the endpoint is checked against; the system's when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_bundle: String,
    /// Where the outcome of a long check is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
}

/// Where the outcome of a long check is asked for.
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
    /// Base64 of the PEM certificates that the endpoint is checked against; the system's when empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ca_bundle: String,
    /// Seconds between two polls; 5 when absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_seconds: Option<i64>,
    /// Seconds after which polling is given up; 60 when absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
}

/// A fact about each Pod that is sent along.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Parameter {
    /// Name of the parameter.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Literal value; it wins over valueFrom.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Where the value is taken from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ParameterSource>,
}

/// Where a value is taken from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ParameterSource {
    /// Without effect.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// A field of the Pod, such as status.podIP. Containers, volumes and the states of containers may contain secrets and
    /// are not sent; a rule that was stored with such a path sends an empty value.
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
