//! Records Events about the CollaSet: those of the plan, and one for the failure.

use parking_lot::Mutex;

use super::super::owner;
use super::super::requests::Halt;
use super::PlanExecution;
use crate::api::keys;
use crate::domain::collaset::plan::SetEvent;
use crate::domain::messages;

/// Maximum number of Pods or PVCs that an Event names.
const MAX_NAMED_OBJECTS: usize = 20;

/// Records the Events of the plan, the Events of what was written, and the Event of the failure.
pub fn announce_plan(work: &PlanExecution<'_>, events: &[SetEvent], result: &Result<(), Halt>) {
    record_events(work, events);
    announce_written(work);
    if let Err(Halt::Failed(step, _)) = result {
        announce_failure(work, step.reason(), result);
    }
}

/// Records the Events of what was written. This process records them even if it no longer leads, because the new leader
/// does not know of these writes.
pub fn announce_written(work: &PlanExecution<'_>) {
    record_events(work, &work.patch_events.lock());
    let about = owner::set_object_reference(work.set);
    let created = work.created.lock();
    if !created.is_empty() {
        let names: Vec<&str> = created.iter().map(String::as_str).collect();
        let message = format!(
            "created {}",
            messages::list_names(&names, MAX_NAMED_OBJECTS)
        );
        let recorder = &work.context.events;
        recorder.record_distinct_event(&about, false, "SuccessfulCreate", &message);
    }
    // The Events depend on what was written, not on the plan: a PVC stays if a Pod mounts it or if its deletion is
    // refused.
    announce_pvcs(work, &work.deleted_pvcs, "ClaimDeleted", |names| {
        format!("deleted PVCs that no Pod of the CollaSet needs any more: {names}")
    });
    announce_pvcs(work, &work.retained_pvcs, "ClaimKept", |names| {
        format!("keeps PVCs that it does not own, and never deletes them: {names}")
    });
    announce_pvcs(work, &work.released_pvcs, "ClaimLetGo", |names| {
        format!(
            "released kept PVCs: {names}; no new Pod mounts them while they carry the label {}, and a Pod that was excluded still \
             mounts its own; delete the PVCs that nobody needs",
            keys::ORPHANED
        )
    });
}

/// Records an Event about PVCs; `words` makes the message from their names.
fn announce_pvcs(
    work: &PlanExecution<'_>,
    of: &Mutex<Vec<String>>,
    reason: &str,
    words: impl Fn(&str) -> String,
) {
    let claims = of.lock();
    if claims.is_empty() {
        return;
    }
    let mut names: Vec<&str> = claims.iter().map(String::as_str).collect();
    names.sort_unstable();
    let message = words(&messages::list_names(&names, MAX_NAMED_OBJECTS));
    let (recorder, about) = (&work.context.events, owner::set_object_reference(work.set));
    recorder.record_distinct_event(&about, false, reason, &message);
}

/// Records these Events.
pub fn record_events(work: &PlanExecution<'_>, events: &[SetEvent]) {
    let about = owner::set_object_reference(work.set);
    for event in events {
        let recorder = &work.context.events;
        recorder.record_distinct_event(&about, event.warning, event.reason, &event.message);
    }
}

/// Records an Event of a failure, if `result` is one.
pub fn announce_failure(work: &PlanExecution<'_>, reason: &str, result: &Result<(), Halt>) {
    if let Err(Halt::Failed(_, message)) = result {
        let about = owner::set_object_reference(work.set);
        let recorder = &work.context.events;
        recorder.record_distinct_event(&about, true, reason, message);
    }
}
