//! Releases claims: on what the Pod itself shows, or when the API server has surely given the request up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::{CALL_TIMEOUT, Context, turns};
use crate::cluster::index::State;
use crate::cluster::{failure, pods};
use crate::domain::inplace;
use crate::domain::pod::Pod;
use crate::ledger::commit::Evidence;
use crate::ledger::evidence::{MARGIN, Sighting, evidence, is_conditional, lapsed};
use crate::ledger::protocol::{Claim, Operation};
use crate::ledger::store::{Detail, RuleKey, Store as _, Uid};

/// Claims of Pods that are seen unavailable are released together, this often. Such a claim takes nothing from the
/// budget any more, and each release is a write that every replica's watch receives.
const TOGETHER: Duration = Duration::from_millis(500);

/// A claim that was to be released is looked at again after this long: the write may have failed, and nobody is told.
const AGAIN: Duration = Duration::from_secs(1);

/// When this process first saw each claim and its last attempt, by its own monotonic clock: clocks of different machines
/// are never compared. A new leader starts anew, which only makes a claim live longer.
#[derive(Default)]
pub struct Deadlines {
    seen: Mutex<HashMap<Claimed, Seen>>,
    /// When claims of a rule object were last released.
    released: Mutex<HashMap<Uid, Instant>>,
}

/// Rule object, Pod and operation of a claim.
type Claimed = (Uid, Uid, Operation);

/// A claim as this process knows it.
#[derive(Clone, Copy)]
struct Seen {
    opened: u64,
    /// When the claim was first seen, whatever its attempts since.
    first: Instant,
    attempt: u64,
    /// When this attempt was first seen.
    last: Instant,
}

impl Seen {
    /// A claim that is seen at `now`, of which `known` was known before. One that was released and given again is another
    /// claim.
    fn of(claim: &Claim<Detail>, known: Option<Seen>, now: Instant) -> Seen {
        let known = known.filter(|known| known.opened == claim.opened);
        let same = known.filter(|known| known.attempt == claim.attempt);
        Seen {
            opened: claim.opened,
            first: known.map_or(now, |known| known.first),
            attempt: claim.attempt,
            last: same.map_or(now, |known| known.last),
        }
    }

    /// How long until the claim is to be marked as closing; `None` if it needs no mark. A claim that nobody has written
    /// again lapses by itself, so the mark and its write are for those that are renewed.
    fn closes_in(
        &self,
        claim: &Claim<Detail>,
        timeout: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let renewed = claim.attempt != claim.opened && !claim.closing;
        renewed.then(|| timeout.saturating_sub(now - self.first))
    }

    /// How long until every request that the claim has admitted has surely ended.
    fn ends_in(&self, timeout: Duration, now: Instant) -> Duration {
        (timeout + MARGIN).saturating_sub(now - self.last)
    }
}

impl Deadlines {
    /// What is known of a claim, which is seen at `now`.
    fn see(
        &self,
        rule: &Uid,
        pod: &Uid,
        operation: Operation,
        claim: &Claim<Detail>,
        now: Instant,
    ) -> Seen {
        let mut seen = self.seen.lock();
        let key = (rule.clone(), pod.clone(), operation);
        let current = Seen::of(claim, seen.get(&key).copied(), now);
        seen.insert(key, current);
        current
    }

    /// Forgets claims of a rule object that are not in `current`.
    fn keep(&self, rule: &Uid, current: impl Fn(&Uid, Operation) -> bool) {
        self.seen
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
    }

    /// Forgets a rule object.
    pub fn forget(&self, rule: &Uid) {
        self.keep(rule, |_, _| false);
        self.released.lock().remove(rule);
    }

    /// How long releases that are not urgent are still to wait; zero begins a new round.
    fn pause(&self, rule: &Uid, urgent: bool) -> Duration {
        let mut released = self.released.lock();
        let last = released.get(rule).map(Instant::elapsed);
        let left = last.map_or(Duration::ZERO, |age| TOGETHER.saturating_sub(age));
        if urgent || left.is_zero() {
            released.insert(rule.clone(), Instant::now());
            return Duration::ZERO;
        }
        left
    }
}

/// Releases what can be released; how long until the claims are to be looked at again, if there were any.
pub async fn release(
    context: &Arc<Context>,
    deadlines: &Deadlines,
    key: &RuleKey,
) -> Option<Duration> {
    let snapshot = context.ledgers.latest(key)?;
    if snapshot.fault.is_some() {
        return None; // nothing is written to such a ledger
    }
    let claims = &snapshot.claims.claims;
    deadlines.keep(&key.uid, |pod, operation| {
        claims.contains_key(&(pod.clone(), operation))
    });
    let mut next = Vec::new();
    let mut proven = Vec::new();
    let mut urgent = false;
    for ((pod, operation), claim) in claims {
        let (sighting, position, is_known) = {
            let state = context.index.read();
            let sighting = sight(&state, key, pod, *operation, claim);
            let is_known = state.pod(&key.namespace, pod).is_some();
            (sighting, state.position, is_known)
        };
        let sighting = match sighting {
            Some(gone @ Sighting::Gone { .. }) if !is_conditional(*operation) => {
                confirm(context, key, pod, *operation, claim, gone).await
            }
            sighting => sighting,
        };
        let based_on = sighting.and_then(|s| evidence(*operation, claim.at, s));
        if let Some(based_on) = based_on {
            // The claim of an available Pod is all that keeps its place taken.
            urgent |= matches!(
                sighting,
                Some(Sighting::Seen {
                    available: true,
                    ..
                })
            );
            proven.push((pod, *operation, claim, based_on, position));
            continue;
        }
        let now = Instant::now();
        let seen = deadlines.see(&key.uid, pod, *operation, claim, now);
        match seen.closes_in(claim, context.request_timeout, now) {
            // What a newer build has stored is written back as it was.
            Some(Duration::ZERO) if *operation == Operation::Unknown => {}
            Some(Duration::ZERO) => {
                info!(rule = %key.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim that is renewed without effect is closing");
                let (pod, opened) = (pod.clone(), claim.opened);
                context.ledgers.close(key, pod, *operation, opened);
                next.push(AGAIN);
            }
            pause => next.extend(pause),
        }
        if *operation == Operation::Begin {
            next.push(turns::LOST.unsigned_abs()); // its Pod may have to be asked for again
        }
        let end = seen.ends_in(context.request_timeout, now);
        let unknown_for = (!is_known).then(|| now - seen.first);
        if let Some(version) = is_gone(context, key, pod, claim, unknown_for).await {
            let evidence = evidence_of(pod, *operation, claim, version, position);
            context.ledgers.release(key, evidence);
            next.push(AGAIN);
        } else if !end.is_zero() {
            next.push(if is_known { end } else { end.min(MARGIN) });
        } else if let Some(version) = has_lapsed(context, key, pod, *operation, claim).await {
            info!(rule = %key.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim has lapsed");
            let mut evidence = evidence_of(pod, *operation, claim, version, position);
            evidence.lapsed = true;
            context.ledgers.release(key, evidence);
            next.push(AGAIN);
        } else {
            next.push(MARGIN);
        }
    }
    if !proven.is_empty() {
        let pause = deadlines.pause(&key.uid, urgent);
        if pause.is_zero() {
            for (pod, operation, claim, based_on, position) in proven {
                let evidence = evidence_of(pod, operation, claim, based_on, position);
                context.ledgers.release(key, evidence);
            }
            next.push(AGAIN);
        } else {
            next.push(pause);
        }
    }
    next.into_iter().min()
}

fn evidence_of(
    pod: &Uid,
    operation: Operation,
    claim: &Claim<Detail>,
    based_on: u64,
    position: u64,
) -> Evidence {
    Evidence {
        pod: pod.clone(),
        operation,
        attempt: claim.attempt,
        based_on,
        position,
        lapsed: false,
    }
}

/// The Pod of a claim as the cache has it; `None` while the cache is older than the claim, or the Pod can't be read.
fn sight(
    state: &State,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
    claim: &Claim<Detail>,
) -> Option<Sighting> {
    match state.pod(&key.namespace, pod) {
        Some(seen) => seen.is_readable().then(|| sighting(seen, operation, claim)),
        None => (state.last_event > claim.at).then_some(Sighting::Gone {
            version: state.last_event,
        }),
    }
}

fn sighting(pod: &Pod, operation: Operation, claim: &Claim<Detail>) -> Sighting {
    Sighting::Seen {
        version: pod.metadata.resource_version,
        terminating: pod.is_terminating() || pod.is_finished(),
        available: pod.is_available(),
        applied: is_applied(pod, operation, &claim.detail),
        restart: inplace::restart(pod, &claim.detail.containers),
    }
}

/// Whether the Pod carries what its claim was given for.
fn is_applied(pod: &Pod, operation: Operation, detail: &Detail) -> bool {
    let Some(target) = detail.target.as_deref() else {
        return false;
    };
    match operation {
        // A change that has taken the place of a resize need not be written: the resize may come all the same.
        Operation::InPlace => {
            let stacked = detail.containers.iter().any(|c| c.by_resources);
            stacked || inplace::is_applied(pod, target)
        }
        // A target that can't be read may be any deadline.
        Operation::Deadline => {
            let latest = target.parse().unwrap_or(i64::MAX);
            let deadline = pod.spec.active_deadline_seconds;
            deadline.is_some_and(|seconds| seconds <= latest)
        }
        // Without a controller the target is another owner: the garbage collector looks at all of them.
        Operation::Reown => {
            let mut owners = pod.metadata.owner_references.iter();
            owners.any(|owner| target.split(' ').any(|uid| owner.uid == uid))
        }
        _ => false,
    }
}

/// A Pod that the cache has lost, looked up: it may only have left the management, and come back while an eviction or a
/// restart is still on its way. `None` if it can't be read now.
async fn confirm(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
    claim: &Claim<Detail>,
    gone: Sighting,
) -> Option<Sighting> {
    let live = read(context, key, pod, claim).await?;
    Some(live.map_or(gone, |live| sighting(&live, operation, claim)))
}

/// Whether the Pod of a claim, which the cache has not known for so long, does not exist: the present position of the Pods. A
/// Pod that is gone never comes back. The cache says so by itself once it has seen an event later than the claim; none comes
/// for a Pod that never was, and a version that no Pod has reached yet.
async fn is_gone(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    claim: &Claim<Detail>,
    unknown_for: Option<Duration>,
) -> Option<u64> {
    unknown_for.filter(|unknown| *unknown >= MARGIN)?;
    let live = read(context, key, pod, claim).await?;
    if live.is_some() {
        return None;
    }
    // After the read: its end is before this position, and every cache that has reached this one has seen it.
    let present = context.ledgers.store().present(&key.namespace);
    let present = tokio::time::timeout(CALL_TIMEOUT, present).await;
    let present = present.ok()?.ok()?;
    info!(rule = %key.name, pod = %claim.detail.pod_name, "the Pod of a claim does not exist");
    Some(present)
}

/// Whether a live read shows that nothing came of the claim, and the version read.
async fn has_lapsed(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
    claim: &Claim<Detail>,
) -> Option<u64> {
    let live = read(context, key, pod, claim).await??; // gone: the cache will say so
    let nothing_comes = lapsed(operation, sighting(&live, operation, claim))
        || (operation == Operation::Reown && has_controller(context, &live));
    nothing_comes.then_some(live.metadata.resource_version)
}

/// Whether the Pod's controller is known to exist: the garbage collector then leaves the Pod alone.
fn has_controller(context: &Context, pod: &Pod) -> bool {
    let state = context.index.read();
    let namespace = state.namespace(&pod.metadata.namespace);
    let owner = pod.controller();
    namespace
        .zip(owner)
        .is_some_and(|(namespace, owner)| namespace.has_owner(owner))
}

/// The Pod of a claim as etcd has it, `Some(None)` when it is gone; `None` if it can't be read now.
async fn read(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    claim: &Claim<Detail>,
) -> Option<Option<Pod>> {
    let name = &claim.detail.pod_name;
    match tokio::time::timeout(
        CALL_TIMEOUT,
        pods::get(&context.client, &key.namespace, name),
    )
    .await
    {
        Ok(Ok(live)) => Some(live.filter(|live| *live.metadata.uid == **pod)),
        Ok(Err(e)) => {
            warn!(pod = %name, error = failure::text(&e), "the Pod of a claim could not be read");
            None
        }
        Err(_) => {
            warn!(pod = %name, "the Pod of a claim could not be read in time");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn claim(opened: u64, attempt: u64) -> Claim<Detail> {
        Claim {
            at: 1,
            attempt,
            opened,
            closing: false,
            detail: Detail {
                pod_name: "web-1".into(),
                since: Timestamp::UNIX_EPOCH,
                until: Timestamp::UNIX_EPOCH,
                target: None,
                containers: Vec::new(),
                carried: None,
            },
        }
    }

    #[test]
    fn renewal_moves_the_end_of_a_claim_but_not_its_closing() {
        let (begin, seconds) = (Instant::now(), Duration::from_secs);
        let first = Seen::of(&claim(3, 3), None, begin);
        assert_eq!(first.closes_in(&claim(3, 3), TIMEOUT, begin), None);
        assert_eq!(first.ends_in(TIMEOUT, begin), TIMEOUT + MARGIN);
        let now = begin + seconds(50);
        let again = Seen::of(&claim(3, 4), Some(first), now);
        assert_eq!(
            again.closes_in(&claim(3, 4), TIMEOUT, now),
            Some(seconds(10))
        );
        assert_eq!(again.ends_in(TIMEOUT, now), TIMEOUT + MARGIN);
        let now = begin + seconds(61);
        let again = Seen::of(&claim(3, 4), Some(again), now);
        let due = again.closes_in(&claim(3, 4), TIMEOUT, now);
        assert_eq!(due, Some(Duration::ZERO));
        assert_eq!(again.ends_in(TIMEOUT, now), seconds(64));
        let closing = Claim {
            closing: true,
            ..claim(3, 4)
        };
        assert_eq!(again.closes_in(&closing, TIMEOUT, now), None);
    }

    #[test]
    fn claim_given_anew_has_clocks_of_its_own() {
        let begin = Instant::now();
        let old = Seen::of(&claim(3, 4), None, begin);
        let now = begin + TIMEOUT;
        let new = Seen::of(&claim(5, 6), Some(old), now);
        assert_eq!(new.closes_in(&claim(5, 6), TIMEOUT, now), Some(TIMEOUT));
    }
}
