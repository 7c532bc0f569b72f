//! Events about the CollaSet: those of the plan, and what failed.

use super::super::call::Halt;
use super::super::owner;
use super::Work;
use crate::domain::collaset::plan::Event;
use crate::domain::wording;

/// Pods or claims that an Event names at most.
const NAMED: usize = 20;

/// Tells of the plan's events, of what was written, and of the failure.
pub fn tell(work: &Work<'_>, events: &[Event], result: &Result<(), Halt>) {
    record(work, events);
    written(work);
    if let Err(Halt::Failed(step, _)) = result {
        failure(work, step.reason(), result);
    }
}

/// Tells of what was written: nobody else knows, whoever leads by now.
pub fn written(work: &Work<'_>) {
    record(work, &work.told.lock());
    let about = owner::subject(work.set);
    let created = work.created.lock();
    if !created.is_empty() {
        let names: Vec<&str> = created.iter().map(String::as_str).collect();
        let message = format!("created {}", wording::listed(&names, NAMED));
        let recorder = &work.context.events;
        recorder.record_text(&about, false, "SuccessfulCreate", &message);
    }
    // From what was written and not from the plan: a claim that is mounted, or whose deletion is refused, stays.
    let deleted = work.deleted_claims.lock();
    if !deleted.is_empty() {
        let mut names: Vec<&str> = deleted.iter().map(String::as_str).collect();
        names.sort_unstable();
        let names = wording::listed(&names, NAMED);
        let message = format!("deleted claims that no Pod of the CollaSet needs any more: {names}");
        let recorder = &work.context.events;
        recorder.record_text(&about, false, "ClaimDeleted", &message);
    }
    let let_go = work.let_go.lock();
    if !let_go.is_empty() {
        let mut names: Vec<&str> = let_go.iter().map(String::as_str).collect();
        names.sort_unstable();
        let names = wording::listed(&names, NAMED);
        let message = format!(
            "let go of claims that were kept: {names}; no Pod of a CollaSet mounts them again, delete those that nobody needs"
        );
        let recorder = &work.context.events;
        recorder.record_text(&about, false, "ClaimKept", &message);
    }
}

/// Tells of these.
pub fn record(work: &Work<'_>, events: &[Event]) {
    let about = owner::subject(work.set);
    for event in events {
        let recorder = &work.context.events;
        recorder.record_text(&about, event.warning, event.reason, &event.message);
    }
}

/// Tells of a failure, if it is one.
pub fn failure(work: &Work<'_>, reason: &str, result: &Result<(), Halt>) {
    if let Err(Halt::Failed(_, message)) = result {
        let about = owner::subject(work.set);
        let recorder = &work.context.events;
        recorder.record_text(&about, true, reason, message);
    }
}
