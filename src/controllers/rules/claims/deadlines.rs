//! Measures, by the clock of this process, how long claims and the evidence about them have existed.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::ledger::evidence::LAPSE_MARGIN;
use crate::ledger::protocol::{Claim, ClaimOperation};
use crate::ledger::store::{ClaimDetail, Uid};

/// How long the release of the claim of an unavailable Pod may wait for a new claim of the same rule, so that one write
/// stores both. The claim of an unavailable Pod takes nothing from the budget, and each write is sent to the watches of
/// all replicas.
pub const RELEASE_COALESCING: Duration = Duration::from_millis(500);

/// When this process first saw each claim and its last attempt, by its own monotonic clock, so that clocks of different
/// machines are never compared. A new leader starts again, and therefore a claim may live longer.
#[derive(Default)]
pub struct ClaimDeadlines {
    claim_times: Mutex<HashMap<ClaimKey, ClaimTimes>>,
    /// Claims with evidence for their release: the attempt, and the time since which the evidence exists.
    proven: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
    /// The last live read for a claim whose Pod is not cached in full: the resourceVersion in the cache, and the time
    /// of the read.
    last_reads: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
}

/// Key of a claim: UID of the rule object, UID of the Pod, operation.
pub type ClaimKey = (Uid, Uid, ClaimOperation);

/// The times of a claim, as this process observed them.
#[derive(Clone, Copy)]
pub struct ClaimTimes {
    opened: u64,
    /// When the claim was first seen. Later attempts do not change this time.
    pub first_seen: Instant,
    attempt: u64,
    /// When this attempt was first seen.
    attempt_seen: Instant,
}

impl ClaimTimes {
    /// The times of a claim that is seen at `now`; `known` are the times recorded before. A claim that was released and
    /// taken again is a new claim.
    fn from_claim(
        claim: &Claim<ClaimDetail>,
        known: Option<ClaimTimes>,
        now: Instant,
    ) -> ClaimTimes {
        let known = known.filter(|known| known.opened == claim.opened);
        let same_attempt = known.filter(|known| known.attempt == claim.attempt);
        ClaimTimes {
            opened: claim.opened,
            first_seen: known.map_or(now, |known| known.first_seen),
            attempt: claim.attempt,
            attempt_seen: same_attempt.map_or(now, |known| known.attempt_seen),
        }
    }

    /// How long until the claim must become a closing claim; `None` if this is not necessary. A claim that nobody has
    /// renewed lapses by itself, so the write is needed only for renewed claims.
    pub fn closes_in(
        &self,
        claim: &Claim<ClaimDetail>,
        timeout: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let is_renewed = claim.attempt != claim.opened && !claim.closing;
        is_renewed.then(|| timeout.saturating_sub(now - self.first_seen))
    }

    /// How long until every request that the claim admitted has certainly ended.
    pub fn ends_in(&self, timeout: Duration, now: Instant) -> Duration {
        (timeout + LAPSE_MARGIN).saturating_sub(now - self.attempt_seen)
    }
}

impl ClaimDeadlines {
    /// Records that a claim is seen at `now`. Returns its times.
    pub fn observe_claim(
        &self,
        key: ClaimKey,
        claim: &Claim<ClaimDetail>,
        now: Instant,
    ) -> ClaimTimes {
        let mut all = self.claim_times.lock();
        let times = ClaimTimes::from_claim(claim, all.get(&key).copied(), now);
        all.insert(key, times);
        times
    }

    /// Whether the Pod of a claim must be read live. `version` is the resourceVersion of the Pod in the cache. The Pod
    /// is read once for each version, and again after [`LAPSE_MARGIN`], because a read may fail.
    pub fn is_read_due(&self, key: ClaimKey, version: u64, now: Instant) -> bool {
        let mut last_reads = self.last_reads.lock();
        let is_due = last_reads
            .get(&key)
            .is_none_or(|(last, time)| *last < version || now - *time >= LAPSE_MARGIN);
        if is_due {
            last_reads.insert(key, (version, now));
        }
        is_due
    }

    /// Forgets the claims of a rule object that are not in `current`.
    pub fn retain_claims(&self, rule: &Uid, current: impl Fn(&Uid, ClaimOperation) -> bool) {
        self.last_reads
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.proven
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.claim_times
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
    }

    pub fn forget_rule(&self, rule: &Uid) {
        self.retain_claims(rule, |_, _| false);
    }

    /// How long a claim with evidence for its release may still wait for another write that includes the release.
    pub fn coalescing_time(&self, key: ClaimKey, attempt: u64, now: Instant) -> Duration {
        let mut proven = self.proven.lock();
        let known = proven
            .get(&key)
            .filter(|(known_attempt, _)| *known_attempt == attempt);
        let since = known.map_or(now, |(_, since)| *since);
        proven.insert(key, (attempt, since));
        RELEASE_COALESCING.saturating_sub(now - since)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::claim;
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[test]
    fn claim_renewal_moves_end_but_not_closing() {
        let (begin, seconds) = (Instant::now(), Duration::from_secs);
        let first = ClaimTimes::from_claim(&claim(3, 3), None, begin);
        assert_eq!(first.closes_in(&claim(3, 3), TIMEOUT, begin), None);
        assert_eq!(first.ends_in(TIMEOUT, begin), TIMEOUT + LAPSE_MARGIN);
        let now = begin + seconds(50);
        let renewed = ClaimTimes::from_claim(&claim(3, 4), Some(first), now);
        assert_eq!(
            renewed.closes_in(&claim(3, 4), TIMEOUT, now),
            Some(seconds(10))
        );
        assert_eq!(renewed.ends_in(TIMEOUT, now), TIMEOUT + LAPSE_MARGIN);
        let now = begin + seconds(61);
        let renewed = ClaimTimes::from_claim(&claim(3, 4), Some(renewed), now);
        let due = renewed.closes_in(&claim(3, 4), TIMEOUT, now);
        assert_eq!(due, Some(Duration::ZERO));
        assert_eq!(renewed.ends_in(TIMEOUT, now), seconds(64));
        let closing = Claim {
            closing: true,
            ..claim(3, 4)
        };
        assert_eq!(renewed.closes_in(&closing, TIMEOUT, now), None);
    }

    #[test]
    fn reissued_claim_has_new_deadlines() {
        let begin = Instant::now();
        let old = ClaimTimes::from_claim(&claim(3, 4), None, begin);
        let now = begin + TIMEOUT;
        let new = ClaimTimes::from_claim(&claim(5, 6), Some(old), now);
        assert_eq!(new.closes_in(&claim(5, 6), TIMEOUT, now), Some(TIMEOUT));
    }

    #[test]
    fn pod_is_read_once_for_each_version() {
        let (deadlines, now) = (ClaimDeadlines::default(), Instant::now());
        let key: ClaimKey = ("rule".into(), "web-1".into(), ClaimOperation::InPlace);
        let reads = |version, now| deadlines.is_read_due(key.clone(), version, now);
        assert!(reads(6, now) && !reads(6, now) && reads(7, now));
        assert!(reads(7, now + LAPSE_MARGIN) && !reads(7, now + LAPSE_MARGIN));
        deadlines.forget_rule(&"rule".into());
        assert!(reads(7, now + LAPSE_MARGIN));
    }
}
