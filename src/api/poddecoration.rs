//! PodDecoration: additions to the Pods of CollaSets (contract 1.4).

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{lenient, schema};

/// Default of `spec.historyLimit`.
pub const HISTORY_LIMIT: i32 = 20;

/// The additions and the Pods that get them.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "PodDecoration",
    plural = "poddecorations",
    shortname = "pd",
    category = "all",
    namespaced,
    status = "PodDecorationStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "PodDecoration adds containers, volumes and metadata to the Pods of CollaSets.",
    printcolumn = r#"{"name":"MATCHED","type":"integer","jsonPath":".status.matchedPods"}"#,
    printcolumn = r#"{"name":"INJECTED","type":"integer","jsonPath":".status.injectedPods"}"#,
    printcolumn = r#"{"name":"UPDATED","type":"integer","jsonPath":".status.updatedPods"}"#,
    printcolumn = r#"{"name":"UPDATED-READY","type":"integer","jsonPath":".status.updatedReadyPods"}"#,
    printcolumn = r#"{"name":"CURRENT-REVISION","type":"string","jsonPath":".status.currentRevision"}"#,
    printcolumn = r#"{"name":"UPDATED-REVISION","type":"string","jsonPath":".status.updatedRevision"}"#,
    printcolumn = r#"{"name":"AGE","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct PodDecorationSpec {
    /// Number of unused revisions that are retained; 20 when absent or 0.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history_limit: Option<i32>,
    /// Omits the list of Pods from status.details.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub disable_pod_detail: bool,
    /// The Pods to decorate.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Order among the decorations of a Pod: a decoration with a higher weight is applied later and overrides
    /// others; 0 when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<i32>,
    /// How a change of the template is rolled out to the Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Additions to the Pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<Template>,
}

lenient::absent_is_default!(PodDecorationSpec);

/// How a change of the template is rolled out to the Pods.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// Which Pods are updated; all when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// Which Pods are updated; the selector takes precedence when both are set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RollingUpdate {
    /// Number of Pods that stay on the stable revision; 0 when absent.
    #[schemars(range(min = 0))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<i32>,
    /// Only matching Pods get the updated revision.
    #[schemars(schema_with = "schema::label_selector")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
}

/// Additions to a Pod. Parts that the core API defines are stored as they are written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Template {
    /// Labels and annotations.
    #[schemars(length(max = 100))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub metadata: Vec<MetadataPatch>,
    /// Init containers; a container whose name the Pod already has is not added.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub init_containers: Vec<Value>,
    /// Containers, each with an injectPolicy for its position.
    #[schemars(schema_with = "sidecars")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub containers: Vec<Value>,
    /// Changes to the existing containers of the Pod.
    #[schemars(length(max = 100))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub primary_containers: Vec<PrimaryContainerPatch>,
    /// Volumes.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volumes: Vec<Value>,
    /// Affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<AffinityPatch>,
    /// Tolerations.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub tolerations: Vec<Value>,
    /// RuntimeClass of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
}

/// Added labels and annotations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["patchPolicy"], "x-kubernetes-validations" = schema::rules(METADATA_RULES)))]
pub struct MetadataPatch {
    /// What happens to a key that the Pod already has; Retain when empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "patch_policy")]
    pub patch_policy: Option<PatchPolicy>,
    /// Labels.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub annotations: BTreeMap<String, String>,
}

lenient::string_enum! {
    /// What happens to a key that the Pod already has.
    pub enum PatchPolicy {
        /// The Pod retains its value.
        Retain,
        /// The value is replaced.
        Overwrite,
        /// The value is a JSON document and is merged (RFC 7386); annotations only.
        MergePatchJson,
    }
}

lenient::string_enum! {
    /// Position of a container.
    pub enum InjectPolicy {
        /// Before the existing containers of the Pod.
        BeforePrimaryContainer,
        /// After the existing containers of the Pod.
        AfterPrimaryContainer,
    }
}

/// A change to existing containers of the Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = schema::rules(PRIMARY_RULES)))]
pub struct PrimaryContainerPatch {
    /// Which containers are changed; when absent, ByName if there is a name, and All otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_policy: Option<TargetPolicy>,
    /// Name of the container, for ByName.
    #[schemars(length(max = 253))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Image that replaces the image of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Environment variables, merged by name.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub env: Vec<Value>,
    /// Volume mounts.
    #[schemars(schema_with = "schema::core_objects")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub volume_mounts: Vec<Value>,
}

impl PrimaryContainerPatch {
    /// The policy, or its default. An empty policy counts as absent.
    pub fn effective_target_policy(&self) -> TargetPolicy {
        let policy = self.target_policy.clone();
        let policy = policy.filter(|policy| !policy.as_str().is_empty());
        policy.unwrap_or(match self.name.as_deref() {
            None | Some("") => TargetPolicy::All,
            Some(_) => TargetPolicy::ByName,
        })
    }
}

lenient::string_enum! {
    /// Which containers of the Pod are changed.
    pub enum TargetPolicy {
        /// The container with the given name.
        ByName,
        /// All containers.
        All,
        /// The first container.
        First,
        /// The last container.
        Last,
    }
}

/// Changes to the affinity of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AffinityPatch {
    /// Replaces the affinity.
    #[schemars(schema_with = "schema::core_object")]
    #[serde(skip_serializing_if = "Value::is_null")]
    pub override_affinity: Value,
    /// Required node selector terms that are appended.
    #[schemars(schema_with = "node_selector_terms")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub node_selector_terms: Vec<Value>,
}

/// State that the controller last observed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDecorationStatus {
    /// Generation that this status describes.
    pub observed_generation: i64,
    /// Standard conditions.
    #[schemars(schema_with = "schema::conditions")]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub conditions: Vec<Condition>,
    /// Stable revision.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub current_revision: String,
    /// Revision of the current template.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub updated_revision: String,
    /// Hash collisions of revisions so far.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collision_count: Option<i32>,
    /// Pods that the selector matches.
    pub matched_pods: i32,
    /// Pods that are decorated.
    pub injected_pods: i32,
    /// Pods decorated with the updated revision.
    pub updated_pods: i32,
    /// Ready Pods decorated with the updated revision.
    pub updated_ready_pods: i32,
    /// Available Pods decorated with the updated revision.
    pub updated_available_pods: i32,
    /// One entry per CollaSet.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub details: Vec<WorkloadDetail>,
}

/// The Pods of one CollaSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadDetail {
    /// Name of the CollaSet.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub colla_set: String,
    /// Number of Pods of the CollaSet that match.
    pub affected_replicas: i32,
    /// The Pods.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub pods: Vec<PodDetail>,
}

/// One Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodDetail {
    /// Name of the Pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Revision with which the Pod is decorated.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub revision: String,
    /// Whether the Pod matches and is not decorated.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub escaped: bool,
}

const METADATA_RULES: &[(&str, &str)] = &[(
    "!has(self.patchPolicy) || self.patchPolicy != 'MergePatchJson' || !has(self.labels) || size(self.labels) == 0",
    "labels cannot be merged as JSON: move them to an entry with patchPolicy Retain or Overwrite",
)];

const PRIMARY_RULES: &[(&str, &str)] = &[(
    "!has(self.targetPolicy) || self.targetPolicy != 'ByName' || (has(self.name) && self.name != '')",
    "name is required with targetPolicy ByName: set it, or choose All, First or Last",
)];

// Required by the schema from the start, so clients send an empty value to get the default.
fn patch_policy(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let known: Vec<&str> = std::iter::once("")
        .chain(PatchPolicy::KNOWN.iter().copied())
        .collect();
    schemars::json_schema!({ "type": "string", "enum": known })
}

fn sidecars(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "required": ["name"],
            "properties": {
                "name": { "type": "string", "description": "Name of the container." },
                "injectPolicy": {
                    "type": "string",
                    "enum": InjectPolicy::KNOWN,
                    "description": "Where the container is put; BeforePrimaryContainer when absent.",
                },
            },
        },
    })
}

fn node_selector_terms(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "x-kubernetes-preserve-unknown-fields": true,
            "x-kubernetes-map-type": "atomic",
        },
    })
}
