//! Claims as they are stored in the status of a PodTransitionRule.
//!
//! Builds of several versions read and write the same ledger. Each build preserves the fields that it does
//! not know: see ADR 16.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::api::{lenient, schema};

/// Fields that this build does not know, by name.
pub type UnknownFields = BTreeMap<String, Value>;

/// Claims that admission has granted and whose effect is not yet observed. Written by compare-and-swap on the
/// rule.
// All fields are always written: a merge patch must be able to empty the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Ledger {
    /// Format of the ledger. A replica whose build does not know the format denies requests that need a
    /// claim, and does not write the ledger. 0 or absent: written by a build from before formats had numbers.
    pub format_version: i64,
    /// Resource version of Pods that a cache must have reached before it decides.
    #[serde(deserialize_with = "lenient::nullable")]
    pub watermark: String,
    /// Number of attempts so far. The next claim takes the next number, whatever the outcome of earlier
    /// attempts.
    pub attempts: i64,
    /// At most one claim per Pod and operation.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUID", "operation"]))]
    #[serde(deserialize_with = "lenient::nullable")]
    pub claims: Vec<Claim>,
    /// The reason why the stored ledger does not fit these types, if it does not. The other fields are then
    /// meaningless.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

/// A rule whose ledger does not fit the types is still read.
pub(super) fn read<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Ledger>, D::Error> {
    let stored = Option::<Value>::deserialize(d)?;
    Ok(stored.map(|stored| match Ledger::deserialize(&stored) {
        Ok(ledger) => ledger,
        Err(e) => Ledger {
            format_version: stored["formatVersion"].as_i64().unwrap_or(0),
            unreadable: Some(e.to_string()),
            ..Ledger::default()
        },
    }))
}

/// Permission for one disruption of one Pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = REQUIRED_CLAIM_FIELDS, "x-kubernetes-preserve-unknown-fields" = true))]
pub struct Claim {
    /// Name of the Pod.
    pub pod_name: String,
    /// UID of the Pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Delete, Evict, Begin, InPlace, Leave, Deadline or Reown.
    pub operation: String,
    /// Resource version of the Pod on which admission decided.
    pub resource_version: String,
    /// Number of the attempt that last wrote the claim, counted over all claims of the rule.
    pub attempt: i64,
    /// Number of the attempt that granted the claim, if this is an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened: Option<i64>,
    /// Whether the claim admits no further request: its request was repeated several times without an effect.
    /// The claim is released as soon as no admitted request can have an effect.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closing: bool,
    /// Time at which the claim was first granted.
    #[schemars(schema_with = "schema::time")]
    #[serde(deserialize_with = "since")]
    pub since: Time,
    /// Time at which the API server has certainly given up the request, by the clock of the replica that
    /// admitted it. A claim without effect is released some time later.
    #[schemars(schema_with = "schema::time")]
    #[serde(deserialize_with = "until")]
    pub until: Time,
    /// Subject of the operation, such as the ID of a lifecycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Containers that were running when an in-place change was admitted.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub containers: Vec<ClaimedContainer>,
    /// Fields that a newer build has stored.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}

const REQUIRED_CLAIM_FIELDS: [&str; 7] = [
    "podName",
    "podUID",
    "operation",
    "resourceVersion",
    "attempt",
    "since",
    "until",
];

// The claim that stands for an unreadable claim: it never lapses early.
impl Default for Claim {
    fn default() -> Self {
        Claim {
            pod_name: String::new(),
            pod_uid: String::new(),
            operation: String::new(),
            resource_version: String::new(),
            attempt: 0,
            opened: None,
            closing: false,
            since: Time(Timestamp::UNIX_EPOCH),
            until: Time(Timestamp::MAX),
            target: None,
            containers: Vec::new(),
            unknown: UnknownFields::new(),
        }
    }
}

fn since<'de, D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
    Ok(lenient::time(d)?.unwrap_or(Time(Timestamp::UNIX_EPOCH)))
}

fn until<'de, D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
    Ok(lenient::time(d)?.unwrap_or(Time(Timestamp::MAX)))
}

/// A container run, as the kubelet reported it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["name"], "x-kubernetes-preserve-unknown-fields" = true))]
pub struct ClaimedContainer {
    /// Name of the container.
    pub name: String,
    /// ID of the run.
    #[serde(rename = "containerID", skip_serializing_if = "String::is_empty")]
    pub container_id: String,
    /// Hash of the ID of the image that ran, if the change is a change of the image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_hash: String,
    /// Whether only the resources in force show the end of the change, because the change replaced an earlier
    /// resize.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_resources: bool,
    /// Fields that a newer build has stored.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}
