//! ResourceContext: the pool of instance IDs behind a workload (contract 1.6 and contract 6.2). Written by controllers.

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lenient;

/// The instance IDs in use, each with what is to be known when its Pod is created again.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "apps.kusionstack.io",
    version = "v1alpha1",
    kind = "ResourceContext",
    plural = "resourcecontexts",
    shortname = "rc",
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
    /// What is known of the instance, such as Owner and Revision.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub data: BTreeMap<String, String>,
}

// Without a format, as the field was first published.
fn integer(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "integer" })
}

/// Keys of [`ContextDetail::data`], and what entries name by them.
pub mod data {
    use std::collections::BTreeMap;

    /// Name of the CollaSet.
    pub const OWNER: &str = "Owner";
    /// Name of the revision to make the Pod of.
    pub const REVISION: &str = "Revision";
    /// Until a Pod of this ID has been seen: `true`, or a digest of the UID of the Pod that enters under it.
    pub const JUST_CREATE: &str = "PodJustCreate";
    /// `true` once the Pod is going for good.
    pub const SCALE_IN: &str = "ScaleIn";
    /// On an origin: the ID of its new Pod.
    pub const REPLACE_NEW: &str = "ReplaceNewPodID";
    /// On the ID of a new Pod: the ID of the origin.
    pub const REPLACE_ORIGIN: &str = "ReplaceOriginPodID";
    /// `true` on the ID of a half of a pair that was replaced or cancelled, until its claims have gone. Kuperator has no such key.
    pub const REPLACED: &str = "PodReplaced";
    /// Which Pod `podToDelete` has had deleted, while the list still holds its name: a name that persists comes back
    /// and must not be deleted again (contract Q37). A digest of the UID; older builds noted the name.
    pub const DELETED: &str = "PodToDelete";

    /// The origin's ID that an entry names.
    pub fn origin_of(data: &BTreeMap<String, String>) -> Option<i64> {
        data.get(REPLACE_ORIGIN)?.parse().ok()
    }

    /// The new Pod's ID that an entry names.
    pub fn new_of(data: &BTreeMap<String, String>) -> Option<i64> {
        data.get(REPLACE_NEW)?.parse().ok()
    }
}
