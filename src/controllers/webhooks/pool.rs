//! The calls under way: each has a [place](super::places), and an endpoint that keeps failing is left alone.
//!
//! What a namespace hears of an endpoint counts for itself alone. Otherwise a rule with a wrong path would have the
//! endpoint left alone for all others that call its host.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::address::Reach;
use super::places::{Places, Route};

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
    places: Arc<Places>,
    /// Endpoints that fail; others are not kept.
    failing: Mutex<HashMap<Route, Failing>>,
    /// Calls made.
    pub made: AtomicU64,
    /// Calls that failed, or were not made since the endpoint keeps failing.
    pub failed: AtomicU64,
}

struct Failing {
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
            places: Arc::default(),
            failing: Mutex::default(),
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

    /// Makes a call when there is a place for it, unless the endpoint keeps failing. `spread` in [0, 1) spreads the times
    /// at which several replicas and endpoints try again.
    pub async fn call<T>(
        &self,
        route: Route,
        spread: f64,
        call: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        // Only waiters that have gone are sent no place.
        let _place = self.places.ask(&route).await.ok();
        let refusal = self
            .failing
            .lock()
            .get_mut(&route)
            .and_then(Failing::refuses);
        let outcome = match refusal {
            Some(why) => Err(why),
            None => {
                self.made.fetch_add(1, Ordering::Relaxed);
                let outcome = call.await;
                self.heard(route, outcome.as_ref().err(), spread);
                outcome
            }
        };
        if outcome.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    fn heard(&self, route: Route, failure: Option<&String>, spread: f64) {
        let mut failing = self.failing.lock();
        match failure {
            Some(why) => failing.entry(route).or_default().failed(why, spread),
            None => drop(failing.remove(&route)),
        }
        failing.retain(|_, f| f.last.elapsed() < FORGET);
    }
}

impl Default for Failing {
    fn default() -> Self {
        Failing {
            failures: 0,
            last: Instant::now(),
            broken: None,
        }
    }
}

impl Failing {
    /// Why no call is made now. When the while is over, one caller is let through, and the others wait on.
    fn refuses(&mut self) -> Option<String> {
        let (why, until) = self.broken.as_mut()?;
        if Instant::now() < *until {
            return Some(why.clone());
        }
        *until = Instant::now() + LONGEST;
        None
    }

    fn failed(&mut self, why: &str, spread: f64) {
        self.failures = self.failures.saturating_add(1);
        self.last = Instant::now();
        if let Some(beyond) = self.failures.checked_sub(FAILURES) {
            let pause = FIRST.saturating_mul(2_u32.saturating_pow(beyond.min(10)));
            let pause = pause.min(LONGEST).mul_f64(1.0 + spread / 4.0);
            self.broken = Some((why.to_owned(), Instant::now() + pause));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn route(namespace: &str, endpoint: &str) -> Route {
        Route {
            namespace: namespace.to_owned(),
            endpoint: endpoint.to_owned(),
        }
    }

    async fn fail(pool: &Pool) -> String {
        let call = async { Err::<(), _>("down".to_owned()) };
        pool.call(route("n", "a"), 0.0, call).await.unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn an_endpoint_that_keeps_failing_is_left_alone_for_a_while() {
        let pool = Pool::default();
        for _ in 0..FAILURES {
            fail(&pool).await;
        }
        assert_eq!(fail(&pool).await, "down");
        assert_eq!(pool.made.load(Ordering::Relaxed), u64::from(FAILURES));
        let other = pool
            .call(route("n", "b"), 0.0, async { Ok::<_, String>(1) })
            .await;
        assert_eq!(other, Ok(1));

        tokio::time::sleep(FIRST).await;
        // One call is let through, and brings the endpoint back.
        let probe = pool.call(route("n", "a"), 0.0, async {
            assert_eq!(fail(&pool).await, "down");
            Ok::<_, String>(2)
        });
        assert_eq!(probe.await, Ok(2));
        let made = pool.made.load(Ordering::Relaxed);
        assert_eq!(made, u64::from(FAILURES) + 2);
        assert_eq!(
            pool.call(route("n", "a"), 0.0, async { Ok::<_, String>(3) })
                .await,
            Ok(3)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn failures_of_a_namespace_do_not_keep_another_from_the_endpoint() {
        let pool = Pool::default();
        for _ in 0..FAILURES {
            fail(&pool).await;
        }
        let call = async || Ok::<_, String>(());
        assert!(pool.call(route("n", "a"), 0.0, call()).await.is_err());
        assert_eq!(pool.call(route("other", "a"), 0.0, call()).await, Ok(()));
        // Nor does what another hears tell the first one anything.
        assert!(pool.call(route("n", "a"), 0.0, call()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn endpoint_that_nobody_asks_any_more_is_forgotten() {
        let pool = Pool::default();
        fail(&pool).await;
        tokio::time::sleep(FORGET).await;
        let other = pool.call(route("n", "b"), 0.0, async { Ok::<_, String>(()) });
        other.await.unwrap();
        assert!(pool.failing.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_bounded_and_endpoints_that_answer_are_not_kept() {
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
                pool.call(route("n", "a"), 0.0, call).await
            })
        });
        for done in futures::future::join_all(calls).await {
            done.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), 4);
        assert!(pool.failing.lock().is_empty());
    }
}
