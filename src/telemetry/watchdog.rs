//! Runs a thread that detects parts which stop without an error: locks, watches, controllers, the runtime.
//!
//! The watchdog logs once when a part stalls and once when it has recovered. It reports each stalled part by a metric,
//! and by `/livez` if a restart helps.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Pause between two rounds of probes.
const PROBE_PERIOD: Duration = Duration::from_secs(5);
/// If no round has run for this time, the watchdog itself has stalled.
const ASLEEP_AFTER: Duration = Duration::from_secs(120);

/// A probe function; `Err` says what has stalled.
type ProbeCheck = Box<dyn FnMut(Instant) -> Result<(), String> + Send>;

/// A part that may stall.
pub struct WatchdogProbe {
    /// One word, for the log and the metric.
    pub name: &'static str,
    /// `/livez` fails when the part has stalled for this time; `None` if a restart would not help.
    pub restart_after: Option<Duration>,
    /// Probes the part. It may block for some seconds, and must not hold locks that it probes.
    pub check: ProbeCheck,
}

/// The results of the probes. Clones share the results.
#[derive(Clone, Debug)]
pub struct WatchdogStatus(Arc<Mutex<WatchdogState>>);

#[derive(Debug)]
struct WatchdogState {
    last_round: Instant,
    probes: Vec<ProbeState>,
}

#[derive(Debug)]
struct ProbeState {
    name: &'static str,
    restart_after: Option<Duration>,
    /// Since when the part has stalled, and the text of the last probe.
    stalled: Option<(Instant, String)>,
}

impl WatchdogStatus {
    /// Names of all probes, and whether each part has stalled.
    pub fn stalled_probes(&self) -> Vec<(&'static str, bool)> {
        let state = self.0.lock();
        let states = state.probes.iter();
        states.map(|s| (s.name, s.stalled.is_some())).collect()
    }

    /// The reason why the process must be restarted, or `None`.
    pub fn liveness_failure(&self, now: Instant) -> Option<String> {
        let state = self.0.lock();
        let asleep = now.saturating_duration_since(state.last_round);
        if asleep > ASLEEP_AFTER {
            return Some(format!("the watchdog has not looked for {asleep:.0?}"));
        }
        state.probes.iter().find_map(|probe| {
            let (since, reason) = probe.stalled.as_ref()?;
            let lasts = now.saturating_duration_since(*since);
            (lasts >= probe.restart_after?).then(|| format!("{}: {reason}", probe.name))
        })
    }

    fn new(probes: &[WatchdogProbe], now: Instant) -> WatchdogStatus {
        let states = probes.iter().map(|probe| ProbeState {
            name: probe.name,
            restart_after: probe.restart_after,
            stalled: None,
        });
        WatchdogStatus(Arc::new(Mutex::new(WatchdogState {
            last_round: now,
            probes: states.collect(),
        })))
    }

    /// Runs every probe once.
    fn run_probes(&self, probes: &mut [WatchdogProbe], now: Instant) {
        for (index, probe) in probes.iter_mut().enumerate() {
            let found = (probe.check)(now); // without the lock, because it may block
            if let Some(state) = self.0.lock().probes.get_mut(index) {
                state.record_result(found, now);
            }
        }
        self.0.lock().last_round = now;
    }
}

impl ProbeState {
    fn record_result(&mut self, found: Result<(), String>, now: Instant) {
        match (found, &mut self.stalled) {
            (Ok(()), None) => {}
            (Ok(()), stalled) => {
                info!(probe = self.name, "has recovered");
                *stalled = None;
            }
            (Err(why), Some((_, last))) => *last = why,
            (Err(why), stalled) => {
                warn!(probe = self.name, why, "has stalled");
                *stalled = Some((now, why));
            }
        }
    }
}

/// Starts the thread, which ends after `stop` is cancelled. If it panics, it calls `died` with the message of the
/// panic.
///
/// # Errors
/// If the system cannot start a thread.
pub fn start_watchdog(
    mut probes: Vec<WatchdogProbe>,
    stop: CancellationToken,
    died: impl FnOnce(&(dyn Any + Send)) + Send + 'static,
) -> std::io::Result<WatchdogStatus> {
    let status = WatchdogStatus::new(&probes, Instant::now());
    let thread_status = status.clone();
    std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(move || {
            let looks = AssertUnwindSafe(|| {
                while !stop.is_cancelled() {
                    thread_status.run_probes(&mut probes, Instant::now());
                    std::thread::sleep(PROBE_PERIOD);
                }
            });
            if let Err(panic) = std::panic::catch_unwind(looks) {
                died(&*panic);
            }
        })?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A probe that returns the content of the cell as its error.
    fn probe(restart_after: Option<Duration>) -> (Vec<WatchdogProbe>, Arc<Mutex<Option<String>>>) {
        let found = Arc::new(Mutex::new(None::<String>));
        let look = Arc::clone(&found);
        let probe = WatchdogProbe {
            name: "index",
            restart_after,
            check: Box::new(move |_| look.lock().clone().map_or(Ok(()), Err)),
        };
        (vec![probe], found)
    }

    #[test]
    fn stall_fails_liveness_only_after_restart_after() {
        let (mut probes, found) = probe(Some(30 * SECOND));
        let begin = Instant::now();
        let status = WatchdogStatus::new(&probes, begin);
        status.run_probes(&mut probes, begin);
        assert_eq!(status.stalled_probes(), [("index", false)]);

        *found.lock() = Some("it is locked".to_owned());
        status.run_probes(&mut probes, begin + 5 * SECOND);
        assert_eq!(status.stalled_probes(), [("index", true)]);
        assert_eq!(status.liveness_failure(begin + 34 * SECOND), None);
        status.run_probes(&mut probes, begin + 30 * SECOND);
        let why = status.liveness_failure(begin + 35 * SECOND);
        assert_eq!(why.as_deref(), Some("index: it is locked"));

        *found.lock() = None;
        status.run_probes(&mut probes, begin + 36 * SECOND);
        assert_eq!(status.stalled_probes(), [("index", false)]);
        assert_eq!(status.liveness_failure(begin + 99 * SECOND), None);
    }

    #[test]
    fn stall_without_restart_after_never_fails_liveness() {
        let (mut probes, found) = probe(None);
        let begin = Instant::now();
        let status = WatchdogStatus::new(&probes, begin);
        *found.lock() = Some("the API server says nothing".to_owned());
        status.run_probes(&mut probes, begin);
        assert_eq!(status.stalled_probes(), [("index", true)]);
        assert_eq!(status.liveness_failure(begin + 100 * SECOND), None);
    }

    #[test]
    fn stopped_watchdog_fails_liveness() {
        let (probes, _) = probe(None);
        let begin = Instant::now();
        let status = WatchdogStatus::new(&probes, begin);
        let why = status.liveness_failure(begin + 121 * SECOND).unwrap();
        assert_eq!(why, "the watchdog has not looked for 121s");
    }

    #[test]
    fn panic_of_probe_is_reported() {
        let probe = WatchdogProbe {
            name: "index",
            restart_after: None,
            check: Box::new(|_| panic!("as asked")),
        };
        let (told, died) = std::sync::mpsc::channel();
        start_watchdog(vec![probe], CancellationToken::new(), move |panic| {
            told.send(panic.is::<&str>()).unwrap();
        })
        .unwrap();
        assert_eq!(died.recv(), Ok(true));
    }
}
