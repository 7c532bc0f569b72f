//! Releases claims: on evidence in the state of the Pod, or when the API server can no longer carry out the request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::api_calls::API_CALL_TIMEOUT;
use super::super::{ControllerContext, wait_queue};
use crate::api_request;
use crate::cluster::index::IndexState;
use crate::cluster::pod_requests;
use crate::domain::inplace;
use crate::domain::ownership::uid_token;
use crate::domain::pod::Pod;
use crate::ledger::commit::Evidence;
use crate::ledger::evidence::{
    ClaimedPodState, LAPSE_MARGIN, is_claim_lapsed, is_conditional, release_evidence,
};
use crate::ledger::protocol::{Claim, ClaimOperation};
use crate::ledger::store::{ClaimDetail, LedgerStore as _, RuleKey, Uid};

/// How long the release of the claim of an unavailable Pod may wait for a new claim of the same rule, so that one write
/// stores both. The claim of an unavailable Pod takes nothing from the budget, and each write is sent to the watches of
/// all replicas.
const RELEASE_COALESCING: Duration = Duration::from_millis(500);

/// After a release was queued, the claim is checked again after this time. The write may have failed, and no event
/// reports that.
const RELEASE_RECHECK: Duration = Duration::from_secs(1);

/// When this process first saw each claim and its last attempt, by its own monotonic clock, so that clocks of different
/// machines are never compared. A new leader starts again, and therefore a claim may live longer.
#[derive(Default)]
pub struct ClaimDeadlines {
    claim_times: Mutex<HashMap<ClaimKey, ClaimTimes>>,
    /// Claims with evidence for their release: the attempt, and the time since which the evidence exists.
    proven: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
    /// The last live read for a claim whose Pod is not cached in full: the resourceVersion in the cache, and the time
    /// of the read.
    read: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
}

/// Key of a claim: UID of the rule object, UID of the Pod, operation.
type ClaimKey = (Uid, Uid, ClaimOperation);

/// The times of a claim, as this process observed them.
#[derive(Clone, Copy)]
struct ClaimTimes {
    opened: u64,
    /// When the claim was first seen, whatever attempts followed.
    first: Instant,
    attempt: u64,
    /// When this attempt was first seen.
    last: Instant,
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
        let same = known.filter(|known| known.attempt == claim.attempt);
        ClaimTimes {
            opened: claim.opened,
            first: known.map_or(now, |known| known.first),
            attempt: claim.attempt,
            last: same.map_or(now, |known| known.last),
        }
    }

    /// How long until the claim must become a closing claim; `None` if this is not necessary. A claim that nobody has
    /// renewed lapses by itself, so the write is needed only for renewed claims.
    fn closes_in(
        &self,
        claim: &Claim<ClaimDetail>,
        timeout: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let renewed = claim.attempt != claim.opened && !claim.closing;
        renewed.then(|| timeout.saturating_sub(now - self.first))
    }

    /// How long until every request that the claim admitted has certainly ended.
    fn ends_in(&self, timeout: Duration, now: Instant) -> Duration {
        (timeout + LAPSE_MARGIN).saturating_sub(now - self.last)
    }
}

impl ClaimDeadlines {
    /// Records that a claim is seen at `now`. Returns its times.
    fn observe_claim(
        &self,
        rule: &Uid,
        pod: &Uid,
        operation: ClaimOperation,
        claim: &Claim<ClaimDetail>,
        now: Instant,
    ) -> ClaimTimes {
        let mut seen = self.claim_times.lock();
        let key = (rule.clone(), pod.clone(), operation);
        let current = ClaimTimes::from_claim(claim, seen.get(&key).copied(), now);
        seen.insert(key, current);
        current
    }

    /// Whether the Pod of a claim must be read live. `version` is the resourceVersion of the Pod in the cache. The Pod
    /// is read once for each version, and again after [`LAPSE_MARGIN`], because a read may fail.
    fn is_read_due(&self, claimed: ClaimKey, version: u64, now: Instant) -> bool {
        let mut read = self.read.lock();
        let known = read.get(&claimed);
        let is_due = known.is_none_or(|(last, at)| *last < version || now - *at >= LAPSE_MARGIN);
        if is_due {
            read.insert(claimed, (version, now));
        }
        is_due
    }

    /// Forgets the claims of a rule object that are not in `current`.
    fn retain_claims(&self, rule: &Uid, current: impl Fn(&Uid, ClaimOperation) -> bool) {
        self.read
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.proven
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.claim_times
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
    }

    /// Forgets a rule object.
    pub fn forget_rule(&self, rule: &Uid) {
        self.retain_claims(rule, |_, _| false);
    }

    /// How long a claim with evidence for its release may still wait for another write that includes the release.
    fn coalescing_time_left(&self, claimed: ClaimKey, attempt: u64, now: Instant) -> Duration {
        let mut proven = self.proven.lock();
        let known = proven.get(&claimed).filter(|(of, _)| *of == attempt);
        let since = known.map_or(now, |(_, since)| *since);
        proven.insert(claimed, (attempt, since));
        RELEASE_COALESCING.saturating_sub(now - since)
    }
}

/// Releases the claims of a rule object that can be released. Returns the time until the next check, if there are
/// claims.
pub async fn release_ledger_claims(
    context: &Arc<ControllerContext>,
    deadlines: &ClaimDeadlines,
    key: &RuleKey,
) -> Option<Duration> {
    let snapshot = context.ledgers.latest_snapshot(key)?;
    if snapshot.fault.is_some() {
        return None; // such a ledger is never written
    }
    if let Some(pause) = context.ledgers.store().retry_delay(key) {
        return (!snapshot.claims.claims.is_empty()).then_some(pause);
    }
    let claims = &snapshot.claims.claims;
    deadlines.retain_claims(&key.uid, |pod, operation| {
        claims.contains_key(&(pod.clone(), operation))
    });
    let mut next = Vec::new();
    let mut proven = Vec::new();
    let mut wait = RELEASE_COALESCING;
    for ((pod, operation), claim) in claims {
        let claimed = (pod, *operation);
        let ClaimPodObservation {
            sighting,
            position,
            is_known,
        } = observe_claim_pod(context, deadlines, key, claimed, claim).await;
        let based_on = sighting.and_then(|s| release_evidence(*operation, claim.at, s));
        if let Some(based_on) = based_on {
            let claimed = (key.uid.clone(), pod.clone(), *operation);
            wait = wait.min(match sighting {
                // While a Pod is available, only its claim uses up the budget. Therefore this claim is released at
                // once.
                Some(ClaimedPodState::Seen {
                    available: true, ..
                }) => Duration::ZERO,
                _ => deadlines.coalescing_time_left(claimed, claim.attempt, Instant::now()),
            });
            proven.push(new_evidence(pod, *operation, claim, based_on, position));
            continue;
        }
        let now = Instant::now();
        let seen = deadlines.observe_claim(&key.uid, pod, *operation, claim, now);
        match seen.closes_in(claim, context.request_timeout, now) {
            // This build does not know the operation; the claim stays as a newer build has stored it.
            Some(Duration::ZERO) if *operation == ClaimOperation::Unknown => {}
            Some(Duration::ZERO) => {
                info!(rule = %key.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim that is renewed without effect is closing");
                let (pod, opened) = (pod.clone(), claim.opened);
                context.ledgers.close_claim(key, pod, *operation, opened);
                next.push(RELEASE_RECHECK);
            }
            pause => next.extend(pause),
        }
        if *operation == ClaimOperation::Begin {
            next.push(wait_queue::CLAIM_LOST_AFTER.unsigned_abs()); // the wait queue may have to ask for its Pod again
        }
        let end = seen.ends_in(context.request_timeout, now);
        let unknown_for = (!is_known).then(|| now - seen.first);
        if let Some(version) = confirmed_gone_at(context, key, pod, claim, unknown_for).await {
            let evidence = new_evidence(pod, *operation, claim, version, position);
            context.ledgers.release_claim(key, evidence);
            next.push(RELEASE_RECHECK);
        } else if !end.is_zero() {
            next.push(if is_known { end } else { end.min(LAPSE_MARGIN) });
        } else if let Some(version) =
            confirmed_lapsed_at(context, key, pod, *operation, claim).await
        {
            info!(rule = %key.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim has lapsed");
            let mut evidence = new_evidence(pod, *operation, claim, version, position);
            evidence.lapsed = true;
            context.ledgers.release_claim(key, evidence);
            next.push(RELEASE_RECHECK);
        } else {
            next.push(LAPSE_MARGIN);
        }
    }
    if !proven.is_empty() {
        next.push(if wait.is_zero() {
            RELEASE_RECHECK
        } else {
            wait
        });
    }
    if wait.is_zero() {
        for evidence in proven.drain(..) {
            context.ledgers.release_claim(key, evidence);
        }
    }
    context.ledgers.defer_releases(key, proven);
    next.into_iter().min()
}

/// What is known of the Pod of a claim.
struct ClaimPodObservation {
    sighting: Option<ClaimedPodState>,
    /// Position of the cache.
    position: u64,
    /// Whether the cache contains the Pod.
    is_known: bool,
}

/// Reads the Pod of a claim from the cache, and live if the cache does not contain enough of it.
async fn observe_claim_pod(
    context: &Arc<ControllerContext>,
    deadlines: &ClaimDeadlines,
    key: &RuleKey,
    (pod, operation): (&Uid, ClaimOperation),
    claim: &Claim<ClaimDetail>,
) -> ClaimPodObservation {
    let (sighting, position, cached) = {
        let state = context.index.read_state();
        let sighting = sighting_from_cache(&state, key, pod, operation, claim);
        let cached = state.pod(&key.namespace, pod);
        let cached = cached
            .filter(|cached| !cached.is_readable())
            .map(|stub| stub.metadata.resource_version);
        let is_known = state.pod(&key.namespace, pod).is_some();
        (sighting, state.position, (cached, is_known))
    };
    let (stub, is_known) = cached;
    let sighting = match (sighting, stub) {
        (None, Some(version)) => {
            let claimed = (key.uid.clone(), pod.clone(), operation);
            match deadlines.is_read_due(claimed, version, Instant::now()) {
                true => {
                    let live = read_claim_pod(context, key, pod, claim).await.flatten();
                    live.map(|live| sighting_from_pod(&live, operation, claim))
                }
                false => None,
            }
        }
        (Some(gone @ ClaimedPodState::Gone { .. }), _) if !is_conditional(operation) => {
            confirm_gone(context, key, pod, operation, claim, gone).await
        }
        (sighting, _) => sighting,
    };
    ClaimPodObservation {
        sighting,
        position,
        is_known,
    }
}

fn new_evidence(
    pod: &Uid,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
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

/// The state of the Pod of a claim in the cache. `None` if the cache is older than the claim, or if it does not contain
/// the fields that prove the effect of the operation.
fn sighting_from_cache(
    state: &IndexState,
    key: &RuleKey,
    pod: &Uid,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
) -> Option<ClaimedPodState> {
    match state.pod(&key.namespace, pod) {
        Some(seen) if seen.is_readable() => Some(sighting_from_pod(seen, operation, claim)),
        Some(stub) => sighting_from_stub(stub, operation),
        None => (state.last_event > claim.at).then_some(ClaimedPodState::Gone {
            version: state.last_event,
        }),
    }
}

/// The state of a Pod that is too large to be cached, from its metadata. The metadata prove that the Pod ended. They
/// also suffice for operations that are conditional on the resourceVersion, because a newer version is enough evidence.
/// Such a Pod counts as not available, with or without a claim.
fn sighting_from_stub(pod: &Pod, operation: ClaimOperation) -> Option<ClaimedPodState> {
    let terminating = pod.is_terminating();
    (terminating || is_conditional(operation)).then_some(ClaimedPodState::Seen {
        version: pod.metadata.resource_version,
        terminating,
        available: false,
        applied: false,
        restart: inplace::RestartProgress::Awaited,
    })
}

fn sighting_from_pod(
    pod: &Pod,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
) -> ClaimedPodState {
    ClaimedPodState::Seen {
        version: pod.metadata.resource_version,
        terminating: pod.is_terminating() || pod.is_finished(),
        available: pod.is_available(),
        applied: is_applied(pod, operation, &claim.detail),
        restart: inplace::restart_progress_of(pod, &claim.detail.containers),
    }
}

/// Whether the Pod contains the change for which its claim was taken.
fn is_applied(pod: &Pod, operation: ClaimOperation, detail: &ClaimDetail) -> bool {
    let Some(target) = detail.target.as_deref() else {
        return false;
    };
    match operation {
        // If the change has replaced an earlier resize, the change need not be visible: the resize may still take
        // effect.
        ClaimOperation::InPlace => {
            let stacked = detail.containers.iter().any(|c| c.by_resources);
            stacked || inplace::is_spec_applied(pod, target)
        }
        // If the target can't be parsed, it may be any deadline.
        ClaimOperation::Deadline => {
            let latest = target.parse().unwrap_or(i64::MAX);
            let deadline = pod.spec.active_deadline_seconds;
            deadline.is_some_and(|seconds| seconds <= latest)
        }
        // If no controller is set, the target is another owner, because the garbage collector checks all owners.
        ClaimOperation::Reown => {
            let mut owners = pod.metadata.owner_references.iter();
            owners.any(|owner| target.split(' ').any(|one| one == uid_token(&owner.uid)))
        }
        _ => false,
    }
}

/// Reads a Pod live that has left the cache. The Pod may only have lost its control label, and may get it back while an
/// eviction or a restart is still on its way. Returns `None` if the Pod can't be read now.
async fn confirm_gone(
    context: &Arc<ControllerContext>,
    key: &RuleKey,
    pod: &Uid,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
    gone: ClaimedPodState,
) -> Option<ClaimedPodState> {
    let live = read_claim_pod(context, key, pod, claim).await?;
    Some(live.map_or(gone, |live| sighting_from_pod(&live, operation, claim)))
}

/// Confirms that the Pod of a claim does not exist, and returns the present position of the Pods; a deleted Pod never
/// comes back. `unknown_for` says how long the cache has not contained the Pod. Usually the cache itself proves the
/// end, by an event that is newer than the claim. No such event comes if the Pod never existed, or if no Pod has
/// reached the resourceVersion of the claim.
async fn confirmed_gone_at(
    context: &Arc<ControllerContext>,
    key: &RuleKey,
    pod: &Uid,
    claim: &Claim<ClaimDetail>,
    unknown_for: Option<Duration>,
) -> Option<u64> {
    unknown_for.filter(|unknown| *unknown >= LAPSE_MARGIN)?;
    let live = read_claim_pod(context, key, pod, claim).await?;
    if live.is_some() {
        return None;
    }
    // The position is read after the Pod. The end of the Pod is before this position, so every cache at this position
    // has seen the end.
    let present = context
        .ledgers
        .store()
        .read_present_position(&key.namespace);
    let present = tokio::time::timeout(API_CALL_TIMEOUT, present).await;
    let present = present.ok()?.ok()?;
    info!(rule = %key.name, pod = %claim.detail.pod_name, "the Pod of a claim does not exist");
    Some(present)
}

/// Confirms by a live read that the claim had no effect, and returns the resourceVersion of the Pod.
async fn confirmed_lapsed_at(
    context: &Arc<ControllerContext>,
    key: &RuleKey,
    pod: &Uid,
    operation: ClaimOperation,
    claim: &Claim<ClaimDetail>,
) -> Option<u64> {
    let live = read_claim_pod(context, key, pod, claim).await??; // if the Pod is gone, the cache will show its end
    let nothing_comes = is_claim_lapsed(operation, sighting_from_pod(&live, operation, claim))
        || (operation == ClaimOperation::Reown && has_controller(context, &live));
    nothing_comes.then_some(live.metadata.resource_version)
}

/// Whether the Pod's controller exists. If it does, the garbage collector does not delete the Pod.
fn has_controller(context: &ControllerContext, pod: &Pod) -> bool {
    let state = context.index.read_state();
    let namespace = state.namespace(&pod.metadata.namespace);
    let owner = pod.controller();
    namespace
        .zip(owner)
        .is_some_and(|(namespace, owner)| namespace.has_owner(owner))
}

/// Reads the Pod of a claim from the API server. `Some(None)` means that the Pod is gone, `None` that the read failed.
async fn read_claim_pod(
    context: &Arc<ControllerContext>,
    key: &RuleKey,
    pod: &Uid,
    claim: &Claim<ClaimDetail>,
) -> Option<Option<Pod>> {
    let name = &claim.detail.pod_name;
    let read = pod_requests::get_pod(&context.client, &key.namespace, name);
    let live = api_request::within(API_CALL_TIMEOUT, read).await;
    let live = live.inspect_err(|failure| {
        warn!(pod = %name, error = failure.text(), "the Pod of a claim could not be read");
    });
    Some(live.ok()?.filter(|live| *live.metadata.uid == **pod))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;

    use jiff::Timestamp;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The API server accepts any non-empty text as the UID of an owner.
    #[test]
    fn owner_whose_uid_has_spaces_is_found_on_its_pod() {
        let owned = |uid: &str| -> Pod {
            let owner = json!({ "apiVersion": "example.com/v1", "kind": "Thing", "name": "a", "uid": uid, "controller": true });
            serde_json::from_value(
                json!({ "metadata": { "uid": "p", "ownerReferences": [owner] } }),
            )
            .unwrap()
        };
        let bare: Pod = serde_json::from_value(json!({ "metadata": { "uid": "p" } })).unwrap();
        let uids = ["x y", "x", "y", "%20", "x%20y", " ", "a b c d e f g h i"];
        for uid in uids {
            let new = owned(uid);
            let change = crate::domain::ownership::owner_change(&bare, &new).unwrap();
            let earlier = ClaimDetail {
                target: Some("earlier".into()),
                ..claim(1, 1).detail
            };
            let detail = ClaimDetail {
                target: Some(change.new_controller_token().into_owned()),
                ..claim(1, 1).detail
            };
            let detail = detail.merge_earlier_detail(Some(&earlier), ClaimOperation::Reown, false);
            for other in uids {
                let is_applied = is_applied(&owned(other), ClaimOperation::Reown, &detail);
                assert_eq!(is_applied, other == uid, "{other} for {uid}");
            }
        }
    }

    fn claim(opened: u64, attempt: u64) -> Claim<ClaimDetail> {
        Claim {
            at: 1,
            attempt,
            opened,
            closing: false,
            detail: ClaimDetail {
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
    fn claim_renewal_moves_end_but_not_closing() {
        let (begin, seconds) = (Instant::now(), Duration::from_secs);
        let first = ClaimTimes::from_claim(&claim(3, 3), None, begin);
        assert_eq!(first.closes_in(&claim(3, 3), TIMEOUT, begin), None);
        assert_eq!(first.ends_in(TIMEOUT, begin), TIMEOUT + LAPSE_MARGIN);
        let now = begin + seconds(50);
        let again = ClaimTimes::from_claim(&claim(3, 4), Some(first), now);
        assert_eq!(
            again.closes_in(&claim(3, 4), TIMEOUT, now),
            Some(seconds(10))
        );
        assert_eq!(again.ends_in(TIMEOUT, now), TIMEOUT + LAPSE_MARGIN);
        let now = begin + seconds(61);
        let again = ClaimTimes::from_claim(&claim(3, 4), Some(again), now);
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
    fn reissued_claim_has_new_deadlines() {
        let begin = Instant::now();
        let old = ClaimTimes::from_claim(&claim(3, 4), None, begin);
        let now = begin + TIMEOUT;
        let new = ClaimTimes::from_claim(&claim(5, 6), Some(old), now);
        assert_eq!(new.closes_in(&claim(5, 6), TIMEOUT, now), Some(TIMEOUT));
    }

    /// A Pod that is too large for the cache, as the cache contains it.
    fn stub(metadata: Value) -> Pod {
        let mut base =
            json!({ "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "6" });
        json_patch::merge(&mut base, &metadata);
        serde_json::from_value(json!({ "metadata": base })).unwrap()
    }

    #[test]
    fn metadata_suffices_to_release_conditional_or_ended_claims() {
        let released = |pod: &Pod, operation| {
            sighting_from_stub(pod, operation).and_then(|seen| release_evidence(operation, 5, seen))
        };
        let (living, going) = (
            stub(json!({})),
            stub(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })),
        );
        for operation in ClaimOperation::ALL {
            let conditional = is_conditional(operation);
            assert_eq!(released(&living, operation), conditional.then_some(6));
            assert_eq!(released(&going, operation), Some(6), "{operation:?}");
        }
        let same = stub(json!({ "resourceVersion": "5" }));
        assert_eq!(released(&same, ClaimOperation::Delete), None);
    }

    #[test]
    fn pod_is_read_once_for_each_version() {
        let (deadlines, now) = (ClaimDeadlines::default(), Instant::now());
        let claimed: ClaimKey = ("rule".into(), "web-1".into(), ClaimOperation::InPlace);
        let reads = |version, now| deadlines.is_read_due(claimed.clone(), version, now);
        assert!(reads(6, now) && !reads(6, now) && reads(7, now));
        assert!(reads(7, now + LAPSE_MARGIN) && !reads(7, now + LAPSE_MARGIN));
        deadlines.forget_rule(&"rule".into());
        assert!(reads(7, now + LAPSE_MARGIN));
    }

    /// How many claims stay after one check, if the Pod is too large for the cache and the API server returns `live`.
    async fn left(operation: &str, detail: Value, live: Value) -> usize {
        let bed = bed(live);
        let mut claim = json!({
            "podName": "web-1", "podUID": "web-1", "operation": operation, "resourceVersion": "5",
            "attempt": 1, "since": Timestamp::UNIX_EPOCH, "until": Timestamp::UNIX_EPOCH,
        });
        json_patch::merge(&mut claim, &detail);
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule", "resourceVersion": "5", "generation": 1 },
            "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            "status": { "ledger": { "claims": [claim], "watermark": "5", "attempts": 1 } },
        });
        bed.context
            .index
            .apply_rule(serde_json::from_value(rule).unwrap());
        bed.context.index.apply_pod(stub(json!({})));
        let key = RuleKey {
            namespace: "n".into(),
            name: "web".into(),
            uid: "rule".into(),
        };
        let (sighting, claims) = {
            let state = bed.context.index.read_state();
            let entry = state.rule("n", "web").unwrap();
            (state.position, entry.snapshot.claims.claims.clone())
        };
        assert_eq!((sighting, claims.len()), (6, 1));
        let deadlines = ClaimDeadlines::default();
        let mut left = 0;
        for ((pod, operation), claim) in &claims {
            let seen =
                observe_claim_pod(&bed.context, &deadlines, &key, (pod, *operation), claim).await;
            let based_on = seen
                .sighting
                .and_then(|s| release_evidence(*operation, claim.at, s));
            left += usize::from(based_on.is_none());
        }
        left
    }

    #[tokio::test]
    async fn in_place_claim_of_large_pod_needs_live_read() {
        let pod = |image: &str, seconds: u64| {
            json!({
                "metadata": { "namespace": "n", "name": "web-1", "uid": "web-1", "resourceVersion": "7" },
                "spec": { "containers": [{ "name": "app", "image": image }], "activeDeadlineSeconds": seconds },
            })
        };
        let target = json!({ "target": "60" });
        assert_eq!(left("Deadline", target.clone(), pod("a", 60)).await, 1);
        assert_eq!(left("Deadline", target, pod("a", 90)).await, 0);
        assert_eq!(left("Delete", json!({}), json!(null)).await, 0);
        assert_eq!(left("Evict", json!({}), pod("a", 60)).await, 1);
    }

    struct Bed {
        context: Arc<ControllerContext>,
    }

    /// An API server that stores this Pod.
    fn bed(live: Value) -> Bed {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/n/pods/web-1");
            let body = Body::from(live.to_string().into_bytes());
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let client = Client::new(service, "default");
        Bed {
            context: ControllerContext::at_epoch(client),
        }
    }
}
