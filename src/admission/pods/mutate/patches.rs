//! The JSON patches that set labels, annotations, finalizers and the readiness gate of a Pod under review.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

use crate::admission::review::Request;
use crate::api::keys;
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// The patch that makes this change of the labels.
pub fn label_patch(request: &Request, change: &LabelPatch) -> Vec<PatchOperation> {
    let object = request
        .object
        .as_deref()
        .and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    change.to_json_patch(object.as_ref().and_then(|o| o.pointer("/metadata/labels")))
}

/// Annotations that this program writes into the objects of requests.
const OWN_ANNOTATIONS: [&str; 2] = [keys::AWAITS_RESTART, keys::REPLACES];

/// The patch that gives the [`OWN_ANNOTATIONS`] and all annotations in `wanted` the wanted values. `asked` are the
/// annotations of the object in the request.
pub fn annotation_patch(
    request: &Request,
    asked: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> Vec<PatchOperation> {
    let mut changes = Vec::new();
    let others = wanted.keys().map(String::as_str);
    let others = others.filter(|key| !OWN_ANNOTATIONS.contains(key));
    for key in OWN_ANNOTATIONS
        .into_iter()
        .chain(others)
        .filter(|key| asked.get(*key) != wanted.get(*key))
    {
        let path = PointerBuf::from_tokens(["metadata", "annotations", key]);
        changes.push(match wanted.get(key) {
            Some(value) => {
                let value = json!(value);
                PatchOperation::Add(AddOperation { path, value })
            }
            None => PatchOperation::Remove(RemoveOperation { path }),
        });
    }
    let raw = request.object.as_deref().filter(|_| !changes.is_empty());
    let object = raw.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    let annotations = object
        .as_ref()
        .and_then(|o| o.pointer("/metadata/annotations"));
    if !changes.is_empty() && !annotations.is_some_and(Value::is_object) {
        let path = PointerBuf::from_tokens(["metadata", "annotations"]);
        let value = json!({});
        changes.insert(0, PatchOperation::Add(AddOperation { path, value }));
    }
    changes
}

/// The patch that adds these finalizers, which the object of the request does not have.
pub fn finalizer_patch(request: &Request, finalizers: &[String]) -> Vec<PatchOperation> {
    let raw = request.object.as_deref().filter(|_| !finalizers.is_empty());
    let Some(raw) = raw else {
        return Vec::new();
    };
    let object = serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
    let add = |tokens: &[&str], value| {
        let path = PointerBuf::from_tokens(tokens.iter().copied());
        PatchOperation::Add(AddOperation { path, value })
    };
    let present = object.pointer("/metadata/finalizers");
    if !present.is_some_and(Value::is_array) {
        return vec![add(&["metadata", "finalizers"], json!(finalizers))];
    }
    let added = finalizers.iter();
    added
        .map(|finalizer| add(&["metadata", "finalizers", "-"], json!(finalizer)))
        .collect()
}

/// The patch that removes these finalizers from the object of the request.
pub fn finalizer_removal(request: &Request, finalizers: &[String]) -> Option<PatchOperation> {
    let raw = request
        .object
        .as_deref()
        .filter(|_| !finalizers.is_empty())?;
    let object = serde_json::from_str::<Value>(raw.get()).ok()?;
    let present = object.pointer("/metadata/finalizers")?.as_array()?;
    let removed = |text: &Value| finalizers.iter().any(|finalizer| *text == **finalizer);
    let left: Vec<_> = present.iter().filter(|text| !removed(text)).collect();
    let path = PointerBuf::from_tokens(["metadata", "finalizers"]);
    let value = json!(left);
    Some(PatchOperation::Add(AddOperation { path, value }))
}

/// Whether the Pod of the request has a `spec` to patch. The API server stores no Pod without a spec.
pub fn has_spec(request: &Request) -> bool {
    #[derive(serde::Deserialize)]
    struct Outline {
        #[serde(default)]
        spec: Option<serde::de::IgnoredAny>,
    }
    let object = request.object.as_deref();
    let outline = object.and_then(|raw| serde_json::from_str::<Outline>(raw.get()).ok());
    outline.is_some_and(|outline| outline.spec.is_some())
}

/// The patch that adds the readiness gate `service-ready`; `None` if the Pod has it.
pub fn readiness_gate_patch(pod: &Pod) -> Option<PatchOperation> {
    if pod.has_service_ready_gate() {
        return None;
    }
    let gate = json!({ "conditionType": keys::SERVICE_READY });
    let (path, value) = if pod.spec.readiness_gates.is_empty() {
        ("/spec/readinessGates", json!([gate]))
    } else {
        ("/spec/readinessGates/-", gate)
    };
    Some(PatchOperation::Add(AddOperation {
        path: path.parse().ok()?,
        value,
    }))
}
