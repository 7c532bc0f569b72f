//! Counts denials by reason, for the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::review::Verdict;

/// Reason by which denials that were given without a decision are counted.
const NOT_DECIDED: &str = "not-decided";

/// All reasons by which denials are counted: the values of the audit annotation `held`, and further reasons for denials
/// without this annotation.
pub const DENIAL_REASONS: &[&str] = &[
    "budget-used-up",
    "budget-unhealthy",
    "rule-broken",
    "cache-behind",
    "owner-unknown",
    "ledger-unreachable",
    "change-under-way",
    "claim-closing",
    "claim-resting",
    "ledger-contended",
    "ledger-full",
    "rules-overlap",
    "ledger-unusable",
    "pod-unconfirmed",
    "deletion-refused-by-others",
    "others-are-chosen",
    "disruption-budget",
    "disruption-budgets",
    "lifecycle-not-begun",
    "lifecycle-under-way",
    "enters-changed",
    "awaits-restart",
    "leaves-in-flight",
    "takes-offline",
    "invalid",
    "forbidden",
    "conflict",
    "unavailable",
    NOT_DECIDED,
    "other",
];

/// Denials since the start of the process, by reason. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct DenialCounts(Arc<Mutex<BTreeMap<&'static str, u64>>>);

impl DenialCounts {
    /// The counts of all [`DENIAL_REASONS`].
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.0.lock();
        let count = |reason: &&'static str| (*reason, counts.get(reason).copied().unwrap_or(0));
        DENIAL_REASONS.iter().map(count).collect()
    }

    /// Counts the decision of a handler if it is a denial.
    pub(super) fn count_decided(&self, verdict: &Verdict) {
        self.count(verdict, denial_reason(verdict));
    }

    /// Counts the answer of a handler that could not decide if the answer is a denial.
    pub(super) fn count_undecided(&self, verdict: &Verdict) {
        self.count(verdict, NOT_DECIDED);
    }

    fn count(&self, verdict: &Verdict, reason: &'static str) {
        if !verdict.is_allowed() {
            *self.0.lock().entry(reason).or_default() += 1;
        }
    }
}

fn denial_reason(verdict: &Verdict) -> &'static str {
    let reason = match (verdict.annotations().get("held"), verdict.code()) {
        (Some(reason), _) => reason.as_str(),
        (None, 400 | 422) => "invalid",
        (None, 403) => "forbidden",
        (None, 409) => "conflict",
        (None, 500..) => "unavailable",
        (None, _) => "other",
    };
    let counted = DENIAL_REASONS.iter().find(|counted| **counted == reason);
    counted.copied().unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_counted_by_reason() {
        let too_many = || Verdict::deny(429, "TooManyRequests", "x");
        for (verdict, reason) in [
            (
                too_many().with_audit("held", "cache-behind"),
                Some("cache-behind"),
            ),
            // A reason that is not in the list, so that no text makes a time series.
            (too_many().with_audit("held", "Pod web-1"), Some("other")),
            (Verdict::deny(422, "Invalid", "x"), Some("invalid")),
            (
                Verdict::deny(503, "ServiceUnavailable", "x"),
                Some("unavailable"),
            ),
            (Verdict::allow(), None),
        ] {
            let denials = DenialCounts::default();
            denials.count_decided(&verdict);
            assert_eq!(counted_reasons(&denials), Vec::from_iter(reason));
        }
    }

    fn counted_reasons(denials: &DenialCounts) -> Vec<&'static str> {
        let counts = denials.counts().into_iter();
        counts
            .filter(|(_, n)| *n > 0)
            .map(|(reason, _)| reason)
            .collect()
    }
}
