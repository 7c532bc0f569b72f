//! CollaSet: a set of Pods that are updated and scaled through the lifecycle (contract 1.1 and contract 1.2).

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lenient, schema};

/// The Pods that are wanted.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "CollaSet",
    plural = "collasets",
    shortname = "cls",
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
    printcolumn = r#"{"name":"UPDATED_READY","type":"integer","jsonPath":".status.updatedReadyReplicas"}"#,
    printcolumn = r#"{"name":"UPDATED_AVAILABLE","type":"integer","jsonPath":".status.updatedAvailableReplicas"}"#,
    printcolumn = r#"{"name":"CURRENT_REVISION","type":"string","jsonPath":".status.currentRevision"}"#,
    printcolumn = r#"{"name":"UPDATED_REVISION","type":"string","jsonPath":".status.updatedRevision"}"#,
    printcolumn = r#"{"name":"READY","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"REASON","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = spec_rules()))]
pub struct CollaSetSpec {
    /// Stops scaling and updating. Pods of podToInclude and podToExclude enter and leave all the same, and a Pod that ends or is
    /// deleted is made again.
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
    /// The Pod that is created.
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
    /// How a change of the template reaches the Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Which Pods are scaled, and how.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale_strategy: Option<ScaleStrategy>,
    /// How Pods are named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub naming_strategy: Option<NamingStrategy>,
    /// Number of unused revisions that are kept; 20 when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<i32>,
    /// Seconds for which a Pod must have been Ready without a break before it counts as available; 0 when absent. A change
    /// makes no new revision.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_ready_seconds: Option<i32>,
    /// Seconds without progress after which the condition Stalled is True; no deadline when absent. While all that is left to do
    /// waits for a PodTransitionRule or for a pause, the time does not run.
    #[schemars(range(min = 1))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress_deadline_seconds: Option<i32>,
}

lenient::absent_is_default!(CollaSetSpec);

/// How a change of the template reaches the Pods.
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
    /// Most Pods that an update leaves unavailable, beside what the rules allow: a count, or a percentage such as 30% of the
    /// replicas, rounded down and 1 at least. No bound when absent; with Replace no Pod becomes unavailable.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub max_unavailable: Option<IntOrString>,
    /// Most Pods beyond the replicas while an update replaces Pods: a count, or a percentage such as 30% of the replicas, rounded
    /// up. No bound when absent. Pods that are replaced for the label to-replace don't count.
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
        /// Deleted and created again.
        Recreate,
        /// In place where the change allows it, recreated otherwise.
        InPlaceIfPossible,
        /// In place only.
        InPlaceOnly,
        /// A new Pod is created first.
        Replace,
    }
}

/// Which Pods are updated; byLabel wins when both are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// All but a number of Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_partition: Option<ByPartition>,
    /// Only Pods with the label collaset.kusionstack.io/update-included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_label: Option<ByLabel>,
    /// Key of a label whose value is a number: Pods with a larger one are updated first, Pods without one last.
    #[schemars(length(max = 317))]
    #[serde(skip_serializing_if = "String::is_empty")]
    pub priority_label: String,
    /// Steps that a rollout takes one after the other; after the last one all Pods are updated that byPartition does not keep.
    /// The annotation collaset.kusionstack.io/rollout promotes or aborts it. Not together with byLabel.
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
    /// Pods that this step keeps on older revisions: a count, or a percentage such as 90% of the replicas, rounded up, but
    /// below 100% all but one at most. The step is over when all others are updated and available.
    #[schemars(schema_with = "schema::int_or_percent")]
    #[serde(
        deserialize_with = "lenient::int_or_string",
        skip_serializing_if = "Option::is_none"
    )]
    pub partition: Option<IntOrString>,
    /// Waits, for a time or until the rollout is promoted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<RolloutPause>,
}

/// A pause of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutPause {
    /// How long at least, such as 90s, 10m or 1h30m; the pause goes on while Pods that are updated are not available. Until the
    /// rollout is promoted when absent.
    #[schemars(length(max = 32))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<String>,
}

/// All but a number of Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ByPartition {
    /// Number of Pods kept on older revisions; none when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// The same as a percentage of the replicas, rounded up, but below 100% all but one at most.
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
    /// Names of Pods to take into the CollaSet. A Pod of no revision that is known is made again as by an update, as soon as
    /// updateStrategy has it in scope: at once, unless a partition or byLabel keeps it.
    #[schemars(schema_with = "pod_names")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_to_include: Vec<String>,
    /// Names of Pods to delete; together with lower replicas, the Pods to scale in.
    #[schemars(schema_with = "pod_names")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pod_to_delete: Vec<String>,
    /// What becomes of PersistentVolumeClaims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim_retention_policy: Option<PersistentVolumeClaimRetentionPolicy>,
    /// Seconds to wait after a Pod may be operated.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation_delay_seconds: Option<i32>,
}

/// What becomes of PersistentVolumeClaims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PersistentVolumeClaimRetentionPolicy {
    /// When the CollaSet is deleted; Delete when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_deleted: Option<RetentionPolicy>,
    /// When a Pod is scaled in; Delete when absent. Speaks for all claims without a Pod: a change from Retain to Delete
    /// deletes what was retained before. Whatever it says, the claims of a Pod that is replaced are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when_scaled: Option<RetentionPolicy>,
}

lenient::string_enum! {
    /// What becomes of a claim. Anything but Retain acts as Delete.
    pub enum RetentionPolicy {
        /// It stays.
        Retain,
        /// It is deleted.
        Delete,
    }
}

/// How Pods are named.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamingStrategy {
    /// What follows the name of the CollaSet; Random when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_naming_suffix_policy: Option<PodNamingSuffixPolicy>,
}

lenient::string_enum! {
    /// What follows the name of the CollaSet in the name of a Pod.
    pub enum PodNamingSuffixPolicy {
        /// A random suffix.
        Random,
        /// The instance ID, so that names persist.
        PersistentSequence,
    }
}

/// What the controller last saw.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetStatus {
    /// Generation that this status speaks of.
    pub observed_generation: i64,
    /// Selector of the Pods as text, for the scale subresource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    /// Revision that is kept stable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Revision of the present template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// Hash collisions of revisions so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Active Pods, both halves of a replace pair included.
    pub replicas: i32,
    /// Pods on a node.
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
    /// Where a rollout in steps stands, or that a rollout was aborted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// When the last progress was seen, while the time of progressDeadlineSeconds runs.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_progress_time: Option<Time>,
    /// What is so, by type. Ready is True with AsWanted, or False with Scaling, Updating, Replacing, Deleting, Unavailable, Paused,
    /// ScaleOutFailed, ScaleInFailed, UpdateFailed, RolloutAborted, IncludeNotAllowed, ExcludeNotAllowed, Invalid or Terminating.
    /// Scale is True with Scaled, or False with Scaling, Paused, ScaleOutFailed, ScaleInFailed or Invalid. Update is True with Updated, or
    /// False with Updating, StepPaused, Paused, UpdateFailed, RolloutAborted or Invalid. Stalled is True with ProgressDeadlineExceeded,
    /// RolloutAborted or Invalid, and absent otherwise. Terminating, of a set that is being deleted, is True with Deleted, or False
    /// with ReclaimingTargetsDeletion. The message says more.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<CollaSetCondition>,
}

/// Where a rollout stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RolloutStatus {
    /// Revision of the template that this speaks of.
    pub revision: String,
    /// Number of the step that is under way, from 1; one more than there are steps after the last one. 0 where there are none.
    #[serde(skip_serializing_if = "is_zero")]
    pub step: i32,
    /// How many steps there are. A rollout whose steps become more or fewer begins with the first one again.
    #[serde(skip_serializing_if = "is_zero")]
    pub steps: i32,
    /// When that step began.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub step_since: Option<Time>,
    /// Whether the rollout was aborted: the Pods go back to the current revision.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub aborted: bool,
    /// Value of the annotation collaset.kusionstack.io/rollout that has been carried out and is about to be removed.
    // It stays for as long as the annotation does, also when the rollout is over.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub command: String,
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Digits of a number of a duration.
const MAX_DURATION_DIGITS: usize = 9;

impl RolloutPause {
    /// How long the pause lasts; `None` until the rollout is promoted.
    ///
    /// # Errors
    /// What is wrong with a duration that cannot be read.
    pub fn pause_duration(&self) -> Result<Option<Duration>, &'static str> {
        let Some(duration) = &self.duration else {
            return Ok(None);
        };
        // The parser panics where a part is negative or the sum too large, and reads an empty text as 0 s.
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

/// A condition in the form that CollaSets have always had: nothing is required of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CollaSetCondition {
    /// Ready, Scale, Update, Stalled or Terminating.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub type_: String,
    /// True, False or Unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub status: String,
    /// Generation that the condition speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When the status last changed.
    #[schemars(schema_with = "schema::time")]
    #[serde(
        deserialize_with = "lenient::time",
        skip_serializing_if = "Option::is_none"
    )]
    pub last_transition_time: Option<Time>,
    /// One word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// A sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

// The bound keeps the cost of comparing two lists within what CEL is allowed.
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
        "podToDelete and podToExclude share a name: a Pod is deleted or excluded, not both; take it out of one list",
    ),
    (
        "!has(self.podToDelete) || !has(self.podToInclude) || !self.podToDelete.exists(p, p in self.podToInclude)",
        "podToDelete and podToInclude share a name: a Pod is deleted or included, not both; take it out of one list",
    ),
    (
        "!has(self.podToExclude) || !has(self.podToInclude) || !self.podToExclude.exists(p, p in self.podToInclude)",
        "podToExclude and podToInclude share a name: a Pod is excluded or included, not both; take it out of one list",
    ),
];

// Spelt out: the API server knows no bound for the size of `orValue('')` and takes its comparison for too expensive.
const HAS_CONTEXT: &str =
    "has({}.scaleStrategy) && has({}.scaleStrategy.context) && {}.scaleStrategy.context != ''";

// That the template is present cannot be said here: CEL does not see a field without a type. Admission says it.
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
