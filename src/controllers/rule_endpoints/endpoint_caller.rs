//! Limits and counts the calls to endpoints. Each call needs a [permit](super::call_permits).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::address::AddressPolicy;
use super::call_permits::{CallPermit, CallPermits, PermitKey};
use super::ignored_counts::IgnoredCounts;

/// If a call gets no permit within this time, it is not made. Its Pods are evaluated again, and their status shows why
/// they wait.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(60);

/// Why a call was not made.
pub const NO_PERMIT_REASON: &str = "its endpoint is asked later: other calls of the namespace, or to the same endpoint, have used all \
     permits for 60 s";

/// Makes the calls of this process: gives each call a permit, and counts the calls.
#[derive(Default)]
pub struct EndpointCaller {
    /// The addresses that may be called.
    pub address_policy: AddressPolicy,
    permits: Arc<CallPermits>,
    /// Number of calls that were made.
    pub made: AtomicU64,
    /// Number of calls that failed.
    pub failed: AtomicU64,
    /// Number of calls that were not made because they got no permit.
    pub postponed: AtomicU64,
    /// Operations that passed because of `failurePolicy: Ignore`.
    pub ignored: IgnoredCounts,
}

impl EndpointCaller {
    /// A caller that calls the addresses that the policy allows.
    pub fn new(address_policy: AddressPolicy) -> EndpointCaller {
        EndpointCaller {
            address_policy,
            ..EndpointCaller::default()
        }
    }

    /// Waits for a permit for a call; `None` if the wait takes too long.
    pub async fn acquire_permit(&self, key: &PermitKey) -> Option<CallPermit> {
        let permit = timeout(MAX_PERMIT_WAIT, self.permits.request_permit(key)).await;
        // The sender is dropped without a permit only if this receiver is gone.
        let permit = permit.ok().and_then(Result::ok);
        if permit.is_none() {
            self.postponed.fetch_add(1, Ordering::Relaxed);
        }
        permit
    }

    /// Makes a call under a permit, and counts it.
    pub async fn run_counted<T>(
        &self,
        _permit: &CallPermit,
        call: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        self.made.fetch_add(1, Ordering::Relaxed);
        let outcome = call.await;
        if outcome.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(endpoint: &str) -> PermitKey {
        PermitKey {
            namespace: "n".to_owned(),
            endpoint: endpoint.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_a_namespace_to_one_endpoint_are_bounded() {
        let caller = Arc::new(EndpointCaller::default());
        let max_running = Arc::new(AtomicU64::new(0));
        let running_now = Arc::new(AtomicU64::new(0));
        let calls = (0..40).map(|_| {
            let (caller, max_running, running_now) = (
                Arc::clone(&caller),
                Arc::clone(&max_running),
                Arc::clone(&running_now),
            );
            tokio::spawn(async move {
                let call = async {
                    let running = running_now.fetch_add(1, Ordering::SeqCst) + 1;
                    max_running.fetch_max(running, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    running_now.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, String>(())
                };
                let permit = caller.acquire_permit(&key("a")).await.unwrap();
                caller.run_counted(&permit, call).await
            })
        });
        for result in futures::future::join_all(calls).await {
            result.unwrap().unwrap();
        }
        assert_eq!(max_running.load(Ordering::SeqCst), 4);
        assert_eq!(caller.made.load(Ordering::Relaxed), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn call_without_permit_is_given_up_and_counted() {
        let caller = EndpointCaller::default();
        let mut permits = Vec::new();
        for _ in 0..4 {
            permits.push(caller.acquire_permit(&key("a")).await.unwrap());
        }
        assert!(caller.acquire_permit(&key("a")).await.is_none());
        assert_eq!(caller.postponed.load(Ordering::Relaxed), 1);
        assert!(caller.acquire_permit(&key("b")).await.is_some());
        drop(permits);
        assert!(caller.acquire_permit(&key("a")).await.is_some());
    }
}
