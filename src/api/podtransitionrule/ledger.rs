//! Claims as they are stored in the status of a PodTransitionRule.
//!
//! Builds of several versions read and write the same ledger. What one of them does not know it keeps and writes back:
//! see ADR 16.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::api::{lenient, schema};

/// Fields that this build does not know, by name.
pub type UnknownFields = BTreeMap<String, Value>;

/// Claims that admission has granted and whose effect is not yet seen. Written by compare-and-swap on the rule.
// All fields are always written: a merge patch must be able to empty the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Ledger {
    /// Format of the ledger. Replicas whose build does not know it deny what needs a claim, and write nothing to the ledger.
    /// 0 or absent: written by a build from before formats had numbers.
    pub format_version: i64,
    /// Resource version of Pods up to which a cache must have caught up before it decides.
    #[serde(deserialize_with = "lenient::nullable")]
    pub watermark: String,
    /// Attempts so far; the next claim takes the next number, whatever became of the earlier ones.
    pub attempts: i64,
    /// At most one claim per Pod and operation.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["podUID", "operation"]))]
    #[serde(deserialize_with = "lenient::nullable")]
    pub claims: Vec<Claim>,
    /// Why the stored ledger does not fit these types, if it does not. The other fields then say nothing.
    #[serde(skip)]
    pub unreadable: Option<String>,
}

/// A ledger that does not fit the types is no reason to lose sight of its rule.
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
    /// Resource version of the Pod that was judged.
    pub resource_version: String,
    /// Number of the attempt that wrote the claim last, counted over all claims of the rule.
    pub attempt: i64,
    /// Number of the attempt that gave the claim, where that is an earlier one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub opened: Option<i64>,
    /// Whether the claim admits nothing more: its request was sent again and again without an effect, and its place is
    /// given back as soon as no admitted request can have one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closing: bool,
    /// When the claim was first granted.
    #[schemars(schema_with = "schema::time")]
    #[serde(deserialize_with = "since")]
    pub since: Time,
    /// When the API server has surely given up the request, by the clock of the replica that admitted it: a claim
    /// without effect is released some time after that.
    #[schemars(schema_with = "schema::time")]
    #[serde(deserialize_with = "until")]
    pub until: Time,
    /// What the operation is about, such as the ID of a lifecycle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Containers that were running when an in-place change was admitted.
    #[serde(
        deserialize_with = "lenient::nullable",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub containers: Vec<ClaimedContainer>,
    /// What a newer build has stored besides.
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

// What an unreadable claim would hold: nothing about it lapses early.
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
    /// Hash of the ID of the image that ran, if the change is one of the image.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub image_hash: String,
    /// Whether only the resources in force tell that the change is over: it has taken the place of an earlier resize.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_resources: bool,
    /// What a newer build has stored besides.
    #[serde(flatten)]
    #[schemars(skip)]
    pub unknown: UnknownFields,
}
