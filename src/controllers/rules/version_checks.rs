//! Ledgers that name a version which no Pod has reached yet: forged ones, and those of another cluster. Nobody could ever
//! catch up with such a version, nor see a Pod that is newer.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::super::Context;
use super::super::api_calls::API_CALL_TIMEOUT;
use crate::ledger::store::{LedgerStore, RuleKey, Uid};

/// The cache may trail a ledger for this long before the API server is asked: less than a review waits before it asks, so
/// that the leader knows of every ledger that is set right.
const FIRST_CHECK_DELAY: Duration = Duration::from_millis(200);
/// It is asked again after this long.
const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// What is known of the ledgers, by UID of the rule object.
#[derive(Debug, Default)]
pub struct VersionChecks(Mutex<HashMap<Uid, VersionCheck>>);

#[derive(Debug, Default)]
struct VersionCheck {
    /// When to ask the API server, if the ledger names a version that the cache has not reached.
    due: Option<Instant>,
    /// How the ledger was set right.
    mended: Option<String>,
}

impl VersionChecks {
    /// The object is gone.
    pub fn forget_rule(&self, rule: &Uid) {
        self.0.lock().remove(rule);
    }

    /// How the ledger of the rule object was set right, if this process has done so: a clause.
    pub fn ledger_repair(&self, rule: &Uid) -> Option<String> {
        self.0.lock().get(rule)?.mended.clone()
    }

    /// Looks at the versions that the ledger names, and has it set right if one of them lies above what etcd has. Returns
    /// when to look again, if the cache has yet to reach them.
    pub async fn check_ledger_versions(
        &self,
        context: &Context,
        key: &RuleKey,
    ) -> Option<Duration> {
        let snapshot = context.ledgers.latest_snapshot(key)?;
        if snapshot.fault.is_some() {
            return None; // nobody may write it
        }
        let newest = snapshot.claims.newest_version();
        let position = context.index.read_state().position;
        let left = self.time_until_check(&key.uid, newest, position, Instant::now())?;
        if !left.is_zero() {
            return Some(left);
        }
        // After the ledger was read: whatever it rests on has happened by then.
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
            warn!(namespace = %key.namespace, rule = %key.name, newest, present, "a ledger names a version that no Pod has reached yet");
            self.record_repair(&key.uid, newest, present);
            context.ledgers.repair_versions(key);
        }
        Some(RECHECK_DELAY)
    }

    /// How long until the API server is to be asked where `newest` is; `None` if the cache has reached it.
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
        let doubt = all.entry(rule.clone()).or_default();
        let due = *doubt.due.get_or_insert(now + FIRST_CHECK_DELAY);
        let left = due.saturating_duration_since(now);
        if left.is_zero() {
            doubt.due = Some(now + RECHECK_DELAY);
        }
        Some(left)
    }

    fn record_repair(&self, rule: &Uid, newest: u64, present: u64) {
        let note = format!(
            "it named resourceVersion {newest}, and the Pods of the cluster were at {present}, which it names now"
        );
        self.0.lock().entry(rule.clone()).or_default().mended = Some(note);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_version_that_stays_ahead_is_asked_about() {
        let (doubts, rule, now) = (VersionChecks::default(), Uid::from("rule"), Instant::now());
        assert_eq!(doubts.time_until_check(&rule, 7, 7, now), None);
        assert_eq!(
            doubts.time_until_check(&rule, 8, 7, now),
            Some(FIRST_CHECK_DELAY)
        );
        let later = now + FIRST_CHECK_DELAY;
        assert_eq!(
            doubts.time_until_check(&rule, 8, 7, later),
            Some(Duration::ZERO)
        );
        assert_eq!(
            doubts.time_until_check(&rule, 8, 7, later),
            Some(RECHECK_DELAY)
        );
        assert_eq!(doubts.time_until_check(&rule, 8, 8, later), None);
        assert_eq!(
            doubts.time_until_check(&rule, 9, 8, later),
            Some(FIRST_CHECK_DELAY)
        );
        assert_eq!(doubts.ledger_repair(&rule), None);
        doubts.record_repair(&rule, 9, 8);
        assert!(doubts.ledger_repair(&rule).is_some());
        doubts.forget_rule(&rule);
        assert_eq!(doubts.ledger_repair(&rule), None);
    }
}
