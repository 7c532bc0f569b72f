//! The owner references of Pods to PodDecorations.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::draft::Draft;
use super::plan::{OwnershipChange, PodPatch};
use super::set_facts::SetFacts;
use crate::api::keys;
use crate::domain::decoration::labels::{is_decoration, owner_reference, recorded_in};
use crate::domain::pod::{Owner, Pod};

/// Adds and removes references so that each Pod refers to exactly the PodDecorations in its labels. A Pod that leaves
/// the set refers to none: the garbage collector would delete it once its last PodDecoration is deleted.
pub fn correct_decoration_owners(facts: &SetFacts, draft: &mut Draft) {
    let refers = |pod: &Pod| pod.metadata.owner_references.iter().any(is_decoration);
    let candidates = facts.observed.pods.iter().filter(|pod| {
        !pod.is_terminating() && (!facts.observed.decorations.is_empty() || refers(pod))
    });
    for pod in candidates {
        let owners = owner_changes(facts, draft, pod);
        if !owners.is_empty() {
            draft.pod_patch(pod).decoration_owners = owners;
        }
    }
}

/// The entries of a strategic merge patch that remove the references to PodDecorations from a Pod that no CollaSet
/// controls any more. Empty if there are none.
///
/// The set removes the references itself where it lets a Pod go. The Pods of a set that is deleted with
/// `--cascade=orphan` are released by the garbage collector of Kubernetes.
pub fn abandoned_decoration_owners(pod: &Pod) -> Vec<Value> {
    let controlled = pod.controller().is_some_and(Owner::is_collaset);
    if controlled || !is_released_later(pod) {
        return Vec::new();
    }
    let owners = pod.metadata.owner_references.iter();
    let decorations = owners.filter(|owner| is_decoration(owner));
    decorations
        .map(|owner| json!({ "$patch": "delete", "uid": owner.uid }))
        .collect()
}

/// Whether the references of a Pod to PodDecorations are removed once no CollaSet controls the Pod. The Pod shows that it
/// belonged to a set.
pub fn is_released_later(pod: &Pod) -> bool {
    let was_of_set = pod.label(keys::INSTANCE_ID).is_some()
        || !recorded_in(&pod.metadata.labels).is_empty()
        || pod.controller().is_some_and(Owner::is_collaset);
    was_of_set && pod.is_managed() && !pod.is_terminating()
}

/// The entries of a strategic merge patch that correct the references of one Pod.
fn owner_changes(facts: &SetFacts, draft: &Draft, pod: &Arc<Pod>) -> Vec<Value> {
    let patch = draft.find_patch(pod);
    if patch.is_some_and(|patch| patch.dry_run_only) {
        return Vec::new(); // a dry run can't be combined with a write
    }
    let leaves = patch.is_some_and(|patch| patch.ownership == OwnershipChange::Release);
    let decorations = match leaves {
        true => Vec::new(),
        false => decorations_after(facts, patch, pod),
    };
    let wanted: BTreeSet<&str> = decorations.iter().map(|(_, uid)| &**uid).collect();
    let present = pod.metadata.owner_references.iter();
    let present = present.filter(|owner| is_decoration(owner));
    let present: BTreeSet<&str> = present.map(|owner| &*owner.uid).collect();
    let removed = present.difference(&wanted);
    let removed = removed.map(|uid| json!({ "$patch": "delete", "uid": uid }));
    let added = decorations
        .iter()
        .filter(|(_, uid)| !present.contains(&**uid));
    let added = added.map(|(name, uid)| owner_reference(name, uid));
    removed.chain(added).collect()
}

/// Names and UIDs of the existing PodDecorations that the labels of a Pod name after its patch.
fn decorations_after(
    facts: &SetFacts,
    patch: Option<&PodPatch>,
    pod: &Pod,
) -> Vec<(String, String)> {
    let mut labels = pod.metadata.labels.clone();
    for (key, value) in patch.into_iter().flat_map(|patch| &patch.labels.0) {
        match value {
            Some(value) => labels.insert(key.clone(), value.clone()),
            None => labels.remove(key),
        };
    }
    let names = recorded_in(&labels).into_keys();
    let existing = names.filter_map(|name| {
        let uid = facts.find_decoration(&name)?.uid.clone();
        Some((name, uid))
    });
    existing.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn references_of_pod_without_set_are_removed() {
        let reference = |kind: &str, uid: &str, controller: bool| json!({ "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "name": "x", "uid": uid, "controller": controller });
        let pod = |owners: Value| -> Pod {
            let labels = json!({ (keys::CONTROL): "true", (keys::INSTANCE_ID): "1" });
            let metadata = json!({ "labels": labels, "ownerReferences": owners });
            serde_json::from_value(json!({ "metadata": metadata })).unwrap()
        };
        let decoration = || reference("PodDecoration", "d", false);
        let abandoned = pod(json!([decoration(), reference("Other", "o", false)]));
        let removal = json!({ "$patch": "delete", "uid": "d" });
        assert_eq!(abandoned_decoration_owners(&abandoned), [removal]);
        let owned = pod(json!([decoration(), reference("CollaSet", "s", true)]));
        assert!(abandoned_decoration_owners(&owned).is_empty());
    }
}
