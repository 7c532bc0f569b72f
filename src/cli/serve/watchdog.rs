//! The probes of the watchdog, and when a stall causes a log line or a restart.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::cluster::caches::Caches;
use crate::cluster::index::Index;
use crate::cluster::rule_store::RuleStore;
use crate::cluster::watch_health::WatchAge;
use crate::cluster::watch_health::WatchRegistry;
use crate::controllers::{ControllerFigures, ControllerStats};
use crate::ledger::commit::Ledgers;
use crate::tasks::{Supervisor, describe_panic};
use crate::telemetry::watchdog::{self, WatchdogProbe, WatchdogStatus};

/// Locks are held only for microseconds.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(5);
/// The runtime starts a ready task at once, unless all its workers are blocked.
const MAX_RUNTIME_DELAY: Duration = Duration::from_secs(15);
/// The API server sends a bookmark every minute.
const MAX_WATCH_SILENCE: Duration = Duration::from_secs(300);
/// Each step of a watch has a deadline of at most 90 s. A long list has one for each page.
const MAX_WATCH_STALL: Duration = Duration::from_secs(900);
/// A reconcile may make a call for each claim of a rule, and the API server may be slow.
const MAX_CONTROLLER_STALL: Duration = Duration::from_secs(900);
/// How long locks, the runtime and controllers may stall before the process should be restarted.
const RESTART_AFTER: Duration = Duration::from_secs(60);

pub fn start_watchdog(
    caches: &Caches,
    ledgers: &Arc<Ledgers<RuleStore>>,
    controller_stats: &Arc<ControllerStats>,
    supervisor: &Supervisor,
) -> std::io::Result<WatchdogStatus> {
    #[allow(unused_mut)] // a release has no further probe
    let mut probes = vec![
        runtime_probe(Handle::current()),
        index_lock_probe(Arc::clone(&caches.index)),
        ledger_locks_probe(Arc::clone(ledgers)),
        silent_watches_probe(Arc::clone(&caches.watch_registry)),
        stalled_watches_probe(Arc::clone(&caches.watch_registry)),
        controllers_probe(Arc::clone(controller_stats)),
    ];
    #[cfg(debug_assertions)]
    probes.extend(fault_probe());
    let reporter = supervisor.clone();
    watchdog::start_watchdog(probes, supervisor.stop().clone(), move |panic| {
        reporter.report_fault("the watchdog", describe_panic(panic));
    })
}

/// A probe that panics, for tests. `None` if the process has no faults.
#[cfg(debug_assertions)]
fn fault_probe() -> Option<WatchdogProbe> {
    use crate::tasks::faults;

    let file = faults::fault_file("the watchdog")?;
    Some(WatchdogProbe {
        name: "fault",
        restart_after: None,
        check: Box::new(move |_| {
            faults::apply_fault(&file);
            Ok(())
        }),
    })
}

fn runtime_probe(handle: Handle) -> WatchdogProbe {
    let answered = Arc::new(AtomicU64::new(0));
    let mut last_ping = (0, Instant::now());
    WatchdogProbe {
        name: "runtime",
        restart_after: Some(RESTART_AFTER),
        check: Box::new(move |now| {
            if answered.load(Ordering::Relaxed) == last_ping.0 {
                let number = last_ping.0 + 1;
                last_ping = (number, now);
                let answered = Arc::clone(&answered);
                handle.spawn(async move { answered.store(number, Ordering::Relaxed) });
                return Ok(());
            }
            let waited = now.saturating_duration_since(last_ping.1);
            match waited > MAX_RUNTIME_DELAY {
                true => Err(format!("no task has run for {waited:.0?}")),
                false => Ok(()),
            }
        }),
    }
}

fn index_lock_probe(index: Arc<Index>) -> WatchdogProbe {
    WatchdogProbe {
        name: "index-lock",
        restart_after: Some(RESTART_AFTER),
        check: Box::new(move |_| {
            check_lock_free(index.is_unlocked_within(MAX_LOCK_WAIT), "the index")
        }),
    }
}

fn ledger_locks_probe(ledgers: Arc<Ledgers<RuleStore>>) -> WatchdogProbe {
    WatchdogProbe {
        name: "ledger-lock",
        restart_after: Some(RESTART_AFTER),
        check: Box::new(move |_| {
            check_lock_free(ledgers.is_unlocked_within(MAX_LOCK_WAIT), "a ledger")
        }),
    }
}

fn check_lock_free(is_free: bool, lock: &str) -> Result<(), String> {
    match is_free {
        true => Ok(()),
        false => Err(format!(
            "{lock} has been locked for more than {MAX_LOCK_WAIT:?}"
        )),
    }
}

fn silent_watches_probe(registry: Arc<WatchRegistry>) -> WatchdogProbe {
    WatchdogProbe {
        name: "watch-silent",
        restart_after: None, // the cause is the API server, so a restart would not help
        check: Box::new(move |now| {
            check_watch_ages(&registry.watch_ages(now), MAX_WATCH_SILENCE, |age| {
                age.heard
            })
            .map_err(|text| format!("no event or bookmark came from the watch of {text}"))
        }),
    }
}

fn stalled_watches_probe(registry: Arc<WatchRegistry>) -> WatchdogProbe {
    WatchdogProbe {
        name: "watch-stuck",
        restart_after: Some(Duration::ZERO),
        check: Box::new(move |now| {
            check_watch_ages(&registry.watch_ages(now), MAX_WATCH_STALL, |age| age.moved)
                .map_err(|text| format!("no attempt was made by the watch of {text}"))
        }),
    }
}

/// An error with the names of the watches that are older than `most`, and the oldest age.
fn check_watch_ages(
    ages: &[WatchAge],
    most: Duration,
    age: fn(&WatchAge) -> Duration,
) -> Result<(), String> {
    let old = ages.iter().filter(|it| age(it) > most);
    let names: Vec<_> = old.clone().map(|it| it.resource).collect();
    match old.map(age).max() {
        Some(oldest) => Err(format!("{} for {oldest:.0?}", names.join(", "))),
        None => Ok(()),
    }
}

fn controllers_probe(controller_stats: Arc<ControllerStats>) -> WatchdogProbe {
    let mut known = ControllerProgress::default();
    WatchdogProbe {
        name: "controllers",
        restart_after: Some(RESTART_AFTER),
        check: Box::new(move |now| {
            known.check_progress(&controller_stats.controller_figures(), now)
        }),
    }
}

/// The progress of each controller, and since when it has not changed although keys wait.
#[derive(Default)]
struct ControllerProgress(HashMap<&'static str, (u64, Instant)>);

impl ControllerProgress {
    fn check_progress(&mut self, all: &[ControllerFigures], now: Instant) -> Result<(), String> {
        let mut idle = Vec::new();
        for figures in all {
            let current = (figures.progress, now);
            let known = self.0.entry(figures.controller).or_insert(current);
            if figures.depth == 0 || known.0 != figures.progress {
                *known = current;
            } else if now.saturating_duration_since(known.1) > MAX_CONTROLLER_STALL {
                idle.push(figures.controller);
            }
        }
        match idle.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "{} did nothing for more than {MAX_CONTROLLER_STALL:?}, although its queue is not empty",
                idle.join(", ")
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn figures(depth: usize, progress: u64) -> [ControllerFigures; 1] {
        [ControllerFigures {
            controller: "rules",
            depth,
            runs: [("done", 0), ("later", 0), ("retry", 0), ("panic", 0)],
            progress,
        }]
    }

    #[test]
    fn controller_that_does_nothing_while_keys_wait_is_seen() {
        let (mut known, begin) = (ControllerProgress::default(), Instant::now());
        assert_eq!(known.check_progress(&figures(1, 7), begin), Ok(()));
        assert_eq!(
            known.check_progress(&figures(2, 7), begin + MAX_CONTROLLER_STALL),
            Ok(())
        );
        let idle = known.check_progress(&figures(2, 7), begin + MAX_CONTROLLER_STALL + SECOND);
        assert!(idle.unwrap_err().starts_with("rules did nothing"));
        assert_eq!(
            known.check_progress(&figures(2, 8), begin + MAX_CONTROLLER_STALL + 2 * SECOND),
            Ok(())
        );
        assert_eq!(
            known.check_progress(&figures(2, 8), begin + MAX_CONTROLLER_STALL + 99 * SECOND),
            Ok(())
        );
    }

    #[test]
    fn controller_without_work_is_not_idle() {
        let (mut known, begin) = (ControllerProgress::default(), Instant::now());
        for minute in 0..9 {
            let now = begin + 60 * minute * SECOND;
            assert_eq!(known.check_progress(&figures(0, 7), now), Ok(()));
        }
        let now = begin + 500 * SECOND;
        assert_eq!(known.check_progress(&figures(1, 7), now), Ok(()));
    }

    #[test]
    fn old_watches_are_named_with_the_oldest_age() {
        let age = |resource, seconds| WatchAge {
            resource,
            heard: seconds * SECOND,
            moved: SECOND,
        };
        let ages = [
            age("pods", 299),
            age("replicasets", 400),
            age("namespaces", 301),
        ];
        let error = check_watch_ages(&ages, MAX_WATCH_SILENCE, |age| age.heard).unwrap_err();
        assert_eq!(error, "replicasets, namespaces for 400s");
        assert_eq!(
            check_watch_ages(&ages, MAX_WATCH_STALL, |age| age.moved),
            Ok(())
        );
    }

    #[test]
    fn blocked_runtime_is_seen_and_forgotten_when_it_runs_again() {
        // The only worker is this thread, so nothing runs until it drives the runtime.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let mut probe = super::runtime_probe(runtime.handle().clone());
        let begin = Instant::now();
        assert_eq!((probe.check)(begin), Ok(()));
        assert_eq!((probe.check)(begin + 15 * SECOND), Ok(()));
        let stuck = (probe.check)(begin + 16 * SECOND);
        assert_eq!(stuck, Err("no task has run for 16s".to_owned()));
        runtime.block_on(tokio::task::yield_now());
        assert_eq!((probe.check)(begin + 17 * SECOND), Ok(()));
    }

    #[test]
    fn held_lock_is_reported() {
        assert_eq!(check_lock_free(true, "the index"), Ok(()));
        let error = check_lock_free(false, "the index").unwrap_err();
        assert_eq!(error, "the index has been locked for more than 5s");
    }
}
