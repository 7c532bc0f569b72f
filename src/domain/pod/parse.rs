//! Parses the fields of a Pod, and drops the parts that Operating does not read.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Deserializer};

use super::{PodCondition, RESIZE_IN_PROGRESS, RESIZE_PENDING};
use crate::api::keys;
use crate::domain::interner::Shared;

/// Largest length of a kept message in bytes. If an image is missing, each of thousands of Pods has such a message.
pub(super) const MESSAGE_LIMIT: usize = 200;
/// Reason of the condition `Ready` if only readiness gates keep the Pod from being Ready (`pkg/kubelet/status/generate.go`).
const READINESS_GATES_NOT_READY: &str = "ReadinessGatesNotReady";
/// The last character of a message that was cut.
const ELLIPSIS: char = '…';

pub(super) fn resource_version<'de, D: Deserializer<'de>>(d: D) -> Result<u64, D::Error> {
    let text = Option::<String>::deserialize(d)?.unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        serde::de::Error::custom(format!("resourceVersion {text:?} is not a decimal number"))
    })
}

pub(super) fn null_as_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(d)?.unwrap_or_default())
}

/// Reads an `imagePullPolicy`.
pub(super) fn is_never<'de, D: Deserializer<'de>>(d: D) -> Result<bool, D::Error> {
    Ok(Option::<String>::deserialize(d)?.as_deref() == Some("Never"))
}

/// Reads a list and frees its spare capacity.
pub(super) fn exact_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    d: D,
) -> Result<Vec<T>, D::Error> {
    let mut items: Vec<T> = null_as_default(d)?;
    items.shrink_to_fit();
    Ok(items)
}

pub(super) fn shared_list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    d: D,
) -> Result<Shared<Vec<T>>, D::Error> {
    exact_list(d).map(Shared::from)
}

/// Reads `resources`, with the requests and limits of `cpu` and `memory` only.
pub(super) fn resizable_resources<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<serde_json::Value, D::Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ResizableAmounts {
        requests: Option<Amounts>,
        limits: Option<Amounts>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Amounts {
        cpu: Option<serde_json::Value>,
        memory: Option<serde_json::Value>,
    }
    fn json_object<const N: usize>(
        fields: [(&str, Option<serde_json::Value>); N],
    ) -> serde_json::Value {
        let present = fields
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?)));
        serde_json::Value::Object(present.collect())
    }
    let amounts = |amount: Amounts| json_object([("cpu", amount.cpu), ("memory", amount.memory)]);
    let resizable: ResizableAmounts = null_as_default(d)?;
    Ok(json_object([
        ("requests", resizable.requests.map(amounts)),
        ("limits", resizable.limits.map(amounts)),
    ]))
}

pub(super) fn shared_resizable<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Shared<serde_json::Value>, D::Error> {
    resizable_resources(d).map(Shared::from)
}

/// Cuts a message to [`MESSAGE_LIMIT`]. The cut message ends with an ellipsis, after a whole word if possible.
pub(super) fn truncate_message(mut message: String) -> String {
    if message.len() > MESSAGE_LIMIT {
        message.truncate(message.floor_char_boundary(MESSAGE_LIMIT - ELLIPSIS.len_utf8()));
        let word_end = message.rfind(char::is_whitespace);
        if let Some(end) = word_end.filter(|end| *end > MESSAGE_LIMIT / 2) {
            message.truncate(message[..end].trim_end().len());
        }
        message.push(ELLIPSIS);
    }
    message.shrink_to_fit();
    message
}

pub(super) fn pvc_names<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Volume {
        persistent_volume_claim: Option<Source>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Source {
        claim_name: String,
    }
    let volumes: Vec<Volume> = null_as_default(d)?;
    let pvcs = volumes
        .into_iter()
        .filter_map(|v| v.persistent_volume_claim);
    let mut names: Vec<_> = pvcs.map(|c| c.claim_name).collect();
    names.shrink_to_fit();
    Ok(names)
}

/// Reads `podIPs`. What is no address is left out.
pub(super) fn addresses<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<IpAddr>, D::Error> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        ip: String,
    }
    let entries: Vec<Entry> = null_as_default(d)?;
    let mut addresses: Vec<_> = entries.iter().filter_map(|e| e.ip.parse().ok()).collect();
    addresses.shrink_to_fit();
    Ok(addresses)
}

pub(super) fn known_annotations<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    let mut annotations: BTreeMap<String, String> = null_as_default(d)?;
    annotations.retain(|k, _| {
        matches!(
            k.as_str(),
            keys::AVAILABLE_CONDITIONS
                | keys::SKIP_RULE_CONDITIONS
                | keys::BYPASS
                | keys::DELETE_TIMESTAMP
                | keys::MIRROR
                | keys::LAST_POD_STATUS
                | keys::DELETION_COST
                | keys::MIN_READY_SECONDS
                | keys::AWAITS_RESTART
                | keys::REPLACES
                | keys::SENT_AWAY
                | keys::DELETE_OPTIONS
                | keys::SCALED_IN_BY
                | keys::CONTROLLER_WOKEN
                | keys::RESIZING
                | keys::STABLE_REVISION
                | keys::REPLACED_UID
                | keys::ACTION_RESULT
                | keys::FORMER_IMAGES
        )
    });
    Ok(annotations)
}

pub(super) fn known_conditions<'de, D: Deserializer<'de>>(
    d: D,
) -> Result<Vec<PodCondition>, D::Error> {
    let mut conditions: Vec<PodCondition> = null_as_default(d)?;
    conditions.retain(|c| {
        matches!(
            c.type_.as_str(),
            "Ready" | keys::SERVICE_READY | "PodScheduled" | RESIZE_PENDING | RESIZE_IN_PROGRESS
        )
    });
    let has_reason = |c: &PodCondition| {
        c.type_ == RESIZE_PENDING
            || matches!(c.type_.as_str(), "PodScheduled" | "Ready") && c.status != "True"
    };
    let has_message = |c: &PodCondition| {
        c.status != "True"
            && (c.type_ == "PodScheduled"
                || c.type_ == "Ready" && c.reason == READINESS_GATES_NOT_READY)
    };
    for condition in &mut conditions {
        if !has_reason(condition) {
            condition.reason = String::new();
        }
        let message = condition.message.take();
        if has_message(condition) {
            condition.message = message.map(|text| truncate_message(text.into()).into());
        }
    }
    conditions.shrink_to_fit();
    Ok(conditions)
}
