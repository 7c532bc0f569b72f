//! Derives Events from the difference between the stored and the new status.

use super::super::plan::SetEvent;
use crate::api::collaset::{CollaSetCondition, CollaSetStatus};

/// Returns the Events that a rollout begins, is complete or pauses, and that the set is stalled. Each is sent once.
/// `former` is the stored status. An abort does not count as the rollout of the old revision.
pub fn rollout_events(
    former: Option<&CollaSetStatus>,
    status: &CollaSetStatus,
    paused: bool,
) -> Vec<SetEvent> {
    let Some(former) = former else {
        return Vec::new();
    };
    let rollout = begin_or_end_event(former, status, paused);
    let new_condition = |type_, is_next: bool, matches: fn(&CollaSetCondition) -> bool| {
        let find = |status: &CollaSetStatus| {
            let mut conditions = status.conditions.iter();
            conditions
                .find(|c| c.type_ == type_ && matches(c))
                .map(|c| c.message.clone())
        };
        find(status).filter(|_| find(former).is_none() || is_next)
    };
    // A pause may follow another pause, of this rollout or of another.
    let revision = &status.updated_revision;
    let step = |s: &CollaSetStatus| s.rollout.as_ref().map(|rollout| rollout.step);
    let is_next = step(former) != step(status) || former.updated_revision != *revision;
    let pause = new_condition("Update", is_next, |c| c.reason == "StepPaused");
    let pause = pause.map(|message| {
        let message = format!("revision {revision}: {message}");
        set_event(false, "RolloutPaused", message)
    });
    let stalled = new_condition("Stalled", false, |c| c.status == "True");
    let stalled = stalled.map(|message| set_event(true, "Stalled", message));
    rollout.into_iter().chain(pause).chain(stalled).collect()
}

fn begin_or_end_event(
    former: &CollaSetStatus,
    status: &CollaSetStatus,
    paused: bool,
) -> Option<SetEvent> {
    if former.updated_revision.is_empty() {
        return None;
    }
    let revision = &status.updated_revision;
    let is_aborted = status.rollout.as_ref().is_some_and(|r| r.aborted);
    if former.updated_revision != *revision {
        if is_aborted {
            return None;
        }
        if status.replicas == 0 && status.current_revision == *revision {
            let message = format!(
                "there is no Pod to update to revision {revision}; new Pods are made of it"
            );
            return Some(set_event(false, "RolloutCompleted", message));
        }
        let when = if paused { " once the set goes on" } else { "" };
        let message = format!("revision {revision} is rolled out to the Pods{when}");
        return Some(set_event(false, "RolloutStarted", message));
    }
    let over = former.current_revision != *revision && status.current_revision == *revision;
    over.then(|| {
        let pods = match status.updated_replicas {
            1 => "the only Pod".to_owned(),
            pods => format!("all {pods} Pods"),
        };
        let message = format!("revision {revision} has reached {pods}");
        set_event(false, "RolloutCompleted", message)
    })
}

fn set_event(warning: bool, reason: &'static str, message: String) -> SetEvent {
    SetEvent {
        warning,
        reason,
        message,
    }
}
