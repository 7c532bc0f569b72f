//! OperationJob: an operation on a fixed list of Pods (contract 1.5).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::labels::{dns_name_problem, value_problem};
use super::{lenient, schema};

/// The operation and its target Pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "OperationJob",
    plural = "operationjobs",
    shortname = "opj",
    category = "all",
    namespaced,
    status = "OperationJobStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "OperationJob performs one operation on a fixed list of Pods.",
    printcolumn = r#"{"name":"ACTION","type":"string","jsonPath":".spec.action"}"#,
    printcolumn = r#"{"name":"PROGRESS","type":"string","jsonPath":".status.progress"}"#,
    printcolumn = r#"{"name":"TARGETS","type":"integer","jsonPath":".status.totalPodCount"}"#,
    printcolumn = r#"{"name":"SUCCEEDED","type":"integer","jsonPath":".status.succeededPodCount"}"#,
    printcolumn = r#"{"name":"FAILED","type":"integer","jsonPath":".status.failedPodCount"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct OperationJobSpec {
    #[allow(rustdoc::invalid_html_tags)] // the text is that of the CustomResourceDefinition
    /// Operation on each target: Replace, Restart, or <domain>/<name> for the action of another program. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// Pods to operate on, in this order. Immutable.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub targets: Vec<Target>,
    /// Number of targets that are operated on; all when absent. Targets that have begun count first, then the others
    /// in their order. It may be raised, never lowered.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Seconds to wait before a target is operated on: after the lifecycle allows it, or for Replace after the target
    /// has begun.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
    /// Seconds that a target may take before it counts as failed; 10800 when absent.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i32>,
    /// Seconds after which a finished job is deleted; 1800 when absent.
    #[schemars(range(min = 1))]
    #[serde(
        rename = "TTLSecondsAfterFinished",
        skip_serializing_if = "Option::is_none"
    )]
    pub ttl_seconds_after_finished: Option<i32>,
}

lenient::absent_is_default!(OperationJobSpec);

/// Operation on each target: `Replace`, `Restart`, or the action of another program as `<domain>/<name>`. Any text can be
/// stored in an object of an older version, so any text is read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Action(pub String);

impl Action {
    /// Replaces the Pod with a new Pod.
    pub const REPLACE: &'static str = "Replace";
    /// Restarts the containers.
    pub const RESTART: &'static str = "Restart";

    /// The domain and the name of an action that another program carries out. The name is at most 63 characters long,
    /// because it is the value of a label.
    pub fn third_party(&self) -> Option<(&str, &str)> {
        let (domain, name) = self.0.split_once('/')?;
        let is_valid =
            dns_name_problem(domain).is_none() && value_problem(name).is_none() && !name.is_empty();
        is_valid.then_some((domain, name))
    }

    /// Whether an action of this text can be carried out.
    pub fn is_known(&self) -> bool {
        [Self::REPLACE, Self::RESTART].contains(&&*self.0) || self.third_party().is_some()
    }
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Action {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Action".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let domain = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?";
        let name = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";
        schemars::json_schema!({
            "type": "string",
            "maxLength": 317, // a domain of 253 characters, a slash, and a name of 63
            "pattern": format!("^(Replace|Restart|{domain}/{name})$"),
        })
    }
}

/// A Pod to operate on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Target {
    /// Name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Names of the containers to operate on; all when absent.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub containers: Vec<String>,
}

/// Progress of the job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OperationJobStatus {
    /// Generation that this status describes.
    pub observed_generation: i64,
    /// Standard conditions.
    #[schemars(schema_with = "schema::conditions")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<Condition>,
    /// Pending, Processing, Failed or Succeeded.
    #[schemars(schema_with = "schema::text")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Time at which the controller first saw the job.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_time: Option<Time>,
    /// Time at which all targets were finished.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_time: Option<Time>,
    /// Number of targets.
    pub total_pod_count: i32,
    /// Targets that succeeded.
    pub succeeded_pod_count: i32,
    /// Targets that failed.
    pub failed_pod_count: i32,
    /// One entry per target.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub target_details: Vec<TargetDetail>,
}

lenient::string_enum! {
    /// Phase of a job or a target.
    pub enum Progress {
        /// Not begun.
        Pending,
        /// Begun.
        Processing,
        /// Ended without success.
        Failed,
        /// Ended with success.
        Succeeded,
    }
}

impl Progress {
    /// Whether a job or a target with this progress has ended.
    pub fn is_final(&self) -> bool {
        matches!(self, Progress::Succeeded | Progress::Failed)
    }
}

/// Progress of one target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetDetail {
    /// Name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Pending, Processing, Failed or Succeeded.
    #[schemars(schema_with = "schema::text")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Time at which the target was selected; its deadline counts from here.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub start_time: Option<Time>,
    /// Time at which the operation ended.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub end_time: Option<Time>,
    /// Data that the action stores, such as NewPod.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub extra_info: BTreeMap<String, String>,
    /// Why the target failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<TargetError>,
}

/// Why a target failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TargetError {
    /// Reason in CamelCase, such as PodNotFound.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

// Admission checks that the names are unique. In CEL, comparing every name with every other name exceeds the
// cost limit for a list without a bound, and a bound would break large jobs. Comparisons with oldSelf pass
// without further conditions while nothing is changed.
fn spec_rules() -> serde_json::Value {
    schema::join([
        schema::forgiving_rules(&[
            (
                "has({}.action) && {}.action != ''",
                "action is required: set it to Replace, Restart, or <domain>/<name> for the action of another program",
            ),
            (
                "has({}.targets) && size({}.targets) > 0",
                "targets is required: list the Pods to operate on, each by name",
            ),
        ]),
        schema::rules(&[
            (
                "!has(oldSelf.action) || (has(self.action) && self.action == oldSelf.action)",
                "action is immutable: create another OperationJob for another action",
            ),
            (
                "!has(oldSelf.targets) || (has(self.targets) && self.targets == oldSelf.targets)",
                "targets is immutable: create another OperationJob for other Pods",
            ),
            (
                "!has(self.partition) || (has(oldSelf.partition) && self.partition >= oldSelf.partition)",
                "partition may not decrease, and absent means all: Pods beyond it may have been operated already",
            ),
        ]),
    ])
}
