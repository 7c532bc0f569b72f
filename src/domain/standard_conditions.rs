//! Conditions of Kubernetes in the status of an object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Sets a condition. Its transition time changes only when its status changes. `generation` is the one that the status
/// describes; 0 if none.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    (now, generation): (Time, i64),
    (type_, value): (&str, bool),
    (reason, message): (&str, String),
) {
    let value = if value { "True" } else { "False" };
    let existing = conditions.iter_mut().find(|c| c.type_ == type_);
    let former = existing.as_ref().filter(|c| c.status == value);
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        observed_generation: Some(generation).filter(|generation| *generation > 0),
        last_transition_time: former.map_or(now, |c| c.last_transition_time.clone()),
        reason: reason.to_owned(),
        message,
    };
    match existing {
        Some(existing) => *existing = condition,
        None => conditions.push(condition),
    }
}
