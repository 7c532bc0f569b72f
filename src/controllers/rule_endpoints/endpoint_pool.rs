//! Runs the calls to endpoints. Each call needs a [permit](super::call_permits).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::timeout;

use super::address::AddressPolicy;
use super::call_permits::{CallPermit, CallPermits, CallRoute};
use super::ignored_failures::IgnoredCounts;

/// If a call gets no permit within this time, it is not made. Its Pods are evaluated again, and their status shows why
/// they wait.
const MAX_PERMIT_WAIT: Duration = Duration::from_secs(60);

/// Why a call was not made.
pub const NO_PERMIT_REASON: &str = "its endpoint is asked later: other calls of the namespace, or to the same endpoint, have taken all \
                          places for 60 s";

/// The calls of this process, with their permits and counters.
#[derive(Default)]
pub struct EndpointCaller {
    /// The addresses that may be called.
    pub reach: AddressPolicy,
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
    /// A pool of calls to the addresses that `reach` allows.
    pub fn new(reach: AddressPolicy) -> EndpointCaller {
        EndpointCaller {
            reach,
            ..EndpointCaller::default()
        }
    }

    /// Waits for a permit for a call; `None` if the wait takes too long.
    pub async fn acquire_permit(&self, route: &CallRoute) -> Option<CallPermit> {
        let place = timeout(MAX_PERMIT_WAIT, self.permits.request_permit(route)).await;
        // The sender is dropped without a permit only if this receiver is gone.
        let place = place.ok().and_then(Result::ok);
        if place.is_none() {
            self.postponed.fetch_add(1, Ordering::Relaxed);
        }
        place
    }

    /// Makes a call under a permit, and counts it.
    pub async fn run_counted<T>(
        &self,
        _place: &CallPermit,
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

    fn route(endpoint: &str) -> CallRoute {
        CallRoute {
            namespace: "n".to_owned(),
            endpoint: endpoint.to_owned(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_of_a_namespace_to_one_endpoint_are_bounded() {
        let pool = Arc::new(EndpointCaller::default());
        let most = Arc::new(AtomicU64::new(0));
        let now = Arc::new(AtomicU64::new(0));
        let calls = (0..40).map(|_| {
            let (pool, most, now) = (Arc::clone(&pool), Arc::clone(&most), Arc::clone(&now));
            tokio::spawn(async move {
                let call = async {
                    let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(running, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, String>(())
                };
                let place = pool.acquire_permit(&route("a")).await.unwrap();
                pool.run_counted(&place, call).await
            })
        });
        for done in futures::future::join_all(calls).await {
            done.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 4);
        assert_eq!(pool.made.load(Ordering::Relaxed), 40);
    }

    #[tokio::test(start_paused = true)]
    async fn call_that_finds_no_place_is_given_up_and_counted() {
        let pool = EndpointCaller::default();
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(pool.acquire_permit(&route("a")).await.unwrap());
        }
        assert!(pool.acquire_permit(&route("a")).await.is_none());
        assert_eq!(pool.postponed.load(Ordering::Relaxed), 1);
        assert!(pool.acquire_permit(&route("b")).await.is_some());
        drop(held);
        assert!(pool.acquire_permit(&route("a")).await.is_some());
    }
}
