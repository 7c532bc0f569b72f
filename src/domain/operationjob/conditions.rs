//! The conditions of a job, in the form that tools for rollouts read (kstatus): `Ready` is True once every target that
//! the partition selects has succeeded. `Stalled` appears if a target has failed and no other target goes on.

use jiff::Timestamp;

use super::job_settings::status_time;
use crate::api::operationjob::OperationJobStatus;
use crate::domain::standard_conditions::set_condition;

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
    let at = (status_time(now), status.observed_generation);
    let conditions = &mut status.conditions;
    set_condition(
        conditions,
        at.clone(),
        ("Ready", is_ready),
        (reason, figures.clone()),
    );
    if reason == "TargetsFailed" {
        set_condition(conditions, at, ("Stalled", true), (reason, figures));
    } else {
        conditions.retain(|condition| condition.type_ != "Stalled");
    }
}
