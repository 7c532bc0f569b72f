//! In-place updates of a CollaSet: which changes a running Pod can take (contract 6.5). [`super::progress`] says
//! whether the kubelet has applied them. `domain/collaset/update/pods.rs` plans the updates; `domain/inplace` finds the
//! changes that restart containers, for Pods of any owner.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::data::{container_pairs, string_field, string_map};
use super::{data, environment, resize};
use crate::domain::collaset::core_v1::{default_pull_policy, first_difference};
use crate::domain::lifecycle::LabelPatch;

/// Annotations of the template by which tools ask for new Pods: the annotation of `kubectl rollout restart`, and the
/// prefix that charts use for the digest of a ConfigMap.
const RESTART_ANNOTATIONS: (&str, &str) = ("kubectl.kubernetes.io/restartedAt", "checksum/");

/// Whether and how a Pod can change in place from one revision to another.
#[derive(Clone, Debug, PartialEq)]
pub enum InPlaceChange {
    /// The Pod can't change; the text names the field.
    No(String),
    /// The Pod can change in this way.
    Yes {
        /// Labels of the template to set and to remove.
        labels: LabelPatch,
        /// Annotations of the template, to set (`Some`) and to remove (`None`).
        annotations: BTreeMap<String, Option<String>>,
        /// Strategic merge patch of `spec` for `pods`: the images.
        spec: Option<Value>,
        /// Strategic merge patch of `spec` for `pods/resize`.
        resize: Option<Value>,
        /// Names of the containers whose image changes, including restartable init containers.
        images: Vec<String>,
    },
}

impl InPlaceChange {
    /// Extends this change for a Pod that has resources of another revision. `other` is the change from that revision
    /// to the same target.
    pub fn with_resize_of(mut self, other: &InPlaceChange) -> InPlaceChange {
        match (&mut self, other) {
            (InPlaceChange::No(_), _) => self,
            (_, InPlaceChange::No(reason)) => InPlaceChange::No(reason.clone()),
            (InPlaceChange::Yes { resize, .. }, InPlaceChange::Yes { resize: more, .. }) => {
                *resize = resize::merge_resizes(resize.take(), more.as_ref());
                self
            }
        }
    }
}

/// Returns the change that turns a Pod of revision data `from` into a Pod of revision data `to`. Labels, annotations,
/// images of containers and of restartable init containers, and the resources that `pods/resize` accepts may differ.
/// The rest must have the same meaning. Annotations that ask for a restart must be the same. Environment variables by
/// `fieldRef` and `resourceFieldRef` must be the same unless the container restarts.
pub fn in_place_change(from: &Value, to: &Value) -> InPlaceChange {
    try_in_place_change(from, to).unwrap_or_else(InPlaceChange::No)
}

fn try_in_place_change(from: &Value, to: &Value) -> Result<InPlaceChange, String> {
    if !data::have_same_pvc_templates(data::pvc_templates(from), data::pvc_templates(to)) {
        return Err("volumeClaimTemplates differ".to_owned());
    }
    let (from_rest, to_rest) = (immutable_rest(from)?, immutable_rest(to)?);
    if let Some(path) = first_difference("template", &from_rest, &to_rest) {
        return Err(format!("{path} differs"));
    }

    let (from, to) = (data::pod_template(from)?, data::pod_template(to)?);
    let mut spec = Map::new();
    let mut images = Vec::new();
    for list in ["containers", "initContainers"] {
        let mut changed = Vec::new();
        for (old, new) in container_pairs(from, to, list) {
            let image = string_field(new, "image");
            let path = format!("template.spec.{list}[{}].image", string_field(new, "name"));
            if have_pull_policies_changed(old, new) {
                return Err(format!("{path}PullPolicy differs"));
            }
            if string_field(old, "image") != image {
                if image.is_empty() {
                    return Err(format!("{path} is empty"));
                }
                if list == "initContainers" && string_field(new, "restartPolicy") != "Always" {
                    return Err(format!(
                        "{path} differs, and that container has run already"
                    ));
                }
                changed.push(json!({ "name": string_field(new, "name"), "image": image }));
                images.push(string_field(new, "name").to_owned());
            }
        }
        if !changed.is_empty() {
            spec.insert(list.to_owned(), changed.into());
        }
    }
    if let Some(path) = environment::first_outdated_variable(from, to) {
        return Err(format!("{path}, and only a new container sees that"));
    }
    Ok(InPlaceChange::Yes {
        labels: LabelPatch::between(&string_map(from, "labels"), &string_map(to, "labels")),
        annotations: LabelPatch::between(
            &string_map(from, "annotations"),
            &string_map(to, "annotations"),
        )
        .0,
        spec: (!spec.is_empty()).then_some(Value::Object(spec)),
        resize: resize::resize_patch(from, to)?,
        images,
    })
}

/// The template in its normal form, without the parts that may change in place.
fn immutable_rest(data: &Value) -> Result<Value, String> {
    data::pod_template(data)?;
    let mut template = data::normal_template(data).unwrap_or_default();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("labels");
        let annotations = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut);
        let has_kept_annotations = annotations.is_some_and(|annotations| {
            annotations.retain(|key, _| {
                key == RESTART_ANNOTATIONS.0 || key.starts_with(RESTART_ANNOTATIONS.1)
            });
            !annotations.is_empty()
        });
        if !has_kept_annotations {
            metadata.shift_remove("annotations");
        }
        if metadata.is_empty() {
            template
                .as_object_mut()
                .and_then(|template| template.shift_remove("metadata"));
        }
    }
    for (list, resizable) in [("containers", true), ("initContainers", false)] {
        let containers = template
            .pointer_mut(&format!("/spec/{list}"))
            .and_then(Value::as_array_mut);
        for container in containers
            .into_iter()
            .flatten()
            .filter_map(Value::as_object_mut)
        {
            if resizable {
                container.shift_remove("resources");
            }
            container.shift_remove("image");
            container.shift_remove("imagePullPolicy"); // compared by `have_pull_policies_changed`
        }
    }
    Ok(template)
}

/// Whether the pull policies differ, which no running Pod can change. If neither template has one, the Pod keeps the
/// default of its first image.
fn have_pull_policies_changed(old: &Value, new: &Value) -> bool {
    let given = [old, new].map(|container| string_field(container, "imagePullPolicy"));
    let [before, after] =
        [old, new].map(
            |container| match string_field(container, "imagePullPolicy") {
                "" => default_pull_policy(string_field(container, "image")),
                given => given,
            },
        );
    given != ["", ""] && before != after
}
