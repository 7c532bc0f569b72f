//! Limits the rate at which the statuses of a namespace are written.
//!
//! A status contains names of Pods and may have tens of KiB. Each write is stored, and sent to all watches of rules.
//! Without a limit, a namespace with a hundred rules over the same Pods could use up the capacity of the API server.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Bytes per second that may be written for a namespace in the long run.
const BYTES_PER_SECOND: u32 = 256 * 1024;
/// The burst of a namespace, as the time that its bytes take at [`BYTES_PER_SECOND`].
const BURST: Duration = Duration::from_secs(4);

/// For each namespace, the time until which its writes so far use up the rate [`BYTES_PER_SECOND`].
#[derive(Debug, Default)]
pub struct StatusRateLimiter(Mutex<HashMap<String, Instant>>);

impl StatusRateLimiter {
    /// How long a namespace must wait before its next write; `None` if it may write now.
    pub fn time_until_allowed(&self, namespace: &str, now: Instant) -> Option<Duration> {
        let mut busy_until = self.0.lock();
        busy_until.retain(|_, until| *until > now); // keeps only namespaces with writes in the last seconds
        let pause = busy_until
            .get(namespace)?
            .saturating_duration_since(now + BURST);
        (!pause.is_zero()).then_some(pause)
    }

    /// Records a write of `bytes` bytes for a namespace.
    pub fn charge_bytes(&self, namespace: &str, bytes: usize, now: Instant) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let takes = Duration::from_secs(1) * bytes / BYTES_PER_SECOND;
        let mut busy_until = self.0.lock();
        let until = busy_until.entry(namespace.to_owned()).or_insert(now);
        *until = (*until).max(now) + takes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes are written within a minute if there is always more to write.
    fn written(limiter: &StatusRateLimiter, bytes: usize) -> usize {
        let (begin, mut written) = (Instant::now(), 0);
        let mut now = begin;
        while now < begin + Duration::from_secs(60) {
            match limiter.time_until_allowed("n", now) {
                Some(pause) => now += pause,
                None => {
                    limiter.charge_bytes("n", bytes, now);
                    written += bytes;
                }
            }
        }
        written
    }

    #[test]
    fn busy_namespace_gets_its_rate_and_burst() {
        let rate = BYTES_PER_SECOND as usize;
        for bytes in [1_000, 32 * 1024, 2 * rate] {
            let max = 64 * rate + bytes;
            let written = written(&StatusRateLimiter::default(), bytes);
            assert!((60 * rate..=max).contains(&written), "{bytes}: {written}");
        }
    }

    #[test]
    fn namespaces_do_not_wait_for_each_other_and_are_forgotten() {
        let (limiter, now) = (StatusRateLimiter::default(), Instant::now());
        limiter.charge_bytes("a", 100 * BYTES_PER_SECOND as usize, now);
        assert_eq!(
            limiter.time_until_allowed("a", now),
            Some(Duration::from_secs(96))
        );
        assert_eq!(limiter.time_until_allowed("b", now), None);
        let later = now + Duration::from_secs(101);
        assert_eq!(limiter.time_until_allowed("a", later), None);
        assert!(limiter.0.lock().is_empty());
    }
}
