//! Builds the Pods that a set creates (contract 6.3).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::composition::Composition;
use super::observed::set_name;
use super::revision::data::{self, pvc_template_name};
use crate::api::collaset::{CollaSet, PodNamingSuffixPolicy};
use crate::api::keys;
use crate::api::reserved_labels;
use crate::api::selector::Selector;

// A host name is one label of a domain name, so at most 63 characters.
const HOSTNAME_LIMIT: usize = 63;

/// Returns the body of the Pod of instance `id`. The function copies the raw template of the composition, so that no
/// field is lost.
///
/// `first` is true for a Pod that is created for the first time, and false for one that is created again. `volumes`
/// maps each volume claim template to the name of its PVC. `extra_labels` are added to the labels of the template.
/// Returns an error if the revision can't be read or a PVC is missing.
pub fn pod_manifest(
    set: &CollaSet,
    composition: &Composition,
    id: i64,
    first: bool,
    volumes: &BTreeMap<String, String>,
    extra_labels: &BTreeMap<String, String>,
    now_nanos: u64,
) -> Result<Value, String> {
    let (revision, template) = (&composition.composed, &composition.template);
    let problem = |text: String| format!("ControllerRevision {}: {text}", template.name);
    let revision_label = template.name.clone();
    let template = data::pod_template(&revision.data).map_err(problem)?;
    let mut metadata = pod_metadata(template);
    annotate_min_ready(set, &mut metadata);
    let mut spec = template.get("spec").cloned().unwrap_or_default();

    if is_sequential(set) {
        let name = format!("{}-{id}", set_name(set));
        if name.len() <= HOSTNAME_LIMIT && !name.contains('.') {
            spec["hostname"] = name.as_str().into();
        }
        metadata.insert("name".to_owned(), name.into());
    } else {
        metadata.insert(
            "generateName".to_owned(),
            format!("{}-", set_name(set)).into(),
        );
    }

    let mut labels = template_labels(template);
    let stage = if first {
        keys::CREATING
    } else {
        keys::COMPLETING
    };
    let own = [
        (keys::CONTROL, keys::CONTROL_VALUE.to_owned()),
        (keys::INSTANCE_ID, id.to_string()),
        (keys::REVISION, revision_label),
        (stage, now_nanos.to_string()),
    ];
    let own = own.map(|(key, value)| (key.to_owned(), value));
    for (key, value) in extra_labels.clone().into_iter().chain(own) {
        labels.insert(key, value.into());
    }
    metadata.insert("labels".to_owned(), labels.into());
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([controller_reference(set)]),
    );

    for template in data::pvc_templates(&revision.data) {
        let name = pvc_template_name(template);
        let pvc_name = volumes.get(name).ok_or_else(|| {
            problem(format!(
                "instance {id} has no PVC for the template {name:?} of volumeClaimTemplates yet"
            ))
        })?;
        mount_pvc(&mut spec, name, pvc_name);
    }
    Ok(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
}

/// Tells the lifecycle how long the Pod must have been Ready. Only the set decides this, so the annotation in the
/// template is removed.
fn annotate_min_ready(set: &CollaSet, metadata: &mut Map<String, Value>) {
    if let Some(annotations) = metadata
        .get_mut("annotations")
        .and_then(Value::as_object_mut)
    {
        annotations.remove(keys::MIN_READY_SECONDS);
    }
    if let Some(seconds) = set.spec.min_ready_seconds.filter(|seconds| *seconds > 0) {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        annotations[keys::MIN_READY_SECONDS] = seconds.to_string().into();
    }
}

pub fn controller_reference(set: &CollaSet) -> Value {
    json!({
        "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
        "kind": "CollaSet",
        "name": set_name(set),
        "uid": set.metadata.uid.as_deref().unwrap_or_default(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Whether a selector matches the Pods that are created from a template.
pub fn template_matches_selector(template: &Value, selector: &Selector) -> bool {
    let labels = template_labels(template).into_iter();
    let labels = labels.map(|(key, value)| (key, value.as_str().unwrap_or_default().to_owned()));
    reserved_labels::is_selected(labels, selector)
}

/// The labels of a template as raw JSON.
pub(super) fn template_labels(template: &Value) -> Map<String, Value> {
    let labels = template
        .pointer("/metadata/labels")
        .and_then(Value::as_object);
    labels.cloned().unwrap_or_default()
}

fn is_sequential(set: &CollaSet) -> bool {
    let policy = set
        .spec
        .naming_strategy
        .as_ref()
        .and_then(|n| n.pod_naming_suffix_policy.as_ref());
    policy == Some(&PodNamingSuffixPolicy::PersistentSequence)
}

fn pod_metadata(template: &Value) -> Map<String, Value> {
    let mut out = Map::new();
    for key in ["annotations", "finalizers"] {
        let value = template.get("metadata").and_then(|m| m.get(key));
        if let Some(value) = value.filter(|v| !v.is_null()) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    out
}

/// Makes `name` a volume of the PVC `pvc_name`. It replaces the volume of that name, or is appended.
fn mount_pvc(spec: &mut Value, name: &str, pvc_name: &str) {
    let Some(spec) = spec.as_object_mut() else {
        return;
    };
    let volume = json!({ "name": name, "persistentVolumeClaim": { "claimName": pvc_name } });
    let volumes = spec.entry("volumes").or_insert(Value::Null);
    if volumes.is_null() {
        *volumes = json!([]);
    }
    let Some(volumes) = volumes.as_array_mut() else {
        return;
    };
    match volumes
        .iter_mut()
        .find(|v| v.get("name").and_then(Value::as_str) == Some(name))
    {
        Some(same) => *same = volume,
        None => volumes.push(volume),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use super::*;
    use crate::domain::collaset::observed::Revision;

    fn set(naming: &str) -> CollaSet {
        serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1",
            "kind": "CollaSet",
            "metadata": { "name": "web", "uid": "u1" },
            "spec": {
                "namingStrategy": { "podNamingSuffixPolicy": naming },
                "volumeClaimTemplates": [{ "metadata": { "name": "data" } }, { "metadata": { "name": "logs" } }],
                "template": {
                    "metadata": {
                        "creationTimestamp": null,
                        "name": "dropped",
                        "labels": { "app": "web", "controller-revision-hash": "mine" },
                        "annotations": { "note": "x" },
                        "finalizers": ["example.com/f"],
                    },
                    "spec": {
                        "newer": { "field": [1] },
                        "containers": [{ "name": "app" }],
                        "volumes": [{ "name": "tmp", "emptyDir": {} }, { "name": "logs", "emptyDir": {} }],
                    },
                },
            },
        }))
        .unwrap()
    }

    fn revision(set: &CollaSet) -> Composition {
        Composition::plain(&Arc::new(Revision {
            name: "web-r1".into(),
            data: data::revision_data(&set.spec),
            ..Revision::default()
        }))
    }

    fn strings(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn made(set: &CollaSet, first: bool) -> Value {
        let volumes = strings(&[("data", "web-data-1"), ("logs", "web-logs-1")]);
        pod_manifest(
            set,
            &revision(set),
            4,
            first,
            &volumes,
            &strings(&[("extra", "1")]),
            99,
        )
        .unwrap()
    }

    #[test]
    fn pod_is_built_from_template_name_labels_owner_and_pvcs() {
        assert_eq!(
            made(&set("Random"), true),
            json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "generateName": "web-",
                    "labels": {
                        "app": "web",
                        "extra": "1",
                        "kusionstack.io/control": "true",
                        "collaset.kusionstack.io/instance-id": "4",
                        "controller-revision-hash": "web-r1",
                        "podopslifecycle.kusionstack.io/creating": "99",
                    },
                    "annotations": { "note": "x" },
                    "finalizers": ["example.com/f"],
                    "ownerReferences": [{
                        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "u1",
                        "controller": true, "blockOwnerDeletion": true,
                    }],
                },
                "spec": {
                    "newer": { "field": [1] },
                    "containers": [{ "name": "app" }],
                    "volumes": [
                        { "name": "tmp", "emptyDir": {} },
                        { "name": "logs", "persistentVolumeClaim": { "claimName": "web-logs-1" } },
                        { "name": "data", "persistentVolumeClaim": { "claimName": "web-data-1" } },
                    ],
                },
            })
        );
    }

    #[test]
    fn pod_that_is_created_again_is_completing() {
        let labels = made(&set("Random"), false)["metadata"]["labels"].clone();
        assert_eq!(labels[keys::COMPLETING], "99");
        assert_eq!(labels.get(keys::CREATING), None);
    }

    #[test]
    fn sequential_name_becomes_host_name_if_valid() {
        let mut set = set("PersistentSequence");
        let pod = made(&set, true);
        assert_eq!(
            (&pod["metadata"]["name"], &pod["spec"]["hostname"]),
            (&json!("web-4"), &json!("web-4"))
        );
        assert_eq!(pod["metadata"].get("generateName"), None);
        for name in ["w".repeat(62), "web.example".to_owned()] {
            set.metadata.name = Some(name);
            assert_eq!(made(&set, true)["spec"].get("hostname"), None);
        }
    }

    #[test]
    fn missing_pvc_and_unreadable_revision_are_errors() {
        let set = set("Random");
        let none = BTreeMap::new();
        assert_eq!(
            pod_manifest(&set, &revision(&set), 4, true, &none, &none, 1).unwrap_err(),
            "ControllerRevision web-r1: instance 4 has no PVC for the template \"data\" of volumeClaimTemplates yet"
        );
        let broken = Composition::plain(&Arc::new(Revision {
            name: "web-r0".into(),
            ..Revision::default()
        }));
        assert_eq!(
            pod_manifest(&set, &broken, 4, true, &none, &none, 1).unwrap_err(),
            "ControllerRevision web-r0: spec.template is missing"
        );
    }
}
