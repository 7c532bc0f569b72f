//! The calls under way: bounded over all endpoints and for each, and none to an endpoint that keeps failing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::address::Reach;

/// Calls at once.
const CALLS: usize = 32;

/// Calls at once to one endpoint, so that a slow one leaves room for others.
const CALLS_EACH: usize = 8;

/// After so many failures in a row an endpoint is left alone for a while.
const FAILURES: u32 = 5;

/// The first and the longest while. Then one call is let through to see.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(15);

/// Failures of an endpoint that nobody asks any more are forgotten after this time.
const FORGET: Duration = Duration::from_secs(600);

/// The pool.
pub struct Pool {
    /// Which addresses are called.
    pub reach: Reach,
    calls: Semaphore,
    /// Endpoints that are called, or fail; others are not kept.
    endpoints: Mutex<HashMap<String, Endpoint>>,
    /// Calls made.
    pub made: AtomicU64,
    /// Calls that failed, or were not made since the endpoint keeps failing.
    pub failed: AtomicU64,
}

struct Endpoint {
    calls: Arc<Semaphore>,
    users: usize,
    failures: u32,
    /// When it last failed.
    last: Instant,
    /// Why the last call failed, and until when no further one is made.
    broken: Option<(String, Instant)>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool {
            reach: Reach::default(),
            calls: Semaphore::new(CALLS),
            endpoints: Mutex::default(),
            made: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }
}

impl Pool {
    /// A pool of calls to these addresses.
    pub fn new(reach: Reach) -> Pool {
        Pool {
            reach,
            ..Pool::default()
        }
    }

    /// Makes a call to an endpoint when there is room for it, unless the endpoint keeps failing. `spread` in [0, 1)
    /// spreads the times at which several replicas and endpoints try again.
    pub async fn call<T>(
        &self,
        endpoint: &str,
        spread: f64,
        call: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let _user = User::new(self, endpoint);
        let calls = self.with(endpoint, |e| Arc::clone(&e.calls));
        let _mine = calls.acquire().await;
        let _any = self.calls.acquire().await;
        let outcome = match self.with(endpoint, Endpoint::refuses) {
            Some(why) => Err(why),
            None => {
                self.made.fetch_add(1, Ordering::Relaxed);
                let outcome = call.await;
                self.with(endpoint, |e| e.heard(outcome.as_ref().err(), spread));
                outcome
            }
        };
        if outcome.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn with<R>(&self, endpoint: &str, look: impl FnOnce(&mut Endpoint) -> R) -> R {
        let mut endpoints = self.endpoints.lock();
        let entry = endpoints
            .entry(endpoint.to_owned())
            .or_insert_with(|| Endpoint {
                calls: Arc::new(Semaphore::new(CALLS_EACH)),
                users: 0,
                failures: 0,
                last: Instant::now(),
                broken: None,
            });
        look(entry)
    }
}

impl Endpoint {
    /// Why no call is made now. When the while is over, one caller is let through, and the others wait on.
    fn refuses(&mut self) -> Option<String> {
        let (why, until) = self.broken.as_mut()?;
        if Instant::now() < *until {
            return Some(why.clone());
        }
        *until = Instant::now() + LONGEST;
        None
    }

    fn heard(&mut self, failure: Option<&String>, spread: f64) {
        let Some(why) = failure else {
            (self.failures, self.broken) = (0, None);
            return;
        };
        self.failures = self.failures.saturating_add(1);
        self.last = Instant::now();
        if let Some(beyond) = self.failures.checked_sub(FAILURES) {
            let pause = FIRST.saturating_mul(2_u32.saturating_pow(beyond.min(10)));
            let pause = pause.min(LONGEST).mul_f64(1.0 + spread / 4.0);
            self.broken = Some((why.clone(), Instant::now() + pause));
        }
    }
}

/// Keeps an endpoint in the pool while it is used.
struct User<'a> {
    pool: &'a Pool,
    endpoint: &'a str,
}

impl<'a> User<'a> {
    fn new(pool: &'a Pool, endpoint: &'a str) -> Self {
        pool.with(endpoint, |e| e.users += 1);
        User { pool, endpoint }
    }
}

impl Drop for User<'_> {
    fn drop(&mut self) {
        self.pool.with(self.endpoint, |e| e.users -= 1);
        let mut endpoints = self.pool.endpoints.lock();
        endpoints.retain(|_, e| e.users > 0 || e.failures > 0 && e.last.elapsed() < FORGET);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    async fn fail(pool: &Pool) -> String {
        let call = async { Err::<(), _>("down".to_owned()) };
        pool.call("a", 0.0, call).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_keeps_failing_is_left_alone_for_a_while() {
        let pool = Pool::default();
        for _ in 0..FAILURES {
            fail(&pool).await;
        }
        assert_eq!(fail(&pool).await, "down");
        assert_eq!(pool.made.load(Ordering::Relaxed), u64::from(FAILURES));
        let other = pool.call("b", 0.0, async { Ok::<_, String>(1) }).await;
        assert_eq!(other, Ok(1));

        tokio::time::sleep(FIRST).await;
        // One call is let through, and brings the endpoint back.
        let probe = pool.call("a", 0.0, async {
            assert_eq!(fail(&pool).await, "down");
            Ok::<_, String>(2)
        });
        assert_eq!(probe.await, Ok(2));
        let made = pool.made.load(Ordering::Relaxed);
        assert_eq!(made, u64::from(FAILURES) + 2);
        assert_eq!(
            pool.call("a", 0.0, async { Ok::<_, String>(3) }).await,
            Ok(3)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_bounded_and_endpoints_at_rest_are_forgotten() {
        let pool = Arc::new(Pool::default());
        let most = Arc::new(AtomicU64::new(0));
        let now = Arc::new(AtomicU64::new(0));
        let calls = (0..100).map(|_| {
            let (pool, most, now) = (Arc::clone(&pool), Arc::clone(&most), Arc::clone(&now));
            tokio::spawn(async move {
                let call = async {
                    let running = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(running, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, String>(())
                };
                pool.call("a", 0.0, call).await
            })
        });
        for done in futures::future::join_all(calls).await {
            done.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), CALLS_EACH as u64);
        assert!(pool.endpoints.lock().is_empty());
    }
}
