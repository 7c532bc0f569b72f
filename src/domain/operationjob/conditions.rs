//! The conditions of a job, in the form that tools for rollouts read (kstatus): `Ready` is True once every target that
//! the partition selects has succeeded. `Stalled` appears if a target has failed and no other target goes on.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::job_settings::status_time;
use crate::api::operationjob::OperationJobStatus;

/// Sets the conditions from the counts in the status. `unfinished` is the number of selected targets that are not
/// finished. Other conditions stay unchanged.
pub fn update_conditions(now: Timestamp, unfinished: usize, status: &mut OperationJobStatus) {
    let (total, failed) = (status.total_pod_count, status.failed_pod_count);
    let succeeded = status.succeeded_pod_count;
    let held = usize::try_from(total - failed - succeeded).unwrap_or(0);
    let held = held.saturating_sub(unfinished);
    let mut figures = format!("{succeeded} of {total} targets succeeded, {failed} failed");
    if held > 0 {
        figures += &format!("; spec.partition holds {held} back: raise it to go on");
    }
    let (is_ready, reason) = match (unfinished, failed) {
        (0, 0) if held > 0 => (true, "PartitionReached"),
        (0, 0) => (true, "Succeeded"),
        (0, _) => (false, "TargetsFailed"),
        _ => (false, "Progressing"),
    };
    let now = status_time(now);
    set_condition(status, &now, ("Ready", is_ready), (reason, &figures));
    if reason == "TargetsFailed" {
        set_condition(status, &now, ("Stalled", true), (reason, &figures));
    } else {
        status
            .conditions
            .retain(|condition| condition.type_ != "Stalled");
    }
}

fn set_condition(
    status: &mut OperationJobStatus,
    now: &Time,
    (type_, value): (&str, bool),
    (reason, message): (&str, &str),
) {
    let value = if value { "True" } else { "False" };
    let observed_generation = Some(status.observed_generation).filter(|g| *g > 0);
    let existing = status.conditions.iter_mut().find(|c| c.type_ == type_);
    let former = existing.as_ref().filter(|c| c.status == value);
    let condition = Condition {
        type_: type_.to_owned(),
        status: value.to_owned(),
        observed_generation,
        last_transition_time: former.map_or(now.clone(), |c| c.last_transition_time.clone()),
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    match existing {
        Some(existing) => *existing = condition,
        None => status.conditions.push(condition),
    }
}
