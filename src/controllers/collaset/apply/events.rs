//! Events about the CollaSet: those of the plan, and what failed.

use parking_lot::Mutex;

use super::super::call::Halt;
use super::super::owner;
use super::Work;
use crate::api::keys;
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
    claims(work, &work.deleted_claims, "ClaimDeleted", |names| {
        format!("deleted claims that no Pod of the CollaSet needs any more: {names}")
    });
    claims(work, &work.kept, "ClaimKept", |names| {
        format!("keeps claims that it does not own, and never deletes them: {names}")
    });
    claims(work, &work.let_go, "ClaimLetGo", |names| {
        format!(
            "let go of claims that were kept: {names}; no new Pod mounts them while they carry the label {}, and a Pod that was excluded still \
             mounts its own; delete those that nobody needs",
            keys::ORPHANED
        )
    });
}

/// Tells of claims, in words that are made of their names.
fn claims(work: &Work<'_>, of: &Mutex<Vec<String>>, reason: &str, words: impl Fn(&str) -> String) {
    let claims = of.lock();
    if claims.is_empty() {
        return;
    }
    let mut names: Vec<&str> = claims.iter().map(String::as_str).collect();
    names.sort_unstable();
    let message = words(&wording::listed(&names, NAMED));
    let (recorder, about) = (&work.context.events, owner::subject(work.set));
    recorder.record_text(&about, false, reason, &message);
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
