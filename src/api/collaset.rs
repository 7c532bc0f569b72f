//! CollaSet: a set of Pods that the controller updates and scales through the lifecycle (contract 1.1 and
//! contract 1.2).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lenient, schema};

/// The wanted Pods.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "CollaSet",
    plural = "collasets",
    shortname = "cls",
    category = "all",
    namespaced,
    status = "CollaSetStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "CollaSet keeps a set of Pods that are updated and scaled through the Pod operation lifecycle.",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.labelSelector"
    ),
    printcolumn = r#"{"name":"DESIRED","type":"integer","jsonPath":".spec.replicas"}"#,
    printcolumn = r#"{"name":"CURRENT","type":"integer","jsonPath":".status.replicas"}"#,
    printcolumn = r#"{"name":"AVAILABLE","type":"integer","jsonPath":".status.availableReplicas"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedReplicas"}"#,
    printcolumn = r#"{"name":"UPDATED-READY","type":"integer","jsonPath":".status.updatedReadyReplicas"}"#,
    printcolumn = r#"{"name":"UPDATED-AVAILABLE","type":"integer","jsonPath":".status.updatedAvailableReplicas"}"#,
    printcolumn = r#"{"name":"CURRENT-REVISION","type":"string","jsonPath":".status.currentRevision"}"#,
    printcolumn = r#"{"name":"UPDATED-REVISION","type":"string","jsonPath":".status.updatedRevision"}"#,
    printcolumn = r#"{"name":"READY","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"REASON","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"PAUSED","type":"boolean","jsonPath":".spec.paused"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct CollaSetSpec {
    /// Pauses scaling and updating. The CollaSet still includes the Pods of podToInclude, releases the Pods
    /// of podToExclude, and recreates Pods that end or are deleted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// Number of Pods; 0 when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Selects the Pods; it must match the labels of the template.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Template of the Pods.
    #[schemars(schema_with = "schema::any")]
    #[serde(skip_serializing_if = "Value::is_null")]
    pub template: Value,
    /// PersistentVolumeClaims created for each Pod; the name of each is the name of a volume.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_claim_templates: Vec<Value>,
    /// How a change of the template is rolled out to the Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Which Pods are scaled, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    /// How Pods are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naming_strategy: Option<NamingStrategy>,
    /// Number of unused revisions that are retained; 20 when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<i32>,
    /// Seconds for which a Pod must have been Ready without interruption before it counts as available; 0
    /// when absent. A change of this field creates no new revision.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Seconds without progress after which the condition Stalled is True; no deadline when absent. The time
    /// does not run while all remaining work waits for a PodTransitionRule or for a pause.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

lenient::absent_is_default!(CollaSetSpec);

/// How a change of the template is rolled out to the Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// Whether Pods are changed in place, recreated or replaced; InPlaceIfPossible when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_upgrade_policy: Option<PodUpgradePolicy>,
    /// Which Pods are updated; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
    /// Seconds to wait after a Pod may be operated.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
    /// Maximum number of Pods that an update may make unavailable, in addition to the limits of the rules: a
    /// count, or a percentage such as 30% of the replicas, rounded down, at least 1. No limit when absent.
    /// With Replace, the update makes no Pod unavailable.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_unavailable: Option<IntOrString>,
    /// Maximum number of Pods beyond the replicas while an update replaces Pods: a count, or a percentage
    /// such as 30% of the replicas, rounded up. No limit when absent. Pods that are replaced because of the
    /// label to-replace don't count.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_surge: Option<IntOrString>,
}

lenient::string_enum! {
    /// How one Pod is updated.
    pub enum PodUpgradePolicy {
        /// The Pod is deleted and created again.
        Recreate,
        /// The Pod is changed in place if the change allows this; otherwise it is recreated.
        InPlaceIfPossible,
        /// The Pod is only changed in place.
        InPlaceOnly,
        /// A new Pod is created before the old Pod is deleted.
        Replace,
    }
}

/// Which Pods are updated; byLabel wins when both are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// All Pods except a number of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_partition: Option<ByPartition>,
    /// Only Pods with the label collaset.kusionstack.io/update-included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_label: Option<ByLabel>,
    /// Key of a label whose value is a number. Pods with a larger number are updated first, Pods without the
    /// label last.
    #[schemars(length(max = 317))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_label: String,
    /// Steps of a rollout, taken in order. After the last step, all Pods are updated except those that
    /// byPartition excludes. The annotation collaset.kusionstack.io/rollout promotes or aborts the rollout.
    /// Not allowed together with byLabel.
    #[schemars(length(max = 64))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub steps: Vec<RolloutStep>,
}

/// One step of a rollout: a partition or a pause.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(STEP_RULES)))]
pub struct RolloutStep {
    /// Number of Pods that stay on older revisions during this step: a count, or a percentage such as 90% of
    /// the replicas, rounded up; below 100%, at least one Pod is updated. The step ends when all other Pods
    /// are updated and available.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub partition: Option<IntOrString>,
    /// Waits for a time, or until the rollout is promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<RolloutPause>,
}

/// A pause of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPause {
    /// Minimum duration, such as 90s, 10m or 1h30m. The pause continues while updated Pods are not available.
    /// When absent, the pause lasts until the rollout is promoted.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
}

/// All Pods except a number of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ByPartition {
    /// Number of Pods that stay on older revisions; 0 when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// The same as a percentage of the replicas, rounded up; below 100%, at least one Pod is updated.
    #[schemars(range(min = 0, max = 100))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_percent: Option<i32>,
}

/// Only Pods with the label collaset.kusionstack.io/update-included.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ByLabel {}

/// Which Pods are scaled, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(SCALE_RULES)))]
pub struct ScaleStrategy {
    /// Name of the ResourceContext used as the pool of instance IDs, a DNS subdomain name; the name of the CollaSet when absent.
    /// Immutable.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub context: String,
    /// Names of Pods to release from the CollaSet.
    #[schemars(schema_with = "pod_names")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_to_exclude: Vec<String>,
    /// Names of Pods to include in the CollaSet. The CollaSet recreates a Pod whose revision it does not
    /// know, as an update does, as soon as updateStrategy selects the Pod: at once, unless a partition or
    /// byLabel excludes it.
    #[schemars(schema_with = "pod_names")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_to_include: Vec<String>,
    /// Names of Pods to delete. Together with lower replicas, these are the Pods to scale in.
    #[schemars(schema_with = "pod_names")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_to_delete: Vec<String>,
    /// Whether PersistentVolumeClaims are retained or deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<PersistentVolumeClaimRetentionPolicy>,
    /// Seconds to wait after a Pod may be operated.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
}

/// Whether PersistentVolumeClaims are retained or deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimRetentionPolicy {
    /// When the CollaSet is deleted; Delete when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<RetentionPolicy>,
    /// When a Pod is scaled in; Delete when absent. The policy applies to all PVCs without a Pod: a change
    /// from Retain to Delete deletes the PVCs that were retained before. The PVCs of a Pod that is replaced
    /// are always deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_scaled: Option<RetentionPolicy>,
}

lenient::string_enum! {
    /// Whether a PersistentVolumeClaim is retained. Every value except Retain means Delete.
    pub enum RetentionPolicy {
        /// The PVC is retained.
        Retain,
        /// The PVC is deleted.
        Delete,
    }
}

/// How Pods are named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamingStrategy {
    /// The suffix that follows the name of the CollaSet; Random when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_naming_suffix_policy: Option<PodNamingSuffixPolicy>,
}

lenient::string_enum! {
    /// The suffix that follows the name of the CollaSet in the name of a Pod.
    pub enum PodNamingSuffixPolicy {
        /// A random suffix.
        Random,
        /// The instance ID, so that a recreated Pod has the same name.
        PersistentSequence,
    }
}

/// State that the controller last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetStatus {
    /// Generation that this status describes.
    pub observed_generation: i64,
    /// Selector of the Pods as text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// Stable revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Revision of the current template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// Hash collisions of revisions so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Active Pods, both halves of a replace pair included.
    pub replicas: i32,
    /// Pods that are scheduled to a node.
    pub scheduled_replicas: i32,
    /// Pods that are Ready.
    pub ready_replicas: i32,
    /// Pods that are available.
    pub available_replicas: i32,
    /// Pods of the updated revision.
    pub updated_replicas: i32,
    /// Ready Pods of the updated revision.
    pub updated_ready_replicas: i32,
    /// Available Pods of the updated revision.
    pub updated_available_replicas: i32,
    /// Pods in a lifecycle of this CollaSet.
    pub operating_replicas: i32,
    /// Pods that are being deleted.
    pub terminating_replicas: i32,
    /// Progress of a rollout in steps, and whether a rollout was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// Time of the last progress, while the time of progressDeadlineSeconds runs.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_progress_time: Option<Time>,
    /// Conditions by type. Ready is True with AsWanted, or False with Scaling, Updating, Replacing, Deleting,
    /// Unavailable, Paused, ScaleOutFailed, ScaleInFailed, UpdateFailed, RolloutAborted, IncludeNotAllowed,
    /// ExcludeNotAllowed, Invalid or Terminating. Scale is True with Scaled, or False with Scaling, Paused,
    /// ScaleOutFailed, ScaleInFailed or Invalid. Update is True with Updated, or False with Updating,
    /// StepPaused, Paused, UpdateFailed, RolloutAborted or Invalid. Stalled is True with
    /// ProgressDeadlineExceeded, RolloutAborted or Invalid, and absent otherwise. Terminating exists only
    /// while the CollaSet is being deleted: True with Deleted, or False with ReclaimingTargetsDeletion. The
    /// message explains the reason.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<CollaSetCondition>,
}

/// Progress of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// Revision of the template that is rolled out.
    pub revision: String,
    /// Number of the current step, from 1. After the last step, it is the number of steps plus 1. 0 if the
    /// rollout has no steps.
    #[serde(skip_serializing_if = "is_zero")]
    pub step: i32,
    /// Number of steps. If this number changes, the rollout starts again with the first step.
    #[serde(skip_serializing_if = "is_zero")]
    pub steps: i32,
    /// Time at which the current step began.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub step_since: Option<Time>,
    /// Whether the rollout was aborted. An aborted rollout returns the Pods to the current revision.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// Value of the annotation collaset.kusionstack.io/rollout that was carried out; the annotation is about
    /// to be removed.
    // The field stays while the annotation exists, even if the rollout is over.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Maximum number of digits of a number in a duration.
const MAX_DURATION_DIGITS: usize = 9;

impl RolloutPause {
    /// Length of the pause; `None` means until the rollout is promoted.
    /// # Errors
    /// The reason why the duration cannot be parsed.
    pub fn pause_duration(&self) -> Result<Option<Duration>, &'static str> {
        let Some(duration) = &self.duration else {
            return Ok(None);
        };
        // The parser panics if a part is negative or the sum is too large, and parses an empty text as 0 s.
        let mut numbers = duration.split(|c: char| !c.is_ascii_digit());
        let is_bounded = numbers.all(|number| number.len() <= MAX_DURATION_DIGITS);
        let may_be_read = !duration.is_empty() && is_bounded && !duration.contains(['-', '+']);
        let time = may_be_read.then(|| duration.parse::<kube::core::Duration>());
        match time {
            Some(Ok(time)) => Ok(Some(time.into())),
            _ => Err(
                "must be a duration such as 90s, 10m or 1h30m, of numbers of nine digits at most; leave it out to wait until the rollout is promoted",
            ),
        }
    }
}

/// A condition in the form that CollaSets have always had: no field is required.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetCondition {
    /// Ready, Scale, Update, Stalled or Terminating.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Generation that the condition describes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Time at which the status last changed.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Time>,
    /// Reason in CamelCase.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Explanation for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

// The bound limits the CEL cost of comparing two lists.
fn pod_names(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "array", "items": { "type": "string", "maxLength": 253 }, "maxItems": 2000 })
}

const STEP_RULES: &[(&str, &str)] = &[(
    "has(self.partition) != has(self.pause)",
    "a step has partition or pause, one of them: write each as a step of its own",
)];

const SCALE_RULES: &[(&str, &str)] = &[
    (
        "!has(self.podToDelete) || !has(self.podToExclude) || !self.podToDelete.exists(p, p in self.podToExclude)",
        "podToDelete and podToExclude share a name: a Pod is deleted or excluded, not both; remove it from one of the two lists",
    ),
    (
        "!has(self.podToDelete) || !has(self.podToInclude) || !self.podToDelete.exists(p, p in self.podToInclude)",
        "podToDelete and podToInclude share a name: a Pod is deleted or included, not both; remove it from one of the two lists",
    ),
    (
        "!has(self.podToExclude) || !has(self.podToInclude) || !self.podToExclude.exists(p, p in self.podToInclude)",
        "podToExclude and podToInclude share a name: a Pod is excluded or included, not both; remove it from one of the two lists",
    ),
];

// Written in full: the API server knows no size bound for `orValue('')` and estimates its comparison as too
// expensive.
const HAS_CONTEXT: &str =
    "has({}.scaleStrategy) && has({}.scaleStrategy.context) && {}.scaleStrategy.context != ''";

// CEL does not see a field without a type, so admission checks that the template is present.
fn spec_rules() -> serde_json::Value {
    schema::join([
        schema::forgiving_rules(&[
            (
                "has({}.selector)",
                "selector is required: set it to labels that spec.template carries",
            ),
            (
                "!has({}.namingStrategy) || !has({}.namingStrategy.podNamingSuffixPolicy) \
                 || {}.namingStrategy.podNamingSuffixPolicy != 'PersistentSequence' || !has({}.scaleStrategy) \
                 || (size({}.scaleStrategy.?podToExclude.orValue([])) == 0 \
                 && size({}.scaleStrategy.?podToInclude.orValue([])) == 0)",
                "podToExclude and podToInclude must be empty with podNamingSuffixPolicy PersistentSequence: \
                 the name of such a Pod belongs to its place in the set",
            ),
        ]),
        schema::rules(&[(
            &format!(
                "({}) ? ({}) && self.scaleStrategy.context == oldSelf.scaleStrategy.context : !({})",
                HAS_CONTEXT.replace("{}", "self"),
                HAS_CONTEXT.replace("{}", "oldSelf"),
                HAS_CONTEXT.replace("{}", "oldSelf"),
            ),
            "scaleStrategy.context is immutable: create another CollaSet to use another pool of instance IDs",
        )]),
    ])
}
