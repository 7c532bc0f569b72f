//! References to the CollaSet: as the controller of what belongs to it, and as the subject of Events.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;
use serde_json::{Value, json};

use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::domain::collaset::plan::Ownership;

/// The set as the controller of an object.
pub fn reference(set: &CollaSet) -> Value {
    json!({
        "apiVersion": format!("{}/{}", keys::GROUP, keys::VERSION),
        "kind": "CollaSet",
        "name": set.metadata.name,
        "uid": set.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// The set as the subject of an Event.
pub fn subject(set: &CollaSet) -> ObjectReference {
    set.object_ref(&())
}

/// `metadata.ownerReferences` of a strategic merge patch, which tells references apart by UID: others stay.
pub fn patch(set: &CollaSet, ownership: Ownership) -> Option<Value> {
    match ownership {
        Ownership::Keep => None,
        Ownership::Adopt => Some(json!([reference(set)])),
        Ownership::Release => Some(json!([{ "$patch": "delete", "uid": set.metadata.uid }])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_adds_or_removes_this_set_alone() {
        let mut set = CollaSet::default();
        set.metadata.name = Some("web".into());
        set.metadata.uid = Some("1".into());
        assert_eq!(patch(&set, Ownership::Keep), None);
        assert_eq!(
            patch(&set, Ownership::Adopt),
            Some(json!([{
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "1",
                "controller": true, "blockOwnerDeletion": true,
            }]))
        );
        assert_eq!(
            patch(&set, Ownership::Release),
            Some(json!([{ "$patch": "delete", "uid": "1" }]))
        );
    }
}
