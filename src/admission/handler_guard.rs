//! Wraps every handler of the server. The guard denies all requests in a process that must not decide any more: after a
//! fault, and after a restore of etcd. It also counts the denials.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::denial_counts::DenialCounts;
use super::review::{Handler, Request, Verdict};
use crate::cluster::etcd_history::EtcdHistory;
use crate::tasks::Supervisor;

/// The reason that a process with a fault gives in its denials.
const REPLICA_ENDING: &str = "this replica is ending after an internal error";

/// Wraps each of these handlers.
pub fn guard_handlers(
    handlers: Vec<(&'static str, Arc<dyn Handler>)>,
    supervisor: &Supervisor,
    etcd_history: &EtcdHistory,
    denials: &DenialCounts,
) -> Vec<(&'static str, Arc<dyn Handler>)> {
    let guard = |(path, inner)| {
        let guarded = GuardedHandler {
            inner,
            supervisor: supervisor.clone(),
            etcd_history: etcd_history.clone(),
            denials: denials.clone(),
        };
        (path, Arc::new(guarded) as Arc<dyn Handler>)
    };
    handlers.into_iter().map(guard).collect()
}

struct GuardedHandler {
    inner: Arc<dyn Handler>,
    supervisor: Supervisor,
    etcd_history: EtcdHistory,
    denials: DenialCounts,
}

impl GuardedHandler {
    /// Why this process must not decide any more. After a restore of etcd, the caches hold another state than etcd. After
    /// a panic, the counts of Pods may be inconsistent.
    fn obstacle(&self) -> Option<Cow<'static, str>> {
        if let Some(reason) = self.etcd_history.lost_reason() {
            return Some(Cow::Owned(reason.to_string()));
        }
        let fault = self.supervisor.fault();
        fault.map(|_| Cow::Borrowed(REPLICA_ENDING))
    }
}

#[async_trait]
impl Handler for GuardedHandler {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        if let Some(obstacle) = self.obstacle() {
            return self.fallback(request, &obstacle);
        }
        let verdict = self.inner.review(request, deadline).await;
        self.denials.count_decided(&verdict);
        verdict
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        let verdict = self.inner.fallback(request, why);
        self.denials.count_undecided(&verdict);
        verdict
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// Allows what it may decide, and denies the rest with the given reason.
    struct AllowingHandler;

    #[async_trait]
    impl Handler for AllowingHandler {
        async fn review(&self, _: &Request, _: Instant) -> Verdict {
            Verdict::allow()
        }
        fn fallback(&self, _: &Request, why: &str) -> Verdict {
            Verdict::deny(429, "TooManyRequests", why)
        }
    }

    #[tokio::test]
    async fn healthy_process_lets_its_handlers_decide() {
        let supervisor = Supervisor::new(CancellationToken::new());
        let (verdict, undecided) = decide(&supervisor, &EtcdHistory::default()).await;
        assert!(verdict.is_allowed());
        assert_eq!(undecided, 0);
    }

    #[tokio::test]
    async fn process_with_fault_denies_and_says_why() {
        let supervisor = Supervisor::new(CancellationToken::new());
        supervisor.report_fault("a watch", "panicked");
        let (verdict, undecided) = decide(&supervisor, &EtcdHistory::default()).await;
        assert_eq!((verdict.code(), verdict.message()), (429, REPLICA_ENDING));
        assert_eq!(undecided, 1);
    }

    #[tokio::test]
    async fn denial_after_restore_of_etcd_names_the_restore() {
        let supervisor = Supervisor::new(CancellationToken::new());
        let etcd_history = EtcdHistory::default();
        etcd_history.mark_lost("Pods", 9, 4);
        let (verdict, undecided) = decide(&supervisor, &etcd_history).await;
        assert_eq!(verdict.code(), 429);
        assert!(
            verdict
                .message()
                .contains("etcd was restored to an earlier state"),
            "{}",
            verdict.message()
        );
        assert_eq!(undecided, 1);
    }

    /// The verdict of a guarded handler, and how many denials were counted as not decided.
    async fn decide(supervisor: &Supervisor, etcd_history: &EtcdHistory) -> (Verdict, u64) {
        let denials = DenialCounts::default();
        let handlers: Vec<(_, Arc<dyn Handler>)> = vec![("/pods", Arc::new(AllowingHandler))];
        let guarded = guard_handlers(handlers, supervisor, etcd_history, &denials);
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
        let undecided = denials.counts().into_iter();
        let mut undecided = undecided.filter(|(reason, _)| *reason == "not-decided");
        (verdict, undecided.next().unwrap().1)
    }
}
