//! What a change of the decorations of a Pod waits for.

use super::facts::OperationFacts;
use super::{ObservedPod, owner};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::api::validation::truncate_value;
use crate::domain::collaset::observed::set_name;
use crate::domain::decoration::status::false_condition;

/// Most characters of a quoted condition.
const MAX_QUOTE: usize = 200;

/// Why the Pod does not have the wanted revision of a PodDecoration yet, as a clause.
pub fn wait_reason(
    observed: &ObservedPod,
    set: &CollaSet,
    operations: &[OperationFacts],
    objects: &[PodDecoration],
    decoration: &str,
) -> String {
    let name = set_name(set);
    let mut operations = operations.iter();
    if let Some(update) = operations.find(|o| o.id == "collaset" && o.type_ == "update") {
        return format!(
            "operation collaset (update) is in {}, and its line says what it waits for",
            update.phase
        );
    }
    if set.spec.paused {
        return format!("CollaSet {name} is paused");
    }
    if observed.pod.label(keys::TO_REPLACE).is_some() {
        return "another Pod takes the place of this Pod".to_owned();
    }
    if let Some(failure) = stall_message(objects, name, decoration) {
        return truncate_value(failure, MAX_QUOTE).into_owned();
    }
    if let Some(used) = owner::describe_used_max_unavailable(observed, set) {
        return format!("CollaSet {name}: {used}");
    }
    match false_condition(set, &["Ready", "Update"]) {
        Some(message) => format!(
            "CollaSet {name} has not begun the update of the Pod (its condition: {})",
            truncate_value(message, MAX_QUOTE)
        ),
        None => format!("CollaSet {name} has not begun the update of the Pod yet"),
    }
}

/// The message of the condition `Stalled` of a PodDecoration, if it is about this set.
fn stall_message<'a>(objects: &'a [PodDecoration], set: &str, decoration: &str) -> Option<&'a str> {
    let mut objects = objects.iter();
    let object = objects.find(|object| object.metadata.name.as_deref() == Some(decoration))?;
    let mut conditions = object.status.iter().flat_map(|status| &status.conditions);
    let begin = format!("CollaSet {set} ");
    let stalled = conditions.find(|condition| {
        condition.type_ == "Stalled"
            && condition.status == "True"
            && condition.message.starts_with(&begin)
    })?;
    Some(&stalled.message)
}
