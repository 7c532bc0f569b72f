//! References to the CollaSet: patches of the owner references of its objects, and the subject of Events.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use serde_json::{Value, json};

use crate::api::collaset::CollaSet;
use crate::domain::collaset::construct::controller_reference;
use crate::domain::collaset::plan::OwnershipChange;

/// The set as the subject of an Event.
pub fn set_object_reference(set: &CollaSet) -> ObjectReference {
    set.object_ref(&())
}

/// `metadata.ownerReferences` of a strategic merge patch; `None` if the owners do not change. The patch merges by UID,
/// so the references to other owners stay.
pub fn owner_references_patch(set: &CollaSet, ownership: OwnershipChange) -> Option<Value> {
    match ownership {
        OwnershipChange::Keep => None,
        OwnershipChange::Adopt => Some(json!([controller_reference(set)])),
        OwnershipChange::Release => Some(json!([{ "$patch": "delete", "uid": set.metadata.uid }])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_adds_or_removes_only_this_set() {
        let mut set = CollaSet::default();
        set.metadata.name = Some("web".into());
        set.metadata.uid = Some("1".into());
        assert_eq!(owner_references_patch(&set, OwnershipChange::Keep), None);
        assert_eq!(
            owner_references_patch(&set, OwnershipChange::Adopt),
            Some(json!([{
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "1",
                "controller": true, "blockOwnerDeletion": true,
            }]))
        );
        assert_eq!(
            owner_references_patch(&set, OwnershipChange::Release),
            Some(json!([{ "$patch": "delete", "uid": "1" }]))
        );
    }
}
