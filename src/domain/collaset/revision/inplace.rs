//! In-place updates: what can change in a running Pod (contract 6.5). Whether the kubelet has caught up is
//! [`progress`]'s to say.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::data::{pairs, strings, text};
pub use super::progress::{Progress, last_status, progress, resize as resize_progress};
use super::{data, environment, resize};
use crate::domain::collaset::core_v1::{difference, pull_policy};
use crate::domain::lifecycle::LabelPatch;

/// Annotations of the template by which tools ask for new Pods: `kubectl rollout restart`, and charts that put the digest of
/// a ConfigMap there.
const RESTARTS: (&str, &str) = ("kubectl.kubernetes.io/restartedAt", "checksum/");

/// Whether a Pod of one revision can be turned into one of another.
#[derive(Clone, Debug, PartialEq)]
pub enum InPlace {
    /// It cannot; the reason names the field.
    No(String),
    /// It can, by this change.
    Yes {
        /// Labels of the template.
        labels: LabelPatch,
        /// Annotations of the template, to set (`Some`) and to remove (`None`).
        annotations: BTreeMap<String, Option<String>>,
        /// Strategic merge patch to the content of `spec` for `pods`: the images.
        spec: Option<Value>,
        /// Strategic merge patch to the content of `spec` for `pods/resize`.
        resize: Option<Value>,
        /// Names of the containers whose image changes, restartable init containers among them.
        images: Vec<String>,
    },
}

impl InPlace {
    /// As this change, of a Pod that has resources of another revision, from which `other` leads to the same one.
    pub fn with_resize_of(mut self, other: &InPlace) -> InPlace {
        match (&mut self, other) {
            (InPlace::No(_), _) => self,
            (_, InPlace::No(why)) => InPlace::No(why.clone()),
            (InPlace::Yes { resize, .. }, InPlace::Yes { resize: more, .. }) => {
                *resize = resize::both(resize.take(), more.as_ref());
                self
            }
        }
    }
}

/// What turns a Pod of revision data `from` into one of `to`. Labels, annotations, images of containers and of
/// restartable init containers, and what `pods/resize` accepts may differ; the rest must mean the same. Of annotations those
/// that ask for a restart must be the same too, and what a container has in its environment by `fieldRef` and `resourceFieldRef`, unless the
/// container starts anew.
pub fn change(from: &Value, to: &Value) -> InPlace {
    try_change(from, to).unwrap_or_else(InPlace::No)
}

fn try_change(from: &Value, to: &Value) -> Result<InPlace, String> {
    if !data::same_claims(data::claim_templates(from), data::claim_templates(to)) {
        return Err("volumeClaimTemplates differ".to_owned());
    }
    let (from_rest, to_rest) = (rest(from)?, rest(to)?);
    if let Some(path) = difference("template", &from_rest, &to_rest) {
        return Err(format!("{path} differs"));
    }

    let (from, to) = (data::template(from)?, data::template(to)?);
    let mut spec = Map::new();
    let mut images = Vec::new();
    for list in ["containers", "initContainers"] {
        let mut changed = Vec::new();
        for (old, new) in pairs(from, to, list) {
            let image = text(new, "image");
            let path = format!("template.spec.{list}[{}].image", text(new, "name"));
            if have_other_pull_policies(old, new) {
                return Err(format!("{path}PullPolicy differs"));
            }
            if text(old, "image") != image {
                if image.is_empty() {
                    return Err(format!("{path} is empty"));
                }
                if list == "initContainers" && text(new, "restartPolicy") != "Always" {
                    return Err(format!(
                        "{path} differs, and that container has run already"
                    ));
                }
                changed.push(json!({ "name": text(new, "name"), "image": image }));
                images.push(text(new, "name").to_owned());
            }
        }
        if !changed.is_empty() {
            spec.insert(list.to_owned(), changed.into());
        }
    }
    if let Some(path) = environment::outdated(from, to) {
        return Err(format!("{path}, and only a new container sees that"));
    }
    Ok(InPlace::Yes {
        labels: LabelPatch::between(&strings(from, "labels"), &strings(to, "labels")),
        annotations: LabelPatch::between(
            &strings(from, "annotations"),
            &strings(to, "annotations"),
        )
        .0,
        spec: (!spec.is_empty()).then_some(Value::Object(spec)),
        resize: resize::patch(from, to)?,
        images,
    })
}

/// The template in its normal form, without what may change in place.
fn rest(data: &Value) -> Result<Value, String> {
    data::template(data)?;
    let mut template = data::normal_template(data).unwrap_or_default();
    if let Some(metadata) = template.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.shift_remove("labels");
        let annotations = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut);
        let kept = annotations.is_some_and(|annotations| {
            annotations.retain(|key, _| key == RESTARTS.0 || key.starts_with(RESTARTS.1));
            !annotations.is_empty()
        });
        if !kept {
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
            container.shift_remove("imagePullPolicy"); // see `have_other_pull_policies`
        }
    }
    Ok(template)
}

/// Whether the pull policies differ, which no running Pod can change. One that neither template gives stays what it became by
/// the first image.
fn have_other_pull_policies(old: &Value, new: &Value) -> bool {
    let given = [old, new].map(|container| text(container, "imagePullPolicy"));
    let [before, after] = [old, new].map(|container| match text(container, "imagePullPolicy") {
        "" => pull_policy(text(container, "image")),
        given => given,
    });
    given != ["", ""] && before != after
}
