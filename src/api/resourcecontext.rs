//! ResourceContext: the pool of instance IDs behind a workload (contract 1.6 and contract 6.2). Written by controllers.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lenient;

/// The instance IDs in use, each with the data that is needed to recreate its Pod.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "ResourceContext",
    plural = "resourcecontexts",
    shortname = "rctx",
    namespaced,
    derive = "Default",
    derive = "PartialEq",
    doc = "ResourceContext holds the instance IDs of a workload and what belongs to each. It is written by controllers."
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct ResourceContextSpec {
    /// One entry per instance ID in use, ordered by ID.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub contexts: Vec<ContextDetail>,
}

lenient::absent_is_default!(ResourceContextSpec);

/// One instance ID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["id"]))]
pub struct ContextDetail {
    /// The instance ID.
    #[schemars(schema_with = "integer")]
    pub id: i64,
    /// Data of the instance, such as Owner and Revision.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub data: BTreeMap<String, String>,
}

// Without a format, as in the first published schema.
fn integer(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer" })
}

/// Keys of [`ContextDetail::data`] and the IDs in their values.
pub mod data {
    use std::collections::BTreeMap;

    /// Name of the CollaSet.
    pub const OWNER: &str = "Owner";
    /// Name of the revision from which the Pod is created.
    pub const REVISION: &str = "Revision";
    /// The decorations of the Pod, JSON in the form of [`crate::api::keys::DECORATIONS`]. Only decorations whose
    /// rollout does not reach all Pods are recorded.
    pub const DECORATIONS: &str = "PodDecorationRevisions";
    /// Present until a Pod with this ID has been seen: `true`, or a digest of the UID of the Pod that is
    /// included under this ID.
    pub const JUST_CREATE: &str = "PodJustCreate";
    /// `true` once the Pod is being removed permanently.
    pub const SCALE_IN: &str = "ScaleIn";
    /// On the ID of an origin: the ID of its new Pod.
    pub const REPLACE_NEW: &str = "ReplaceNewPodID";
    /// On the ID of a new Pod: the ID of the origin.
    pub const REPLACE_ORIGIN: &str = "ReplaceOriginPodID";
    /// `true` on the ID of one half of a pair that was replaced or cancelled, until its PVCs are gone.
    /// Kuperator has no such key.
    pub const REPLACED: &str = "PodReplaced";
    /// Digest of the UID of the Pod that was deleted because of `podToDelete`, while the list still holds its
    /// name: with persistent names a new Pod has the same name, and must not be deleted again (contract Q37).
    /// Older builds stored the name instead.
    pub const DELETED: &str = "PodToDelete";

    /// The ID of the origin, according to the entry of a new Pod.
    pub fn origin_of(data: &BTreeMap<String, String>) -> Option<i64> {
        data.get(REPLACE_ORIGIN)?.parse().ok()
    }

    /// The ID of the new Pod, according to the entry of an origin.
    pub fn new_of(data: &BTreeMap<String, String>) -> Option<i64> {
        data.get(REPLACE_NEW)?.parse().ok()
    }
}
