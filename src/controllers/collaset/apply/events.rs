//! Records Events about the CollaSet: the Events of the plan, the Events of what was written, and the Event of the
//! failure.

use parking_lot::Mutex;

use super::super::owner;
use super::super::requests::StageError;
use super::PlanExecution;
use crate::api::keys;
use crate::domain::collaset::plan::SetEvent;
use crate::domain::messages;

/// Maximum number of Pods or PVCs that an Event names.
const MAX_NAMED_OBJECTS: usize = 20;

/// Records the Events of the plan, the Events of what was written, and the Event of the failure.
pub fn announce_plan(
    execution: &PlanExecution<'_>,
    events: &[SetEvent],
    result: &Result<(), StageError>,
) {
    record_events(execution, events);
    announce_written(execution);
    if let Err(StageError::Failed(step, _)) = result {
        announce_failure(execution, step.reason(), result);
    }
}

/// Records the Events of what was written. This process records them even if it no longer leads, because the new leader
/// does not know of these writes.
pub fn announce_written(execution: &PlanExecution<'_>) {
    record_events(execution, &execution.patch_events.lock());
    let subject = owner::set_object_reference(execution.set);
    let created = execution.created.lock();
    if !created.is_empty() {
        let names: Vec<&str> = created.iter().map(String::as_str).collect();
        let message = format!(
            "created {}",
            messages::list_names(&names, MAX_NAMED_OBJECTS)
        );
        let recorder = &execution.context.events;
        recorder.record_distinct_event(&subject, false, "SuccessfulCreate", &message);
    }
    // The Events depend on what was written, not on the plan: a PVC stays if a Pod mounts it or if its deletion is
    // refused.
    announce_pvcs(
        execution,
        &execution.deleted_pvcs,
        "ClaimDeleted",
        |names| format!("deleted PVCs that no Pod of the CollaSet needs any more: {names}"),
    );
    announce_pvcs(execution, &execution.retained_pvcs, "ClaimKept", |names| {
        format!("keeps PVCs that it does not own, and never deletes them: {names}")
    });
    announce_pvcs(execution, &execution.released_pvcs, "ClaimLetGo", |names| {
        format!(
            "released kept PVCs: {names}; no new Pod mounts them while they carry the label {}, and a Pod that was excluded still \
             mounts its own; delete the PVCs that nobody needs",
            keys::ORPHANED
        )
    });
}

/// Records an Event about PVCs. `describe` makes the message from their names.
fn announce_pvcs(
    execution: &PlanExecution<'_>,
    pvc_names: &Mutex<Vec<String>>,
    reason: &str,
    describe: impl Fn(&str) -> String,
) {
    let pvc_names = pvc_names.lock();
    if pvc_names.is_empty() {
        return;
    }
    let mut names: Vec<&str> = pvc_names.iter().map(String::as_str).collect();
    names.sort_unstable();
    let message = describe(&messages::list_names(&names, MAX_NAMED_OBJECTS));
    let (recorder, subject) = (
        &execution.context.events,
        owner::set_object_reference(execution.set),
    );
    recorder.record_distinct_event(&subject, false, reason, &message);
}

pub fn record_events(execution: &PlanExecution<'_>, events: &[SetEvent]) {
    let subject = owner::set_object_reference(execution.set);
    for event in events {
        let recorder = &execution.context.events;
        recorder.record_distinct_event(&subject, event.warning, event.reason, &event.message);
    }
}

/// Records an Event of the failure if `result` is [`StageError::Failed`].
pub fn announce_failure(
    execution: &PlanExecution<'_>,
    reason: &str,
    result: &Result<(), StageError>,
) {
    if let Err(StageError::Failed(_, message)) = result {
        let subject = owner::set_object_reference(execution.set);
        let recorder = &execution.context.events;
        recorder.record_distinct_event(&subject, true, reason, message);
    }
}
