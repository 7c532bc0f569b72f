//! Finds out whether the API server stores the ledgers as they are written. An old or foreign CustomResourceDefinition
//! drops them, and then every claim is denied.
//!
//! Only the replica that writes a claim sees the drop, but only the leader writes conditions. A write whose content is
//! dropped changes nothing, so no event reports it. Therefore the leader sends a dry run if it sees no ledger.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::ControllerContext;
use super::super::api_calls::API_CALL_TIMEOUT;
use crate::api_request;
use crate::domain::rules::conditions::LedgerStorage as Finding;
use crate::ledger::store::{RuleKey, Uid};

/// If a rule object has no ledger yet, a change of it causes another probe after this time.
const CHANGED_RETRY: Duration = Duration::from_secs(60);
/// If a ledger is dropped, or the probe failed, the next probe follows after this time.
const DROPPED_RETRY: Duration = Duration::from_secs(10);
/// Time between the probes of any two rule objects.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);

/// When each rule object is probed.
#[derive(Debug, Default)]
pub struct StorageProbe(Mutex<ProbeSchedule>);

#[derive(Debug, Default)]
struct ProbeSchedule {
    /// By UID of the rule object.
    due: HashMap<Uid, ProbeTime>,
    /// The earliest time at which another rule object may be probed.
    next_free: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct ProbeTime {
    time: Instant,
    /// Whether the rule object must be reconciled at this time even if nothing changes.
    needs_run: bool,
}

impl ProbeSchedule {
    /// Reserves the next free time that is not before `from`.
    fn reserve_probe(&mut self, rule: &Uid, from: Instant) -> Instant {
        let time = self.next_free.map_or(from, |free| free.max(from));
        self.next_free = Some(time + PROBE_INTERVAL);
        let probe = ProbeTime {
            time,
            needs_run: true,
        };
        self.due.insert(rule.clone(), probe);
        time
    }

    /// How long until the rule object may be probed; zero if it may be probed now. `None` if the next probe waits for a
    /// change. A dropped ledger does not wait for a change, because no event may tell that it is stored again.
    fn time_until_probe(&mut self, rule: &Uid, is_dropped: bool, now: Instant) -> Option<Duration> {
        let (time, needs_run) = match self.due.get(rule) {
            Some(due) if due.needs_run || !is_dropped => (due.time, due.needs_run),
            _ => (self.reserve_probe(rule, now), true),
        };
        let pause = time.saturating_duration_since(now);
        (pause.is_zero() || needs_run).then_some(pause)
    }
}

impl StorageProbe {
    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, rule: &Uid) {
        self.0.lock().due.remove(rule);
    }

    /// Writes the ledger of a rule object by a dry run, if the ledger seems not to be stored. Returns the time until
    /// the next probe.
    pub async fn probe_ledger_storage(
        &self,
        context: &ControllerContext,
        key: &RuleKey,
    ) -> Option<Duration> {
        let store = context.ledgers.store();
        let snapshot = context.ledgers.latest_snapshot(key)?;
        let is_dropped = storage_finding(context, key) == Finding::Dropped;
        let is_limited = snapshot.rules.availability_limits().next().is_some();
        if snapshot.fault.is_some() || !is_limited {
            return None;
        }
        // No decision has written the ledger yet, or the ledger was dropped.
        let is_absent = snapshot.claims.watermark == 0 || snapshot.held < snapshot.version;
        if !is_dropped && !is_absent {
            self.forget_rule(&key.uid);
            return None;
        }
        let pause = self
            .0
            .lock()
            .time_until_probe(&key.uid, is_dropped, Instant::now())?;
        if !pause.is_zero() {
            return Some(pause);
        }
        let dry_run = store.dry_run_claims(key, &snapshot.claims);
        let is_kept = api_request::within(API_CALL_TIMEOUT, dry_run).await;
        let now = Instant::now();
        let mut schedule = self.0.lock();
        match is_kept {
            Ok(true) => {
                let probe = ProbeTime {
                    time: now + CHANGED_RETRY,
                    needs_run: false,
                };
                schedule.due.insert(key.uid.clone(), probe);
                drop(schedule);
                context.ledgers.restore_claims(key);
                return None;
            }
            Ok(false) => {}
            Err(failure) => {
                let error = failure.text();
                tracing::debug!(namespace = %key.namespace, rule = %key.name, error, "the dry run of a ledger failed");
            }
        }
        Some(
            schedule
                .reserve_probe(&key.uid, now + DROPPED_RETRY)
                .saturating_duration_since(now),
        )
    }
}

/// Whether the ledger of a rule object is stored: by the last write or probe of this process, otherwise by the
/// condition that another leader has written.
pub fn storage_finding(context: &ControllerContext, key: &RuleKey) -> Finding {
    let keeps = context.ledgers.store().is_ledger_kept(key);
    let state = context.index.read_state();
    let entry = state.rule(&key.namespace, &key.name);
    let status = entry.and_then(|entry| entry.object.status.as_ref());
    let conditions = status.map_or(&[][..], |status| &status.conditions);
    Finding::from_last_write(keeps, conditions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_objects_are_tried_one_after_another() {
        let (mut schedule, now) = (ProbeSchedule::default(), Instant::now());
        let rules = ["a", "b", "c"].map(Uid::from);
        let pauses = |schedule: &mut ProbeSchedule, now| {
            rules
                .each_ref()
                .map(|rule| schedule.time_until_probe(rule, false, now))
        };
        let first = [
            Some(Duration::ZERO),
            Some(PROBE_INTERVAL),
            Some(2 * PROBE_INTERVAL),
        ];
        assert_eq!(pauses(&mut schedule, now), first);
        assert_eq!(
            pauses(&mut schedule, now),
            first,
            "each rule object keeps its time"
        );
        let later = pauses(&mut schedule, now + PROBE_INTERVAL);
        assert_eq!(
            later,
            [
                Some(Duration::ZERO),
                Some(Duration::ZERO),
                Some(PROBE_INTERVAL)
            ]
        );
    }

    #[test]
    fn probed_rule_is_not_probed_again_without_change() {
        let (mut schedule, now, rule) = (ProbeSchedule::default(), Instant::now(), Uid::from("a"));
        let due = ProbeTime {
            time: now + CHANGED_RETRY,
            needs_run: false,
        };
        schedule.due.insert(rule.clone(), due);
        assert_eq!(schedule.time_until_probe(&rule, false, now), None);
        let later = now + CHANGED_RETRY;
        assert_eq!(
            schedule.time_until_probe(&rule, false, later),
            Some(Duration::ZERO)
        );
    }

    #[test]
    fn ledger_dropped_after_good_probe_is_probed_again() {
        let (mut schedule, now, rule) = (ProbeSchedule::default(), Instant::now(), Uid::from("a"));
        let due = ProbeTime {
            time: now + CHANGED_RETRY,
            needs_run: false,
        };
        schedule.due.insert(rule.clone(), due);
        assert_eq!(
            schedule.time_until_probe(&rule, true, now),
            Some(Duration::ZERO)
        );
        let next = schedule.reserve_probe(&rule, now + DROPPED_RETRY);
        assert_eq!(
            schedule.time_until_probe(&rule, true, now),
            Some(next - now)
        );
    }
}
