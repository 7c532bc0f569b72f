//! What is to be done next with a member that is not as it should be.

use jiff::Timestamp;

use super::known::Known;

/// The next step of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It must be registered, or get its Pod and its weight.
    Register,
    /// New requests to it must be stopped.
    Drain,
    /// It must be removed.
    Deregister,
    /// The last change of it failed, and is made again at this time.
    Retry(Timestamp),
    /// It must go, but stays on traffic for now.
    Stay(Stay),
    /// Nothing can be done before this time, or before a read tells something new.
    Wait {
        until: Option<Timestamp>,
        /// Whether reads can end the wait earlier.
        poll: bool,
    },
}

/// Until when a member that must go stays on traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// Until its Pod serves at its other members.
    UntilItServesElsewhere,
    /// Until the Pods that the employer selects now serve.
    UntilOthersServe,
}

impl Step {
    /// Reads end the wait.
    pub const POLL: Step = Step::Wait {
        until: None,
        poll: true,
    };

    /// This step; or its repetition, if the last change failed a short time ago.
    pub fn after_failure(self, known: Option<&Known>, now: Timestamp) -> Step {
        let failure = known.and_then(|known| known.failure.as_ref());
        let retry_at = failure.map(|failure| failure.retry_at);
        match (self, retry_at.filter(|at| now < *at)) {
            (Step::Register | Step::Drain | Step::Deregister, Some(at)) => Step::Retry(at),
            (step, _) => step,
        }
    }
}
