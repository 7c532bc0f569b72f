//! Wraps every handler of the server: counts denials by reason, and denies all requests in a process that has a fault.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::review::{Handler, Request, Verdict};
use crate::cluster::etcd_history::EtcdHistory;
use crate::tasks::Supervisor;

/// The reason that a process with a fault gives in its denials.
const REPLICA_ENDING: &str = "this replica is ending after an internal error";
/// Reason by which denials of [`Handler::fallback`] are counted.
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

    fn count_denial(&self, verdict: &Verdict) {
        if !verdict.is_allowed() {
            *self.0.lock().entry(denial_reason(verdict)).or_default() += 1;
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

/// Wraps each of these handlers.
pub fn guard_handlers(
    handlers: Vec<(&'static str, Arc<dyn Handler>)>,
    supervisor: &Supervisor,
    timeline: &EtcdHistory,
    denials: &DenialCounts,
) -> Vec<(&'static str, Arc<dyn Handler>)> {
    let guard = |(path, inner)| {
        let guarded = GuardedHandler {
            inner,
            supervisor: supervisor.clone(),
            timeline: timeline.clone(),
            denials: denials.clone(),
        };
        (path, Arc::new(guarded) as Arc<dyn Handler>)
    };
    handlers.into_iter().map(guard).collect()
}

struct GuardedHandler {
    inner: Arc<dyn Handler>,
    supervisor: Supervisor,
    timeline: EtcdHistory,
    denials: DenialCounts,
}

#[async_trait]
impl Handler for GuardedHandler {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        // After a panic, the counts of Pods may be inconsistent. After a restore of etcd, the caches hold another state
        // than etcd. So the handler must not decide by them.
        if self.supervisor.fault().is_some() || self.timeline.lost_reason().is_some() {
            return self.fallback(request, REPLICA_ENDING);
        }
        let verdict = self.inner.review(request, deadline).await;
        self.denials.count_denial(&verdict);
        verdict
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        let verdict = self.inner.fallback(request, why);
        if !verdict.is_allowed() {
            *self.denials.0.lock().entry(NOT_DECIDED).or_default() += 1;
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    struct FixedHandler(fn() -> Verdict);

    #[async_trait]
    impl Handler for FixedHandler {
        async fn review(&self, _: &Request, _: Instant) -> Verdict {
            self.0()
        }
        fn fallback(&self, _: &Request, why: &str) -> Verdict {
            Verdict::deny(429, "TooManyRequests", why)
        }
    }

    /// The verdict of a guarded handler, and the reasons that were counted.
    async fn decided(
        verdict: fn() -> Verdict,
        supervisor: &Supervisor,
    ) -> (Verdict, Vec<&'static str>) {
        let denials = DenialCounts::default();
        let handlers: Vec<(_, Arc<dyn Handler>)> = vec![("/pods", Arc::new(FixedHandler(verdict)))];
        let guarded = guard_handlers(handlers, supervisor, &EtcdHistory::default(), &denials);
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "1", "operation": "DELETE", "name": "web-1", "namespace": "shop",
                "kind": { "group": "", "version": "v1", "kind": "Pod" },
                "resource": { "group": "", "version": "v1", "resource": "pods" },
                "userInfo": { "username": "ann" },
            },
        });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        let verdict = guarded[0].1.review(&request, Instant::now()).await;
        let counts = denials.counts().into_iter();
        (
            verdict,
            counts.filter(|(_, n)| *n > 0).map(|(r, _)| r).collect(),
        )
    }

    #[tokio::test]
    async fn denials_are_counted_by_reason_and_unknown_words_as_other() {
        let supervisor = Supervisor::new(CancellationToken::new());
        for (verdict, reason) in [
            (
                (|| Verdict::deny(429, "TooManyRequests", "x").with_audit("held", "cache-behind"))
                    as fn() -> Verdict,
                vec!["cache-behind"],
            ),
            (
                || Verdict::deny(429, "TooManyRequests", "x").with_audit("held", "Pod web-1"),
                vec!["other"],
            ),
            (|| Verdict::deny(422, "Invalid", "x"), vec!["invalid"]),
            (
                || Verdict::deny(503, "ServiceUnavailable", "x"),
                vec!["unavailable"],
            ),
            (Verdict::allow, vec![]),
        ] {
            assert_eq!(decided(verdict, &supervisor).await.1, reason);
        }
    }

    #[tokio::test]
    async fn process_with_a_fault_admits_nothing_by_its_counts() {
        let supervisor = Supervisor::new(CancellationToken::new());
        supervisor.report_fault("a watch", "panicked");
        let (verdict, counted) = decided(Verdict::allow, &supervisor).await;
        assert_eq!((verdict.code(), verdict.message()), (429, REPLICA_ENDING));
        assert_eq!(counted, [NOT_DECIDED]);
    }
}
