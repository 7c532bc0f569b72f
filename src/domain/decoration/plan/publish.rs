//! Makes the value that the plans of CollaSets read.

use std::collections::BTreeSet;

use super::compiled_spec::{CompiledSpec, Strategy};
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::decoration::HeldBackSets;
use crate::domain::decoration::choice::{choose_members, is_reached, last_choice};
use crate::domain::decoration::members::Member;
use crate::domain::decoration::observed::{ObservedDecoration, RefusedWrites};
use crate::domain::decoration::revision::RevisionHistory;
use crate::domain::decoration::{Decoration, MemberKey, Reach};

/// Returns the value to publish, with a reach of all members. The reach needs the members, and the members need the
/// stored revisions of this value.
///
/// `updated` names the revision of the spec once the revision and the finalizer are stored. Until then it names the
/// former revision.
pub fn new_decoration(
    observed: &ObservedDecoration,
    spec: &CompiledSpec,
    history: &RevisionHistory,
) -> Decoration {
    let object = &observed.object;
    let metadata = &object.metadata;
    let status = object.status.as_ref();
    let stored = |name: &str| {
        history
            .revisions
            .contains_key(name)
            .then(|| name.to_owned())
    };
    let current = status.and_then(|status| stored(&status.current_revision));
    let hold = hold_reason(observed, history);
    let deleting = metadata.deletion_timestamp.is_some();
    let is_unusable = deleting || spec.invalid.is_some();
    // The history names the former revision while the revision of the spec is not stored.
    let is_settled = !history.is_stored || hold.is_none() && !is_unusable;
    let updated = match is_settled {
        true => history.updated.clone(),
        false => former_revision(observed).and_then(|name| stored(&name)),
    };
    Decoration {
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        generation: metadata.generation.unwrap_or(0),
        selector: spec.selector.clone(),
        reach: Reach::All,
        deleting,
        invalid: spec.invalid.clone(),
        updated,
        current,
        is_refused: observed.refused != RefusedWrites::default(),
        hold: hold.filter(|_| !is_unusable),
        held_back: HeldBackSets::new(),
        revisions: history.revisions.clone(),
    }
}

/// Whether the PodDecoration has its finalizer. Without it, its revisions could vanish while Pods are decorated.
pub fn has_finalizer(object: &PodDecoration) -> bool {
    let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers
        .iter()
        .any(|finalizer| finalizer == keys::PROTECTED_FINALIZER)
}

/// Why no Pod that the PodDecoration selects may be created yet.
fn hold_reason(observed: &ObservedDecoration, history: &RevisionHistory) -> Option<String> {
    let refused = &observed.refused;
    let (subject, refusal) = match (has_finalizer(&observed.object), history.is_stored) {
        (true, true) => return None,
        (false, _) => ("finalizer", &refused.finalizer),
        (true, false) => ("revision", &refused.revision),
    };
    Some(match refusal {
        Some(refusal) => format!("its {subject} can't be stored: {refusal}"),
        None => format!("its {subject} is not stored yet"),
    })
}

/// The revision that was the updated one before.
fn former_revision(observed: &ObservedDecoration) -> Option<String> {
    let last = observed.last.as_ref().and_then(|last| last.updated.clone());
    let status = observed.object.status.as_ref();
    last.or_else(|| status.map(|status| status.updated_revision.clone()))
}

/// Returns the members that the rollout reaches. While the revision of the spec does not count yet, the spec does not
/// either: the rollout of the former revision goes no further.
pub fn choose_reach(
    observed: &ObservedDecoration,
    spec: &CompiledSpec,
    publish: &Decoration,
    members: &[Member],
) -> Reach {
    let last = observed.last.as_deref();
    let Some(updated) = publish.updated.as_deref() else {
        return Reach::Members(BTreeSet::new());
    };
    if publish.hold.is_some() || publish.invalid.is_some() {
        return Reach::Members(members_reached_before(members, updated, last));
    }
    // Every selected member had this revision before. Only members that a later rollout has changed since have another
    // one, and that rollout was taken back.
    let is_rolled_back = publish.current.as_deref() == Some(updated);
    match &spec.strategy {
        _ if is_rolled_back => Reach::All,
        Strategy::All => Reach::All,
        Strategy::Selector(selector) => Reach::Selector(selector.clone()),
        Strategy::Partition(partition) => {
            let last = last_choice(last, updated);
            Reach::Members(choose_members(members, updated, *partition, &last))
        }
    }
}

/// The members that have the revision, or that the former value reached.
fn members_reached_before(
    members: &[Member],
    updated: &str,
    last: Option<&Decoration>,
) -> BTreeSet<MemberKey> {
    let last = last.filter(|last| last.updated.as_deref() == Some(updated));
    let was_reached = |member: &Member| {
        let mut instances = member.instances.iter();
        last.is_some_and(|last| {
            instances.any(|i| last.selects(&i.labels) && is_reached(&last.reach, member, i))
        })
    };
    let reached = members.iter().filter(|member| {
        let mut instances = member.instances.iter();
        instances.any(|i| i.has_revision(updated)) || was_reached(member)
    });
    reached.map(|member| member.key.clone()).collect()
}
