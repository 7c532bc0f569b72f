//! Repairs ledgers with a resourceVersion that no Pod has reached yet, such as forged ledgers and those of another
//! cluster. No cache could ever reach such a version or see a newer Pod.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::super::ControllerContext;
use super::super::api_calls::API_CALL_TIMEOUT;
use crate::ledger::store::{LedgerStore, RuleKey, Uid};

/// How long the cache may be behind a ledger before the API server is asked. A review waits longer before it asks, so
/// the leader knows of every ledger that is repaired.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(200);
/// The API server is asked again after this time.
const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// The checks of the ledgers, by UID of the rule object.
#[derive(Debug, Default)]
pub struct VersionChecks(Mutex<HashMap<Uid, VersionCheck>>);

#[derive(Debug, Default)]
struct VersionCheck {
    /// When to ask the API server, if the ledger has a version that the cache has not reached.
    due: Option<Instant>,
    /// How the ledger was repaired.
    repair: Option<String>,
}

impl VersionChecks {
    /// Forgets a rule object that is gone.
    pub fn forget_rule(&self, rule: &Uid) {
        self.0.lock().remove(rule);
    }

    /// How the ledger of the rule object was repaired, as a clause of a sentence; `None` if this process has not
    /// repaired it.
    pub fn ledger_repair(&self, rule: &Uid) -> Option<String> {
        self.0.lock().get(rule)?.repair.clone()
    }

    /// Checks the versions in the ledger, and repairs the ledger if a version is larger than the present position in
    /// etcd. Returns the time until the next check, if the cache has not reached the versions.
    pub async fn check_ledger_versions(
        &self,
        context: &ControllerContext,
        key: &RuleKey,
    ) -> Option<Duration> {
        let snapshot = context.ledgers.latest_snapshot(key)?;
        if snapshot.fault.is_some() {
            return None; // no process may write such a ledger
        }
        let newest = snapshot.claims.newest_version();
        let position = context.index.read_state().position;
        let pause = self.time_until_check(&key.uid, newest, position, Instant::now())?;
        if !pause.is_zero() {
            return Some(pause);
        }
        // The position is read after the ledger, so that it is at least as large as every version that a valid ledger
        // has.
        let store = context.ledgers.store();
        let present = tokio::time::timeout(
            API_CALL_TIMEOUT,
            store.read_present_position(&key.namespace),
        )
        .await;
        let Ok(Ok(present)) = present else {
            return Some(RECHECK_DELAY);
        };
        if newest > present {
            warn!(namespace = %key.namespace, rule = %key.name, newest, present, "a ledger names a version that no Pod has reached yet; the ledger is corrected to the present version");
            self.record_repair(&key.uid, newest, present);
            context.ledgers.repair_versions(key);
        }
        Some(RECHECK_DELAY)
    }

    /// How long until the API server is asked about `newest`; `None` if the cache has reached this version.
    fn time_until_check(
        &self,
        rule: &Uid,
        newest: u64,
        position: u64,
        now: Instant,
    ) -> Option<Duration> {
        let mut all = self.0.lock();
        if newest <= position {
            all.get_mut(rule)?.due = None;
            return None;
        }
        let check = all.entry(rule.clone()).or_default();
        let due = *check.due.get_or_insert(now + FIRST_CHECK_DELAY);
        let pause = due.saturating_duration_since(now);
        if pause.is_zero() {
            check.due = Some(now + RECHECK_DELAY);
        }
        Some(pause)
    }

    fn record_repair(&self, rule: &Uid, newest: u64, present: u64) {
        let repair = format!(
            "it named resourceVersion {newest}, which no Pod of the cluster had reached; it names {present} now"
        );
        self.0.lock().entry(rule.clone()).or_default().repair = Some(repair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_that_stays_ahead_is_asked_about() {
        let (checks, rule, now) = (VersionChecks::default(), Uid::from("rule"), Instant::now());
        assert_eq!(checks.time_until_check(&rule, 7, 7, now), None);
        assert_eq!(
            checks.time_until_check(&rule, 8, 7, now),
            Some(FIRST_CHECK_DELAY)
        );
        let later = now + FIRST_CHECK_DELAY;
        assert_eq!(
            checks.time_until_check(&rule, 8, 7, later),
            Some(Duration::ZERO)
        );
        assert_eq!(
            checks.time_until_check(&rule, 8, 7, later),
            Some(RECHECK_DELAY)
        );
        assert_eq!(checks.time_until_check(&rule, 8, 8, later), None);
        assert_eq!(
            checks.time_until_check(&rule, 9, 8, later),
            Some(FIRST_CHECK_DELAY)
        );
        assert_eq!(checks.ledger_repair(&rule), None);
        checks.record_repair(&rule, 9, 8);
        assert!(checks.ledger_repair(&rule).is_some());
        checks.forget_rule(&rule);
        assert_eq!(checks.ledger_repair(&rule), None);
    }
}
