//! OperationJob: an operation on a fixed list of Pods (contract 1.5).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{lenient, schema};

/// The operation and its target Pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "OperationJob",
    plural = "operationjobs",
    shortname = "opj",
    namespaced,
    status = "OperationJobStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "OperationJob performs one operation on a fixed list of Pods.",
    printcolumn = r#"{"name":"PROGRESS","type":"string","jsonPath":".status.progress"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct OperationJobSpec {
    /// Operation on each target. Immutable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// Pods to operate on, in this order. Immutable.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub targets: Vec<Target>,
    /// Number of targets, counted from the first, that are operated on; all when absent. It may be raised,
    /// never lowered.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Seconds to wait after a Pod may be operated.
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

lenient::string_enum! {
    /// Operation on each target.
    pub enum Action {
        /// Restarts the containers.
        Restart,
        /// Replaces the Pod with a new Pod.
        Replace,
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
    /// Time at which the operation began.
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
                "action is required: set it to Replace",
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
                "!has(self.partition) || !has(oldSelf.partition) || self.partition >= oldSelf.partition",
                "partition may not decrease: Pods beyond it may have been operated already",
            ),
        ]),
    ])
}
