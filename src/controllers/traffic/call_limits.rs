//! Bounds the calls of each adapter: at most so many in each second, over all employers.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The calls that each adapter may make.
#[derive(Default)]
pub struct CallLimits(Mutex<HashMap<String, Bucket>>);

/// Calls that may be made at once: those of one second.
struct Bucket {
    calls: f64,
    filled: Instant,
}

impl CallLimits {
    /// Takes one call of an adapter that may make `per_second`. If none is left, returns the time until there is one.
    pub fn take(&self, adapter: &str, per_second: u32, now: Instant) -> Result<(), Duration> {
        let rate = f64::from(per_second.max(1));
        let mut buckets = self.0.lock();
        let bucket = buckets.entry(adapter.to_owned()).or_insert(Bucket {
            calls: rate,
            filled: now,
        });
        let passed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.calls = (bucket.calls + passed * rate).min(rate);
        bucket.filled = now;
        if bucket.calls < 1.0 {
            return Err(Duration::from_secs_f64((1.0 - bucket.calls) / rate));
        }
        bucket.calls -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_of_one_adapter_are_bounded() {
        let (limits, now) = (CallLimits::default(), Instant::now());
        assert_eq!(limits.take("a", 2, now), Ok(()));
        assert_eq!(limits.take("a", 2, now), Ok(()));
        let wait = limits.take("a", 2, now);
        assert_eq!(wait, Err(Duration::from_millis(500)));
        assert_eq!(limits.take("b", 2, now), Ok(()), "each adapter has its own");
        let later = now + Duration::from_millis(500);
        assert_eq!(limits.take("a", 2, later), Ok(()));
        assert!(limits.take("a", 2, later).is_err());
    }
}
