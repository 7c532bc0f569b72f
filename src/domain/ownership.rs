//! Changes of `metadata.ownerReferences` after which the Kubernetes garbage collector may delete a Pod.
//!
//! The Kubernetes garbage collector deletes an object if none of its `ownerReferences` names an existing object,
//! whether or not one of them is the controller. It does not delete an object without references. One reference to an
//! existing object is enough to keep the object (`attemptToDeleteItem` in
//! `pkg/controller/garbagecollector/garbagecollector.go`).

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::pod::{Owner, Pod};

/// A change of the owner references after which the Pod may be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerChange<'a> {
    /// The new references. There is at least one.
    pub owners: &'a [Owner],
    /// Whether the Pod changes from one controller to another. If false, the change is harmless as long as one of the
    /// owners exists.
    pub other_controller: bool,
}

impl OwnerChange<'_> {
    /// The UID of the new controller as a [`uid_token`]. Without a controller, this is the UID of the first owner.
    pub fn new_controller_token(&self) -> Cow<'_, str> {
        let controller = self.owners.iter().find(|o| o.controller);
        let target = controller.or(self.owners.first());
        target.map_or(Cow::Borrowed(""), |owner| uid_token(&owner.uid))
    }
}

/// A UID without spaces, so that one text can contain several UIDs. The API server accepts any text that is not empty
/// as the UID of an owner.
pub fn uid_token(uid: &str) -> Cow<'_, str> {
    match uid.contains([' ', '%']) {
        true => Cow::Owned(uid.replace('%', "%25").replace(' ', "%20")),
        false => Cow::Borrowed(uid),
    }
}

/// How an UPDATE changes the owners of a Pod. `None` if all references are removed, or if all former references are
/// kept: in these cases the change gives the Kubernetes garbage collector no reason to delete the Pod.
pub fn owner_change<'a>(old: &Pod, new: &'a Pod) -> Option<OwnerChange<'a>> {
    let owners = &new.metadata.owner_references;
    let old_owners = &old.metadata.owner_references;
    if owners.is_empty() {
        return None;
    }
    let other_controller = matches!(
        (old.controller(), new.controller()),
        (Some(old), Some(new)) if old.uid != new.uid
    );
    // A set is faster, because a Pod may have thousands of references.
    let new_owners: BTreeSet<_> = owners.iter().map(reference_identity).collect();
    let is_harmless = !old_owners.is_empty()
        && old_owners
            .iter()
            .all(|o| new_owners.contains(&reference_identity(o)));
    (other_controller || !is_harmless).then_some(OwnerChange {
        owners,
        other_controller,
    })
}

/// The identity of the object that a reference names. The Kubernetes garbage collector also uses the kind and name of
/// an owner.
fn reference_identity(owner: &Owner) -> [&str; 4] {
    [&owner.uid, &owner.api_version, &owner.kind, &owner.name]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A Pod with owners of these UIDs. An owner whose UID begins with `c` is the controller.
    fn owned(uids: &[&str]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.owner_references = uids
            .iter()
            .map(|uid| Owner {
                uid: (*uid).to_owned(),
                controller: uid.starts_with('c'),
                ..Owner::default()
            })
            .collect();
        pod
    }

    /// Whether the change is one of the controller, and its target. `None` if the change is harmless.
    fn judged(old: &[&str], new: &[&str]) -> Option<(bool, String)> {
        let (old, new) = (owned(old), owned(new));
        owner_change(&old, &new)
            .map(|c| (c.other_controller, c.new_controller_token().into_owned()))
    }

    #[test]
    fn change_of_controller_is_named() {
        assert_eq!(judged(&["c1"], &["c2"]), Some((true, "c2".to_owned())));
        assert_eq!(
            judged(&["c1", "a"], &["a", "c2"]),
            Some((true, "c2".to_owned()))
        );
    }

    #[test]
    fn new_owner_of_a_pod_without_one_is_named() {
        assert_eq!(judged(&[], &["c1"]), Some((false, "c1".to_owned())));
        assert_eq!(judged(&[], &["a"]), Some((false, "a".to_owned())));
    }

    #[test]
    fn loss_of_one_owner_of_two_is_named() {
        assert_eq!(judged(&["c1", "a"], &["a"]), Some((false, "a".to_owned())));
    }

    #[test]
    fn dropping_all_owners_or_adding_one_is_harmless() {
        for (old, new) in [
            (&["c1", "a"][..], &[][..]),
            (&["c1"], &["c1"]),
            (&["c1"], &["c1", "a"]),
            (&["a"], &["c1", "a"]),
            (&[], &[]),
        ] {
            assert_eq!(judged(old, new), None, "{old:?} to {new:?}");
        }
    }

    #[test]
    fn same_uid_under_another_name_is_another_owner() {
        let (old, mut new) = (owned(&["c1"]), owned(&["c1"]));
        new.metadata.owner_references[0].name = "other".to_owned();
        assert!(owner_change(&old, &new).is_some());
    }
}
