//! Commands of users to a rollout, given by an annotation on the set ([`keys::ROLLOUT`]).
//!
//! A command is carried out once. The status records the command together with its effect, and the controller then
//! removes the annotation. Neither this rollout nor a later one carries out a recorded command again, even if a write
//! fails in between. A refused command is recorded too, because it was answered.

use super::position::{first_step_status, move_to_step};
use crate::api::collaset::RolloutStatus;
use crate::api::keys;
use crate::domain::collaset::draft::Draft;
use crate::domain::collaset::plan::SetEvent;
use crate::domain::collaset::set_facts::SetFacts;
use crate::domain::collaset::status::waits;

/// Ends the current step.
pub const PROMOTE: &str = "promote";
/// Ends all steps.
pub const PROMOTE_FULL: &str = "promote-full";
/// Takes the Pods back to the current revision. For a rollout that is already aborted, the set repeats the writes that
/// were refused although their dry run had passed.
pub const ABORT: &str = "abort";
/// Begins an aborted rollout again. For any other rollout, the set repeats the writes that were refused although their
/// dry run had passed.
pub const RETRY: &str = "retry";

/// Carries out the command in the annotation, if it is new. Returns true if the command was carried out.
pub(super) fn carry_out_command(
    facts: &SetFacts,
    draft: &mut Draft,
    status: &mut RolloutStatus,
) -> bool {
    let annotations = facts.observed.set.metadata.annotations.as_ref();
    let Some(command) = annotations.and_then(|all| all.get(keys::ROLLOUT)) else {
        status.command.clear();
        return false;
    };
    if status.command == *command {
        draft.forget_command = true;
        return false;
    }
    status.command.clear();
    match apply_command(facts, status, command) {
        Ok((reason, message)) => {
            command.clone_into(&mut status.command);
            draft.events_after_status.push(SetEvent {
                warning: false,
                reason,
                message,
            });
            true
        }
        Err(refusal) => {
            draft.forget_command = true;
            if is_known_command(command) {
                command.clone_into(&mut status.command);
            }
            let key = keys::ROLLOUT;
            draft.announce_event(
                true,
                "RolloutCommandRefused",
                format!("annotation {key}={command:?} is removed: {refusal}"),
            );
            false
        }
    }
}

fn is_known_command(command: &str) -> bool {
    [PROMOTE, PROMOTE_FULL, ABORT, RETRY].contains(&command)
}

fn apply_command(
    facts: &SetFacts,
    status: &mut RolloutStatus,
    command: &str,
) -> Result<(&'static str, String), String> {
    let rollout = &facts.rollout;
    let (revision, steps) = (&rollout.revision, rollout.len());
    if !is_known_command(command) {
        return Err(format!(
            "it may be {PROMOTE}, {PROMOTE_FULL}, {ABORT} or {RETRY}"
        ));
    }
    if command == RETRY && !(rollout.is_on && status.aborted)
        || command == ABORT && rollout.is_on && status.aborted
    {
        return Ok((
            "RolloutRetried",
            "writes that were refused although their dry run had passed are tried again".to_owned(),
        ));
    }
    if !rollout.is_on {
        let remedy = match command {
            ABORT => {
                "; to undo a complete rollout, apply the former template, and lower a partition that keeps Pods"
            }
            _ => "",
        };
        return Err(format!("no rollout is under way{remedy}"));
    }
    if command == RETRY {
        *status = first_step_status(facts);
        return Ok((
            "RolloutRetried",
            format!("revision {revision} is rolled out again"),
        ));
    }
    if status.aborted {
        return Err(format!(
            "the rollout was aborted; {RETRY} begins it again, and so does a change of the template"
        ));
    }
    if command == ABORT && facts.history.current.name == *revision {
        return Err("the current revision is gone; apply the former template".to_owned());
    }
    if command == ABORT {
        status.aborted = true;
        return Ok(("RolloutAborted", waits::describe_pending_abort(facts)));
    }
    if rollout.current_step().is_none() {
        return Err("the rollout has no step to end".to_owned());
    }
    let step = rollout.step_index() + 1;
    let next = if command == PROMOTE {
        step + 1
    } else {
        steps + 1
    };
    move_to_step(facts, status, next);
    let message = format!("revision {revision} is promoted at step {step} of {steps}");
    Ok(("RolloutPromoted", message))
}
