//! The settings of a job with their defaults (contract 1.5), and times in its status.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::defaults::{ACTIVE_DEADLINE_SECONDS, TTL_SECONDS_AFTER_FINISHED};
use crate::api::operationjob::OperationJobSpec;

/// How long a target may take. A value that is not positive counts as absent.
pub fn deadline(spec: &OperationJobSpec) -> SignedDuration {
    positive_seconds(spec.active_deadline_seconds, ACTIVE_DEADLINE_SECONDS)
}

/// How long a finished job stays. A value that is not positive counts as absent.
pub fn ttl(spec: &OperationJobSpec) -> SignedDuration {
    positive_seconds(spec.ttl_seconds_after_finished, TTL_SECONDS_AFTER_FINISHED)
}

/// How long to wait before a target is operated on.
pub fn delay(spec: &OperationJobSpec) -> SignedDuration {
    let seconds = spec.operation_delay_seconds.unwrap_or(0).max(0);
    SignedDuration::from_secs(seconds.into())
}

fn positive_seconds(value: Option<i32>, default: i32) -> SignedDuration {
    let seconds = value.filter(|seconds| *seconds > 0).unwrap_or(default);
    SignedDuration::from_secs(seconds.into())
}

/// A time in the form that the API server stores: whole seconds.
pub fn status_time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The time `duration` after `time`. The latest possible time if the sum is beyond it.
pub fn later(time: &Time, duration: SignedDuration) -> Timestamp {
    time.0.checked_add(duration).unwrap_or(Timestamp::MAX)
}
