//! The status of an employer, for users: the annotation, and the condition of a Service.

use jiff::{Timestamp, Unit};
use serde::{Deserialize, Serialize};
use traffic::Presence;
use traffic::plan::{LISTED, Summary, Waiting};

use crate::domain::messages;

/// Longest error in the status, in bytes.
const ERROR_BYTES: usize = 300;

/// The annotation `resource-consist.kusionstack.io/status` of an employer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EmployerReport {
    /// The adapter that manages the traffic; empty if there is none.
    pub adapter: String,
    /// Members that serve, and should.
    pub registered: usize,
    /// Members that should serve and do not yet.
    pub pending: usize,
    /// Members that should be off traffic and are not yet.
    pub draining: usize,
    /// Members whose last change failed.
    pub failed: usize,
    /// The last failure, until a call succeeds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// When a failed call is repeated, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_try: Option<Timestamp>,
    /// Members that are not as they should be, and Pods that wait for another reason, at most ten.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waiting: Vec<WaitingMember>,
}

/// A member that is not as it should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WaitingMember {
    /// Name of its Pod.
    pub pod: String,
    /// The member, as the load balancer names it. Empty if the Pod waits for another reason than a member.
    pub at: String,
    /// `Pending`, `Draining`, `Serving`, `Absent` or `Unknown`; `Held` without a member.
    pub state: String,
    /// Open connections, if the load balancer counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// When it counts as drained at the latest, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// A sentence with all of this.
    pub message: String,
}

impl EmployerReport {
    /// The report of a plan.
    pub fn of_plan(adapter: &str, summary: Summary) -> EmployerReport {
        let members = summary.waiting.iter().map(WaitingMember::from);
        let held = summary.held.iter().map(WaitingMember::of_held);
        let waiting = members.chain(held).take(LISTED).collect();
        EmployerReport {
            adapter: adapter.to_owned(),
            registered: summary.registered,
            pending: summary.pending,
            draining: summary.draining,
            failed: summary.failed,
            last_error: summary.last_error.map(|error| cut(&error)),
            next_try: summary.next_try.map(whole_seconds),
            waiting,
        }
    }

    /// The report about an employer that has no plan, for this reason.
    pub fn of_error(adapter: &str, error: &str) -> EmployerReport {
        EmployerReport {
            adapter: adapter.to_owned(),
            last_error: Some(cut(error)),
            ..EmployerReport::default()
        }
    }

    /// Whether both say the same, apart from the time of the next try.
    pub fn says_same(&self, other: &EmployerReport) -> bool {
        let same_try = EmployerReport {
            next_try: other.next_try,
            ..self.clone()
        };
        same_try == *other && self.next_try.is_some() == other.next_try.is_some()
    }

    /// Whether it must follow `stored` at once. Whoever waits for a change of the adapter, or for a failure, must not read
    /// the former report.
    pub fn is_urgent_after(&self, stored: Option<&EmployerReport>) -> bool {
        stored.is_none_or(|stored| {
            stored.adapter != self.adapter
                || stored.last_error.is_some() != self.last_error.is_some()
        })
    }

    /// The counts in words.
    pub fn counts(&self) -> String {
        format!(
            "{} registered, {} pending, {} draining, {} failed",
            self.registered, self.pending, self.draining, self.failed
        )
    }

    /// Whether the members are as the Pods need: the value, the reason and the message of the condition.
    pub fn condition(&self) -> (bool, &'static str, String) {
        let counts = self.counts();
        match &self.last_error {
            Some(error) => (false, "Failed", format!("{error}; {counts}")),
            None if self.pending + self.draining + self.failed > 0 => {
                let first = self.waiting.first();
                let first = first.map(|member| format!("; {}: {}", member.pod, member.message));
                (
                    false,
                    "Progressing",
                    format!("{counts}{}", first.unwrap_or_default()),
                )
            }
            None => (true, "Consistent", counts),
        }
    }
}

impl From<&Waiting> for WaitingMember {
    fn from(waiting: &Waiting) -> WaitingMember {
        let state = match waiting.presence {
            Presence::Serving => "Serving",
            Presence::Pending => "Pending",
            Presence::Draining { .. } => "Draining",
            Presence::Absent => "Absent",
            Presence::Unknown => "Unknown",
        };
        WaitingMember {
            pod: cut(&waiting.pod),
            at: cut(&waiting.member.to_string()),
            state: state.to_owned(),
            connections: waiting.connections,
            until: waiting.until.map(whole_seconds),
            message: cut(&waiting.to_string()),
        }
    }
}

impl WaitingMember {
    /// A Pod that waits for another reason than a member of its own.
    fn of_held((pod, reason): &(String, String)) -> WaitingMember {
        WaitingMember {
            pod: cut(pod),
            state: "Held".to_owned(),
            message: cut(reason),
            ..WaitingMember::default()
        }
    }
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    time.round(Unit::Second).unwrap_or(time)
}

fn cut(text: &str) -> String {
    messages::shorten(&traffic::one_line(text), ERROR_BYTES)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn first_report_new_adapter_and_new_failure_are_urgent() {
        let report = |adapter: &str, registered| EmployerReport {
            adapter: adapter.to_owned(),
            registered,
            ..EmployerReport::default()
        };
        let failed = EmployerReport::of_error("edge", "down");
        let stored = report("edge", 1);
        assert!(stored.is_urgent_after(None));
        assert!(report("other", 1).is_urgent_after(Some(&stored)));
        assert!(failed.is_urgent_after(Some(&stored)));
        assert!(stored.is_urgent_after(Some(&failed)));
        assert!(!report("edge", 2).is_urgent_after(Some(&stored)));
        let other_text = EmployerReport::of_error("edge", "throttled");
        assert!(!other_text.is_urgent_after(Some(&failed)));
    }

    #[test]
    fn another_time_of_the_next_try_is_no_news() {
        let at = |second: Option<i64>| EmployerReport {
            next_try: second.map(|second| Timestamp::from_second(second).unwrap()),
            ..EmployerReport::of_error("edge", "down")
        };
        assert!(at(Some(1)).says_same(&at(Some(2))));
        assert!(!at(Some(1)).says_same(&at(None)));
        assert!(!at(Some(1)).says_same(&EmployerReport::default()));
    }
}
