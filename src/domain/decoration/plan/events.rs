//! The Events that follow from a change of the status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::DecorationEvent;
use crate::api::poddecoration::PodDecorationStatus;

/// Returns the Events about the change from one status to the next.
pub fn status_events(
    before: &PodDecorationStatus,
    after: &PodDecorationStatus,
) -> Vec<DecorationEvent> {
    let mut events = Vec::new();
    let stalled = find_condition(after, "Stalled");
    if let Some(stalled) = stalled
        && find_condition(before, "Stalled").map(|c| &c.message) != Some(&stalled.message)
    {
        events.push(DecorationEvent {
            warning: true,
            reason: "Stalled",
            message: stalled.message.clone(),
        });
    }
    if before.updated_revision != after.updated_revision && !after.updated_revision.is_empty() {
        events.push(DecorationEvent {
            warning: false,
            reason: "RolloutStarted",
            message: format!("revision {} is rolled out", after.updated_revision),
        });
    }
    if before.current_revision != after.current_revision {
        events.push(DecorationEvent {
            warning: false,
            reason: "RolloutCompleted",
            message: format!("all selected Pods have revision {}", after.current_revision),
        });
    }
    events
}

fn find_condition<'a>(status: &'a PodDecorationStatus, type_: &str) -> Option<&'a Condition> {
    status
        .conditions
        .iter()
        .find(|condition| condition.type_ == type_)
}
