//! The conditions of a PodDecoration. `Ready` says whether all Pods are decorated as the spec asks. `Stalled` appears if
//! that can't be so without a change, in the form that tools for rollouts read (kstatus).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::progress::Progress;
use super::set_waits::{decoration_failure, describe_work};
use crate::api::poddecoration::PodDecorationStatus;
use crate::domain::collaset::status::condition_time;
use crate::domain::decoration::observed::ObservedDecoration;
use crate::domain::decoration::{Decoration, Reach};
use crate::domain::messages;
use crate::domain::standard_conditions::set_condition;

/// Begin of the message of `Ready` while no Pod is created or updated with the present spec.
pub const HOLD_MESSAGE: &str = "no Pod that it selects is created or updated yet";

/// Most CollaSets that a message names.
const MAX_NAMES: usize = 3;

/// Sets `Ready` and `Stalled`. Other conditions stay unchanged. `problems` are those of stored revisions.
pub fn update_conditions(
    observed: &ObservedDecoration,
    publish: &Decoration,
    progress: &Progress,
    problems: &[String],
    status: &mut PodDecorationStatus,
) {
    let now = condition_time(observed.now_nanos);
    let (ready, reason, message) = ready_condition(observed, publish, progress);
    let message = problems
        .iter()
        .fold(message, |text, problem| format!("{text}; {problem}"));
    let at = (Time(now), status.observed_generation);
    let conditions = &mut status.conditions;
    set_condition(conditions, at.clone(), ("Ready", ready), (reason, message));
    match stall_reason(observed, publish, progress) {
        Some(stall) => set_condition(conditions, at, ("Stalled", true), stall),
        None => conditions.retain(|c| c.type_ != "Stalled"),
    }
}

/// Status, reason and message of `Ready`.
fn ready_condition(
    observed: &ObservedDecoration,
    publish: &Decoration,
    progress: &Progress,
) -> (bool, &'static str, String) {
    if publish.deleting {
        let message = describe_deletion(observed, progress);
        return (false, "Deleting", message);
    }
    if let Some(problem) = &publish.invalid {
        return (false, "Invalid", describe_invalid(problem));
    }
    if let Some(hold) = &publish.hold {
        let message = format!("{HOLD_MESSAGE}: {hold}");
        return (false, "Progressing", message);
    }
    let figures = describe_figures(publish, progress);
    match progress.is_complete() {
        true => (
            true,
            "AsWanted",
            figures + &describe_kept(publish, progress),
        ),
        false => {
            let work = describe_work(observed, progress);
            (false, "Progressing", format!("{figures}; {work}"))
        }
    }
}

/// Reason and message of `Stalled`; `None` if the PodDecoration is not stalled.
fn stall_reason(
    observed: &ObservedDecoration,
    publish: &Decoration,
    progress: &Progress,
) -> Option<(&'static str, String)> {
    if publish.deleting {
        return None;
    }
    if let Some(problem) = &publish.invalid {
        return Some(("Invalid", describe_invalid(problem)));
    }
    // The sets have not been planned with a new spec yet, so their conditions are about the former one.
    let object = &observed.object;
    let is_new = object
        .status
        .as_ref()
        .is_none_or(|status| Some(status.observed_generation) != object.metadata.generation);
    let failure = decoration_failure(observed, publish, progress).filter(|_| !is_new)?;
    Some(("PodsNotDecorated", failure))
}

fn describe_invalid(problem: &str) -> String {
    format!("{problem}; Pods that have the decoration keep it, and no other Pod gets it")
}

fn describe_deletion(observed: &ObservedDecoration, progress: &Progress) -> String {
    if !progress.sets.is_empty() {
        return describe_work(observed, progress);
    }
    match &observed.refused.finalizer {
        Some(refusal) => format!(
            "no Pod has the decoration; its finalizer can't be removed: {refusal}; let the server update the \
             PodDecoration"
        ),
        None => "no Pod has the decoration; its finalizer is being removed".to_owned(),
    }
}

/// How many Pods have the updated revision.
fn describe_figures(publish: &Decoration, progress: &Progress) -> String {
    let revision = publish.updated.as_deref().unwrap_or_default();
    match (&publish.selector, progress.selected) {
        (None, _) => {
            "spec.selector is absent, so no Pod is decorated: set it to labels of Pods".to_owned()
        }
        (_, 0) => "spec.selector matches no Pod of a CollaSet".to_owned(),
        (_, all) if progress.updated == all => {
            let pods = messages::count_pods_with_verb(all, "has", "have");
            format!("{pods} revision {revision}")
        }
        (_, all) => {
            let verb = if progress.updated == 1 || all == 1 {
                "has"
            } else {
                "have"
            };
            let pods = messages::count_pods(all);
            format!("{} of {pods} {verb} revision {revision}", progress.updated)
        }
    }
}

/// What keeps Pods on other revisions although nothing is left to do.
fn describe_kept(publish: &Decoration, progress: &Progress) -> String {
    let held_back: Vec<&str> = publish.held_back.keys().map(String::as_str).collect();
    if !held_back.is_empty() {
        let names = messages::list_names(&held_back, MAX_NAMES);
        return format!(
            "; Kuperator did not decorate some Pods because of the updateStrategy of their CollaSets ({names}): they stay \
             as they are until the spec of the CollaSet or of the PodDecoration changes"
        );
    }
    let kept = messages::count_pods(progress.kept);
    match (&publish.reach, progress.kept) {
        (_, 0) | (Reach::All, _) => String::new(),
        (Reach::Members(_), _) => format!(
            "; spec.updateStrategy.rollingUpdate.partition keeps the revision of {kept}: lower it to update more"
        ),
        (Reach::Selector(_), _) => format!(
            "; spec.updateStrategy.rollingUpdate.selector does not match {kept}, so they keep what they have"
        ),
    }
}
