//! A PodDecoration as commands for users see it, which read only the stored object: neither its revisions nor the value
//! that the controller publishes.

use std::sync::Arc;

use super::held_back::recorded_sets;
use super::plan::{CompiledSpec, Strategy};
use super::status::HOLD_MESSAGE;
use super::{Decoration, DecorationRevision, Reach};
use crate::api::poddecoration::{PodDecoration, PodDecorationStatus};

/// A PodDecoration, made from the stored object.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredDecoration {
    /// The PodDecoration. With a partition, its reach contains no member, because the chosen members are not stored in
    /// the object.
    pub decoration: Decoration,
    /// Number of Pods that the partition keeps as they are. `None` if the rollout has no partition.
    pub partition: Option<usize>,
    /// Whether the status says that nothing is left to do for the present spec.
    pub is_rolled_out: bool,
}

/// Reads a PodDecoration. `held` is the revision that a Pod has.
///
/// The revisions of the status and `held` count as stored. The template of the spec stands for all of them.
pub fn read_stored(object: &PodDecoration, held: Option<&str>) -> StoredDecoration {
    let spec = CompiledSpec::from_object(object);
    let status = object.status.clone().unwrap_or_default();
    let metadata = &object.metadata;
    let generation = metadata.generation.unwrap_or(0);
    let deleting = metadata.deletion_timestamp.is_some();
    let is_followed =
        generation <= status.observed_generation && !status.updated_revision.is_empty();
    let is_held = !is_followed && !deleting && spec.invalid.is_none();
    let (reach, partition) = match spec.strategy {
        Strategy::All => (Reach::All, None),
        Strategy::Selector(selector) => (Reach::Selector(selector), None),
        Strategy::Partition(partition) => (Reach::Members([].into()), Some(partition)),
    };
    let name = metadata.name.clone().unwrap_or_default();
    let of_status = [&*status.current_revision, &*status.updated_revision];
    let revisions = of_status
        .into_iter()
        .chain(held)
        .filter(|revision| !revision.is_empty());
    let revisions = revisions.map(|revision| {
        let stored = DecorationRevision {
            decoration: name.clone(),
            name: revision.to_owned(),
            template: object.spec.template.clone().unwrap_or_default(),
            weight: object.spec.weight.unwrap_or(0),
        };
        (revision.to_owned(), Arc::new(stored))
    });
    let revisions = revisions.collect();
    let some = |revision: &String| Some(revision.clone()).filter(|revision| !revision.is_empty());
    StoredDecoration {
        partition,
        is_rolled_out: is_followed && has_condition(&status, "Ready", "True"),
        decoration: Decoration {
            is_refused: false,
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
            generation,
            selector: spec.selector,
            reach,
            deleting,
            invalid: spec.invalid,
            updated: some(&status.updated_revision),
            current: some(&status.current_revision),
            hold: is_held.then(|| describe_hold(&status, generation)),
            held_back: recorded_sets(object),
            revisions,
        },
    }
}

fn has_condition(status: &PodDecorationStatus, type_: &str, value: &str) -> bool {
    let mut conditions = status.conditions.iter();
    conditions.any(|condition| condition.type_ == type_ && condition.status == value)
}

/// Why the present spec has no effect yet.
fn describe_hold(status: &PodDecorationStatus, generation: i64) -> String {
    let mut messages = status.conditions.iter().map(|condition| &condition.message);
    match messages.find(|message| message.starts_with(HOLD_MESSAGE)) {
        Some(message) => message.clone(),
        None => format!(
            "its status is about generation {}, and the present one is {generation}: the controller has not rolled it \
             out yet",
            status.observed_generation
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;
    use crate::api::keys;

    fn object(patch: Value) -> PodDecoration {
        let mut object = json!({
            "metadata": { "name": "log", "generation": 2 },
            "spec": { "selector": {} },
            "status": { "observedGeneration": 2, "updatedRevision": "log-2" },
        });
        json_patch::merge(&mut object, &patch);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn spec_without_status_of_its_generation_is_held() {
        let hold = |patch| read_stored(&object(patch), None).decoration.hold;
        assert_eq!(hold(json!({})), None);
        let older = json!({ "status": { "observedGeneration": 1 } });
        assert!(hold(older).unwrap().contains("generation 1"));
        let refused = json!({ "status": { "observedGeneration": 1, "conditions": [{
            "type": "Ready", "status": "False", "reason": "Progressing", "message": format!("{HOLD_MESSAGE}: no quota"),
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }] } });
        assert!(hold(refused).unwrap().ends_with("yet: no quota"));
        let deleted =
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" }, "status": null });
        assert_eq!(hold(deleted), None);
    }

    #[test]
    fn held_back_sets_count_only_for_their_generation() {
        let sets = |generation: i64| {
            let value = json!({ "generation": generation, "sets": { "web": 5 } });
            let annotations = json!({ (keys::HELD_BACK): value.to_string() });
            let object = object(json!({ "metadata": { "annotations": annotations } }));
            read_stored(&object, None).decoration.held_back
        };
        assert_eq!(sets(2), [("web".to_owned(), 5)].into());
        assert!(sets(1).is_empty());
    }

    #[test]
    fn partition_reaches_no_known_member() {
        let strategy = json!({ "rollingUpdate": { "partition": 3 } });
        let stored = read_stored(
            &object(json!({ "spec": { "updateStrategy": strategy } })),
            Some("log-1"),
        );
        assert_eq!(stored.partition, Some(3));
        assert_eq!(stored.decoration.reach, Reach::Members([].into()));
        let names: Vec<&String> = stored.decoration.revisions.keys().collect();
        assert_eq!(names, ["log-1", "log-2"]);
    }
}
