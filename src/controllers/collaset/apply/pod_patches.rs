//! The bodies of the requests that change Pods, and what their failures call them.

use serde_json::{Value, json};

use super::super::owner;
use crate::api::collaset::CollaSet;
use crate::domain::collaset::plan::PodPatch;
use crate::domain::pod::Pod;

pub(super) fn pod_preconditions(pod: &Pod, version: u64) -> Value {
    json!({ "uid": pod.metadata.uid, "resourceVersion": version.to_string() })
}

/// The strategic merge patch for the resize of a Pod; `spec` is the new content of the field.
pub(super) fn resize_patch(pod: &Pod, version: u64, spec: &Value) -> Value {
    json!({ "metadata": pod_preconditions(pod, version), "spec": spec })
}

/// The strategic merge patch of all changes except the resize; `None` if there are none.
pub(super) fn pod_patch_body(set: &CollaSet, change: &PodPatch, version: u64) -> Option<Value> {
    let mut metadata = pod_preconditions(&change.pod, version);
    let preconditions = metadata.clone();
    if !change.labels.is_empty() {
        metadata["labels"] = change.labels.to_merge_patch();
    }
    if !change.annotations.is_empty() {
        metadata["annotations"] = json!(change.annotations);
    }
    let owners = owner::owner_references_patch(set, change.ownership);
    let owners = owners.iter().filter_map(Value::as_array).flatten();
    let owners: Vec<&Value> = owners.chain(&change.decoration_owners).collect();
    if !owners.is_empty() {
        metadata["ownerReferences"] = json!(owners);
    }
    if metadata == preconditions && change.spec.is_none() {
        return None;
    }
    let mut body = json!({ "metadata": metadata });
    if let Some(spec) = &change.spec {
        body["spec"] = spec.clone();
    }
    Some(body)
}

pub(super) fn describe_pod_change(name: &str) -> String {
    format!("change of Pod {name}")
}

pub(super) fn describe_pod_deletion(name: &str) -> String {
    format!("deletion of Pod {name}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::domain::collaset::plan::OwnershipChange;

    fn pod() -> Pod {
        let pod = json!({ "metadata": { "name": "web-a", "uid": "1", "resourceVersion": "7" } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn one_patch_carries_all_but_the_resize() {
        let mut set = CollaSet::default();
        set.metadata.uid = Some("set".into());
        let mut change = PodPatch {
            pod: pod().into(),
            resize: Some(json!({})),
            ..PodPatch::default()
        };
        assert_eq!(pod_patch_body(&set, &change, 8), None);
        change.labels.0.insert("a".into(), None);
        change.annotations.insert("b".into(), Some("1".into()));
        change.ownership = OwnershipChange::Release;
        change.spec = Some(json!({ "containers": [{ "name": "app", "image": "x" }] }));
        assert_eq!(
            pod_patch_body(&set, &change, 8),
            Some(json!({
                "metadata": {
                    "uid": "1", "resourceVersion": "8",
                    "labels": { "a": null }, "annotations": { "b": "1" },
                    "ownerReferences": [{ "$patch": "delete", "uid": "set" }],
                },
                "spec": { "containers": [{ "name": "app", "image": "x" }] },
            }))
        );
    }
}
