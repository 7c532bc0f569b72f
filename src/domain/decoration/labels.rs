//! The labels by which decorations select members, and the marks that record the decorations of a Pod.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde_json::{Value, json};

use super::{DecorationRevision, DecorationRevisions};
use crate::api::keys;
use crate::api::poddecoration::PatchPolicy;
use crate::domain::pod::{Owner, Pod};

pub use crate::api::reserved_labels::is_selectable_by_decorations as is_selectable;

/// The label that records a decoration of a Pod.
pub fn decoration_label(decoration: &str) -> String {
    format!("{}{decoration}", keys::DECORATION_PREFIX)
}

/// The decorations of a Pod, from its labels.
pub fn decorations_of(pod: &Pod) -> DecorationRevisions {
    recorded_in(&pod.metadata.labels)
}

/// The decorations that labels record.
pub fn recorded_in(labels: &BTreeMap<String, String>) -> DecorationRevisions {
    let from = (Bound::Included(keys::DECORATION_PREFIX), Bound::Unbounded);
    let marks = labels.range::<str, _>(from);
    let marks = marks.map_while(|(key, revision)| {
        let name = key.strip_prefix(keys::DECORATION_PREFIX)?;
        Some((name.to_owned(), revision.clone()))
    });
    marks.collect()
}

/// Whether an owner reference names a PodDecoration.
pub fn is_decoration(owner: &Owner) -> bool {
    owner.kind == "PodDecoration" && owner.group() == keys::GROUP
}

/// The owner reference of a decorated Pod to a PodDecoration. It is not a controller reference.
pub fn owner_reference(name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
        "kind": "PodDecoration",
        "name": name,
        "uid": uid,
    })
}

/// Writes decorations as JSON, sorted by name, in the form of [`keys::DECORATIONS`].
pub fn to_json(revisions: &DecorationRevisions) -> String {
    let entries = revisions.iter();
    let entries = entries.map(|(name, revision)| json!({ "name": name, "revision": revision }));
    Value::Array(entries.collect()).to_string()
}

/// Reads decorations from JSON in the form of [`keys::DECORATIONS`]. Entries that can't be read are left out.
pub fn from_json(text: &str) -> DecorationRevisions {
    let entries: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
    let entries = entries.iter().filter_map(|entry| {
        let field = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
        Some((field("name")?, field("revision")?))
    });
    entries.collect()
}

/// Returns labels with those of decorations, which are applied by weight and then by name.
pub fn decorated_labels(
    labels: &BTreeMap<String, String>,
    decorations: &[&DecorationRevision],
) -> BTreeMap<String, String> {
    let mut labels = labels.clone();
    let mut decorations = decorations.to_vec();
    decorations.sort_by_key(|revision| (revision.weight, &revision.decoration));
    for patch in decorations.iter().flat_map(|d| &d.template.metadata) {
        for (key, value) in &patch.labels {
            match patch.patch_policy {
                Some(PatchPolicy::Overwrite) => {
                    labels.insert(key.clone(), value.clone());
                }
                _ => {
                    labels.entry(key.clone()).or_insert_with(|| value.clone());
                }
            }
        }
    }
    labels
}

/// The labels that a set gives the Pod of an instance, as far as decorations can select by them.
pub fn own_labels(id: i64, template_revision: &str) -> [(String, String); 3] {
    [
        (keys::CONTROL, keys::CONTROL_VALUE.to_owned()),
        (keys::INSTANCE_ID, id.to_string()),
        (keys::REVISION, template_revision.to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
}

/// The labels by which decorations select a member: the labels that its Pod has once it is up to date, without labels
/// of decorations.
///
/// `template` has the labels of the template revision that the member should have, and `own` those that the set gives
/// the Pod. Labels that somebody has set on the Pod by hand count, too. `made_of` has the labels of all that the Pod
/// consists of at present; the other labels of the Pod were set by hand.
pub fn selection_labels(
    template: &BTreeMap<String, String>,
    own: impl IntoIterator<Item = (String, String)>,
    pod: Option<(&Pod, &BTreeMap<String, String>)>,
) -> BTreeMap<String, String> {
    let mut labels = template.clone();
    if let Some((pod, made_of)) = pod {
        let present = pod.metadata.labels.iter();
        let by_hand = present.filter(|(key, value)| made_of.get(*key) != Some(value));
        labels.extend(by_hand.map(|(key, value)| (key.clone(), value.clone())));
    }
    labels.extend(own);
    labels.retain(|key, _| is_selectable(key));
    labels
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn strings(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        let entries = entries.iter();
        let entries = entries.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        entries.collect()
    }

    #[test]
    fn marks_are_read_from_labels_and_written_to_json() {
        let labels = strings(&[
            ("app", "web"),
            ("poddecoration.kusionstack.io/other", "x"),
            ("poddecoration.kusionstack.io/pd-b", "b-2"),
            ("poddecoration.kusionstack.io/pd-a", "a-1"),
            ("zone", "1"),
        ]);
        let read = recorded_in(&labels);
        assert_eq!(read, strings(&[("a", "a-1"), ("b", "b-2")]));
        let json = r#"[{"name":"a","revision":"a-1"},{"name":"b","revision":"b-2"}]"#;
        assert_eq!(to_json(&read), json);
        assert_eq!(from_json(json), read);
        assert_eq!(from_json("nonsense"), DecorationRevisions::new());
        assert_eq!(to_json(&DecorationRevisions::new()), "[]");
    }

    #[test]
    fn labels_set_by_hand_count_and_labels_of_operations_do_not() {
        let pod: Pod = serde_json::from_value(json!({ "metadata": { "labels": {
            "app": "web", "tier": "old", "color": "blue", "side": "car",
            "operating.podopslifecycle.kusionstack.io/collaset": "1",
            "podopslifecycle.kusionstack.io/service-available": "1",
            "poddecoration.kusionstack.io/pd-a": "a-1",
            "collaset.kusionstack.io/instance-id": "3",
        } } }))
        .unwrap();
        let made_of = strings(&[("app", "web"), ("tier", "old"), ("side", "car")]);
        let template = strings(&[("app", "web"), ("tier", "new")]);
        let own = strings(&[("collaset.kusionstack.io/instance-id", "3")]);
        let labels = selection_labels(&template, own, Some((&pod, &made_of)));
        let want = strings(&[
            ("app", "web"),
            ("tier", "new"),
            ("color", "blue"),
            ("collaset.kusionstack.io/instance-id", "3"),
        ]);
        assert_eq!(labels, want);
    }
}
