//! What a Pod is made of: a revision of the template, with the decorations that are applied to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::observed::Revision;
use crate::api::keys;
use crate::domain::decoration::apply::{ApplyFailure, apply_decorations};
use crate::domain::decoration::labels::{decoration_label, decorations_of, to_json};
use crate::domain::decoration::{DecorationRevision, DecorationRevisions};
use crate::domain::pod::Pod;

/// Separates the names of revisions in the name of a composition. No name of a ControllerRevision contains it.
const SEPARATOR: char = '+';

/// What a Pod is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Composition {
    /// The revision of the template.
    pub template: Arc<Revision>,
    /// The decorations.
    pub decorations: DecorationRevisions,
    /// A revision whose data has the decorations and their marks. Its name is that of [`composition_name`]. Without
    /// decorations it is the revision of the template.
    pub composed: Arc<Revision>,
}

impl Composition {
    /// The composition without decorations.
    pub fn plain(template: &Arc<Revision>) -> Composition {
        Composition {
            template: Arc::clone(template),
            decorations: DecorationRevisions::new(),
            composed: without_marks(template),
        }
    }

    /// Applies decorations to a revision of the template.
    ///
    /// # Errors
    /// If a decoration can't be applied to this template.
    pub fn decorated(
        template: &Arc<Revision>,
        revisions: &[&DecorationRevision],
    ) -> Result<Composition, ApplyFailure> {
        if revisions.is_empty() {
            return Ok(Composition::plain(template));
        }
        let decorations: DecorationRevisions = revisions
            .iter()
            .map(|revision| (revision.decoration.clone(), revision.name.clone()))
            .collect();
        let mut data = without_marks(template).data.clone();
        if let Some(spec) = data.get_mut("spec").and_then(Value::as_object_mut) {
            let raw = spec.get("template").unwrap_or(&Value::Null);
            let mut pod_template = apply_decorations(raw, revisions)?;
            mark_decorations(&mut pod_template, &decorations);
            spec.insert("template".to_owned(), pod_template);
        }
        let composed = Revision {
            name: composition_name(&template.name, &decorations),
            data,
            ..(**template).clone()
        };
        Ok(Composition {
            template: Arc::clone(template),
            decorations,
            composed: Arc::new(composed),
        })
    }

    /// The name by which refusals and resizes of Pods refer to this composition.
    pub fn name(&self) -> &str {
        &self.composed.name
    }
}

/// Names a composition: the revision of the template, then the revisions of the decorations, each after `+`, in the
/// order of the names of the PodDecorations. Without decorations it is the name of the revision.
pub fn composition_name(template: &str, decorations: &DecorationRevisions) -> String {
    let mut name = template.to_owned();
    for revision in decorations.values() {
        name.push(SEPARATOR);
        name.push_str(revision);
    }
    name
}

/// The name of the composition of a Pod, from its labels. `None` if the Pod has no revision.
pub fn composition_name_of(pod: &Pod) -> Option<String> {
    Some(composition_name(
        pod.label(keys::REVISION)?,
        &decorations_of(pod),
    ))
}

/// The name of the template's revision, and the names of the revisions of decorations, in the name of a composition.
pub fn split_name(name: &str) -> (&str, impl Iterator<Item = &str>) {
    let mut parts = name.split(SEPARATOR);
    (parts.next().unwrap_or_default(), parts)
}

/// Returns a revision whose template has no marks of decorations. Admission refuses a template with marks, but one may be
/// stored. Its Pods would seem to have decorations, and the set would update them without end.
fn without_marks(template: &Arc<Revision>) -> Arc<Revision> {
    const FIELDS: [&str; 2] = ["labels", "annotations"];
    let is_mark = |key: &String| key.starts_with(keys::DECORATION_DOMAIN);
    let metadata = &template.data["spec"]["template"]["metadata"];
    let mut values = FIELDS
        .iter()
        .filter_map(|field| metadata[*field].as_object());
    if !values.any(|values| values.keys().any(is_mark)) {
        return Arc::clone(template);
    }
    let mut template = Revision::clone(template);
    let metadata = &mut template.data["spec"]["template"]["metadata"];
    for field in FIELDS {
        if let Some(values) = metadata[field].as_object_mut() {
            values.retain(|key, _| !is_mark(key));
        }
    }
    Arc::new(template)
}

/// Writes the marks of decorations into a Pod template, so that a change of decorations changes the marks, too.
fn mark_decorations(pod_template: &mut Value, decorations: &DecorationRevisions) {
    let labels = decorations.iter();
    let labels = labels.map(|(name, revision)| (decoration_label(name), json!(revision)));
    let annotation = (keys::DECORATIONS.to_owned(), json!(to_json(decorations)));
    insert_all(pod_template, "labels", labels);
    insert_all(pod_template, "annotations", [annotation]);
}

fn insert_all(
    pod_template: &mut Value,
    field: &str,
    entries: impl IntoIterator<Item = (String, Value)>,
) {
    let metadata = &mut pod_template["metadata"];
    if metadata.is_null() {
        *metadata = json!({});
    }
    let values = &mut metadata[field];
    if values.is_null() {
        *values = json!({});
    }
    if let Some(values) = values.as_object_mut() {
        values.extend(entries);
    }
}

/// The stored revisions of decorations of a namespace, by the name of the ControllerRevision.
pub type StoredDecorations = BTreeMap<String, Arc<DecorationRevision>>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn revision(decoration: &str, name: &str, label: &str) -> DecorationRevision {
        DecorationRevision {
            decoration: decoration.into(),
            name: name.into(),
            template: serde_json::from_value(json!({
                "metadata": [{ "patchPolicy": "Retain", "labels": { label: "1" } }],
            }))
            .unwrap(),
            weight: 0,
        }
    }

    fn template() -> Arc<Revision> {
        let spec = json!({ "containers": [{ "name": "app", "image": "a:1" }] });
        Arc::new(Revision {
            name: "web-1".into(),
            data: json!({ "spec": { "template": { "$patch": "replace", "spec": spec } } }),
            ..Revision::default()
        })
    }

    #[test]
    fn composition_has_marks_and_name_of_its_revisions() {
        let (a, b) = (revision("a", "a-9", "x"), revision("b", "b-1", "y"));
        let composition = Composition::decorated(&template(), &[&b, &a]).unwrap();
        assert_eq!(composition.name(), "web-1+a-9+b-1");
        let (of_template, of_decorations) = split_name(composition.name());
        assert_eq!(of_template, "web-1");
        assert_eq!(of_decorations.collect::<Vec<_>>(), ["a-9", "b-1"]);
        let metadata = &composition.composed.data["spec"]["template"]["metadata"];
        assert_eq!(
            metadata["labels"]["poddecoration.kusionstack.io/pd-a"],
            "a-9"
        );
        assert_eq!(
            metadata["labels"]["poddecoration.kusionstack.io/pd-b"],
            "b-1"
        );
        assert_eq!(
            metadata["annotations"][keys::DECORATIONS],
            r#"[{"name":"a","revision":"a-9"},{"name":"b","revision":"b-1"}]"#
        );
        let pod = json!({ "metadata": { "labels": metadata["labels"] } });
        let mut pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(composition_name_of(&pod), None);
        let own = (keys::REVISION.to_owned(), "web-1".to_owned());
        pod.metadata.labels.extend([own]);
        assert_eq!(
            composition_name_of(&pod).as_deref(),
            Some(composition.name())
        );
    }

    #[test]
    fn composition_without_decorations_is_the_revision() {
        let template = template();
        let composition = Composition::decorated(&template, &[]).unwrap();
        assert_eq!(composition, Composition::plain(&template));
        assert!(Arc::ptr_eq(&composition.composed, &template));
        assert_eq!(composition.name(), "web-1");
    }
}
