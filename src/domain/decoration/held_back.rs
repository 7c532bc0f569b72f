//! Members that Kuperator has not decorated because the partition of their CollaSet held them back.
//!
//! In Kuperator a partition of a CollaSet, or `byLabel`, holds back changes of decorations, too; in Operating it does
//! not. If these changes arrived as soon as Operating takes a cluster over, Pods would be recreated without a change by
//! anybody. An annotation on the PodDecoration therefore names the CollaSets that Kuperator held back. Their members
//! that are out of the scope of the set's rollout keep their decorations until the spec of the PodDecoration or of the
//! CollaSet changes.

use serde::{Deserialize, Serialize};

use super::HeldBackSets;
use super::labels::decorations_of;
use super::members::Member;
use super::observed::{ObservedDecoration, SetOfNamespace};
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::observed::set_name;

/// The value of the annotation [`keys::HELD_BACK`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct HeldBack {
    /// Generation of the PodDecoration to which the value applies.
    generation: i64,
    sets: HeldBackSets,
}

/// The sets that the annotation of a PodDecoration names. Empty if the annotation does not apply to its present spec.
pub fn recorded_sets(object: &PodDecoration) -> HeldBackSets {
    let metadata = &object.metadata;
    let annotations = metadata.annotations.as_ref();
    let stored = annotations.and_then(|annotations| annotations.get(keys::HELD_BACK));
    let stored = stored.and_then(|stored| serde_json::from_str::<HeldBack>(stored).ok());
    let is_valid = |stored: &HeldBack| {
        stored.generation == metadata.generation.unwrap_or(0)
            && metadata.deletion_timestamp.is_none()
    };
    stored
        .filter(is_valid)
        .map_or_else(HeldBackSets::new, |stored| stored.sets)
}

/// Returns the sets that are held back, and the change of the annotation that this needs: `Some(None)` removes it.
pub fn held_back_sets(
    observed: &ObservedDecoration,
    members: &[Member],
    updated: Option<&str>,
) -> (HeldBackSets, Option<Option<String>>) {
    let metadata = &observed.object.metadata;
    let annotations = metadata.annotations.as_ref();
    let stored = annotations.and_then(|annotations| annotations.get(keys::HELD_BACK));
    let generation = metadata.generation.unwrap_or(0);
    let is_deleting = metadata.deletion_timestamp.is_some();
    if stored.is_some() {
        let present: HeldBackSets = recorded_sets(&observed.object)
            .into_iter()
            .filter(|(name, generation)| {
                let set = observed.sets.iter().find(|set| set_name(&set.set) == name);
                set.is_some_and(|set| set_generation(set) == *generation)
            })
            .collect();
        let change = present.is_empty().then_some(None);
        return (present, change);
    }
    if is_deleting || !was_written_by_kuperator(observed) {
        return (HeldBackSets::new(), None);
    }
    let held = observed.sets.iter().filter(|set| {
        has_partial_rollout(set) && has_pods_behind(set, &observed.object, members, updated)
    });
    let sets: HeldBackSets = held
        .map(|set| (set_name(&set.set).to_owned(), set_generation(set)))
        .collect();
    let value = HeldBack {
        generation,
        sets: sets.clone(),
    };
    let change = (!sets.is_empty()).then(|| serde_json::to_string(&value).ok());
    (sets, change)
}

/// Whether the status was written by Kuperator, for the present spec: it has a revision, and no conditions.
fn was_written_by_kuperator(observed: &ObservedDecoration) -> bool {
    let object = &observed.object;
    object.status.as_ref().is_some_and(|status| {
        !status.updated_revision.is_empty()
            && status.conditions.is_empty()
            && Some(status.observed_generation) == object.metadata.generation
    })
}

fn set_generation(set: &SetOfNamespace) -> i64 {
    set.set.metadata.generation.unwrap_or(0)
}

/// Whether the rollout of a set leaves out some members.
fn has_partial_rollout(set: &SetOfNamespace) -> bool {
    let update = set.set.spec.update_strategy.as_ref();
    let rolling = update.and_then(|update| update.rolling_update.as_ref());
    rolling.is_some_and(|rolling| rolling.by_label.is_some() || rolling.by_partition.is_some())
}

/// Whether a Pod of the set does not have the updated revision although it is selected, or has the decoration although
/// it is not.
fn has_pods_behind(
    set: &SetOfNamespace,
    object: &PodDecoration,
    members: &[Member],
    updated: Option<&str>,
) -> bool {
    let decoration = object.metadata.name.as_deref().unwrap_or_default();
    let selected: Vec<&str> = members
        .iter()
        .flat_map(Member::pods)
        .map(|pod| &*pod.metadata.uid)
        .collect();
    let mut pods = set.pods.iter().filter(|pod| !pod.is_terminating());
    pods.any(|pod| {
        let held = decorations_of(pod).remove(decoration);
        match selected.contains(&&*pod.metadata.uid) {
            true => held.as_deref() != updated,
            false => held.is_some(),
        }
    })
}
