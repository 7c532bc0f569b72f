//! A denial together with the reasons why the user could not bypass the rule.

use jiff::Timestamp;

use crate::admission::denial;
use crate::admission::review::Verdict;
use crate::ledger::commit::Denied;
use crate::ledger::protocol::ClaimOperation;

/// A denial, and the reasons why the bypass check and the skip annotation did not prevent it. The note is silent about
/// a bypass or an annotation that the user did not try.
#[derive(Debug)]
pub struct ExplainedDenial {
    pub denied: Denied,
    /// Text that is appended to the message. It also says when the Pod's skip annotation cannot be parsed.
    pub note: Option<String>,
}

impl ExplainedDenial {
    /// The message for the user: the denial and the note.
    pub fn denial_message(&self, pod: &str, now: Timestamp) -> String {
        let text = denial::describe_denial(pod, &self.denied, now);
        match &self.note {
            Some(note) => format!("{text}; {note}"),
            None => text,
        }
    }

    /// Adds the reason why rules hold a write that leaves the Pod running.
    pub fn with_held_write_reason(mut self, operation: ClaimOperation) -> ExplainedDenial {
        let parts = denial::explain_held_write(operation).map(str::to_owned);
        let parts: Vec<_> = parts.into_iter().chain(self.note.take()).collect();
        self.note = (!parts.is_empty()).then(|| parts.join("; "));
        self
    }

    /// The verdict: status 429 with the message and the audit annotation `held`.
    pub fn to_verdict(&self, pod: &str, now: Timestamp) -> Verdict {
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(code, reason, self.denial_message(pod, now))
            .with_audit("held", denial::audit_reason(&self.denied.why))
    }
}
