//! Claims as they are stored in the status of a PodTransitionRule.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::{lenient, schema};

/// Claims that admission has granted and whose effect is not yet seen. Written by compare-and-swap on the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Ledger {
    /// Resource version of Pods up to which a cache must have caught up before it decides.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "String::is_empty"
    )]
    pub watermark: String,
    /// At most one claim per Pod.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUID"]))]
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub claims: Vec<Claim>,
}

/// Permission for one disruption of one Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = REQUIRED))]
pub struct Claim {
    /// Name of the Pod.
    pub pod_name: String,
    /// UID of the Pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Delete, Evict, Begin, InPlace or Leave.
    #[schemars(schema_with = "schema::text")]
    pub operation: Operation,
    /// Resource version of the Pod that was judged.
    pub resource_version: String,
    /// Counts the attempts; each writes the claim anew.
    pub attempt: i64,
    /// When the claim was first granted.
    #[schemars(schema_with = "schema::time")]
    pub since: Timestamp,
    /// When the claim lapses at the latest.
    #[schemars(schema_with = "schema::time")]
    pub until: Timestamp,
    /// What the operation is about, such as the ID of a lifecycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Containers that were running when an in-place change was admitted.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub containers: Vec<ClaimedContainer>,
}

const REQUIRED: [&str; 7] = [
    "podName",
    "podUID",
    "operation",
    "resourceVersion",
    "attempt",
    "since",
    "until",
];

// What an unreadable claim would hold: nothing about it lapses early.
impl Default for Claim {
    fn default() -> Self {
        Claim {
            pod_name: String::new(),
            pod_uid: String::new(),
            operation: Operation::Other(String::new()),
            resource_version: String::new(),
            attempt: 0,
            since: Timestamp::UNIX_EPOCH,
            until: Timestamp::MAX,
            target: None,
            containers: Vec::new(),
        }
    }
}

lenient::string_enum! {
    /// The disruption that was admitted.
    pub enum Operation {
        /// DELETE of the Pod.
        Delete,
        /// Eviction of the Pod.
        Evict,
        /// Begin of a lifecycle.
        Begin,
        /// Change of a running container.
        InPlace,
        /// Labels that take the Pod out of the rule's reach.
        Leave,
    }
}

/// A container run, as the kubelet reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"]))]
pub struct ClaimedContainer {
    /// Name of the container.
    pub name: String,
    /// ID of the run.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
}
