//! Recognises a report that nobody keeps up to date. A report has no time. But a Pod that waits is counted in the report of
//! its Service within seconds, so a report in which nothing waits is out of date if a Pod has waited for longer. And a
//! member whose drain time is over is removed within seconds, so a report in which it still drains is out of date, too.

use jiff::{SignedDuration, Timestamp};

use super::service_pods::employer_name;
use super::waits::{Direction, traffic_wait};
use super::{ObservedService, stored};
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::traffic::pod_marks::PodMarks;
use crate::domain::traffic::report::{EmployerReport, WaitingMember};

/// How long a report may trail the Pods. The leader writes it at most every five seconds, after its calls.
const MAX_TRAIL: SignedDuration = SignedDuration::from_mins(1);

/// What the user can do.
pub const REMEDY: &str =
    "check that a server leads and has the feature gate ResourceConsist, and read its log";

/// What the user can do about a member that drains for too long. A load balancer that drains by itself can be late.
pub const OVERDUE_REMEDY: &str = "check that a server leads and has the feature gate ResourceConsist, and read its log; if \
     a server leads, find out why the load balancer has not drained the member by then";

/// The Pod that has waited longest for a mark of the Service, and since when, if the report says that nothing waits.
pub fn overlooked_pod<'a>(
    observed: &'a ObservedService,
    report: &EmployerReport,
    now: Timestamp,
) -> Option<(&'a Pod, Direction, Timestamp)> {
    let service = &observed.service;
    // The marks of a Service that goes are removed without a member that waits.
    if !stored::is_managed(service) || service.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let employer = employer_name(service);
    let waits = observed.pods.iter().flatten().filter_map(|pod| {
        let (direction, since) = overlooks(report, pod, now)?;
        let marks = PodMarks::of(&employer, pod);
        let is_awaited = match direction {
            Direction::Off => marks.protected,
            Direction::On => marks.expected && !marks.protected,
        };
        is_awaited.then_some((pod, direction, since))
    });
    waits.min_by_key(|(_, _, since)| *since)
}

/// Since when a Pod waits, if the report should know that and says that nothing waits.
pub fn overlooks(
    report: &EmployerReport,
    pod: &Pod,
    now: Timestamp,
) -> Option<(Direction, Timestamp)> {
    let says_all_is_well = report.last_error.is_none() && report.condition().0;
    let (direction, since) = traffic_wait(pod).filter(|_| says_all_is_well)?;
    (now.duration_since(since) > MAX_TRAIL).then_some((direction, since))
}

/// The member that should have drained longest ago, and when, if the report names no failure that explains the delay.
pub fn overdue_member<'a>(
    report: &EmployerReport,
    members: impl Iterator<Item = &'a WaitingMember>,
    now: Timestamp,
) -> Option<(&'a WaitingMember, Timestamp)> {
    if report.last_error.is_some() {
        return None;
    }
    let due = members.filter_map(|member| Some((member, stored::drain_limit(member)?)));
    let overdue = due.filter(|(_, until)| now.duration_since(*until) > MAX_TRAIL);
    overdue.min_by_key(|(_, until)| *until)
}

/// Says of a member that it should have drained at `until`.
pub fn overdue_text(member: &WaitingMember, until: Timestamp, now: Timestamp) -> String {
    let pod = match member.pod.as_str() {
        "" => "a Pod that is not known",
        pod => pod,
    };
    format!(
        "its report is out of date, or the load balancer is late: {pod} should have drained {} ago at the latest, at {}",
        messages::format_ago(until, now),
        member.at
    )
}
