//! Releases claims: on what the Pod itself shows, or when the API server has surely given the request up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::api_calls::API_CALL_TIMEOUT;
use super::super::{Context, wait_queue};
use crate::apirequest;
use crate::cluster::index::IndexState;
use crate::cluster::pod_requests;
use crate::domain::inplace;
use crate::domain::ownership::uid_token;
use crate::domain::pod::Pod;
use crate::ledger::commit::Evidence;
use crate::ledger::evidence::{
    ClaimedPodState, LAPSE_MARGIN, is_claim_lapsed, is_conditional, release_evidence,
};
use crate::ledger::protocol::{Claim, Operation};
use crate::ledger::store::{ClaimDetail, LedgerStore as _, RuleKey, Uid};

/// Claims of Pods that are seen unavailable wait this long for a claim that takes their release along. Such a claim takes nothing
/// from the budget any more, and each release is a write that every replica's watch receives.
const RELEASE_COALESCING: Duration = Duration::from_millis(500);

/// A claim that was to be released is looked at again after this long: the write may have failed, and nobody is told.
const RELEASE_RECHECK: Duration = Duration::from_secs(1);

/// When this process first saw each claim and its last attempt, by its own monotonic clock: clocks of different machines
/// are never compared. A new leader starts anew, which only makes a claim live longer.
#[derive(Default)]
pub struct ClaimDeadlines {
    seen: Mutex<HashMap<ClaimKey, ClaimTimes>>,
    /// Claims that can be released: their attempt, and since when.
    proven: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
    /// Which version of its Pod, which the cache does not hold whole, was read last for a claim, and when.
    read: Mutex<HashMap<ClaimKey, (u64, Instant)>>,
}

/// Rule object, Pod and operation of a claim.
type ClaimKey = (Uid, Uid, Operation);

/// A claim as this process knows it.
#[derive(Clone, Copy)]
struct ClaimTimes {
    opened: u64,
    /// When the claim was first seen, whatever its attempts since.
    first: Instant,
    attempt: u64,
    /// When this attempt was first seen.
    last: Instant,
}

impl ClaimTimes {
    /// A claim that is seen at `now`, of which `known` was known before. One that was released and given again is another
    /// claim.
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

    /// How long until the claim is to be marked as closing; `None` if it needs no mark. A claim that nobody has written
    /// again lapses by itself, so the mark and its write are for those that are renewed.
    fn closes_in(
        &self,
        claim: &Claim<ClaimDetail>,
        timeout: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let renewed = claim.attempt != claim.opened && !claim.closing;
        renewed.then(|| timeout.saturating_sub(now - self.first))
    }

    /// How long until every request that the claim has admitted has surely ended.
    fn ends_in(&self, timeout: Duration, now: Instant) -> Duration {
        (timeout + LAPSE_MARGIN).saturating_sub(now - self.last)
    }
}

impl ClaimDeadlines {
    /// What is known of a claim, which is seen at `now`.
    fn observe_claim(
        &self,
        rule: &Uid,
        pod: &Uid,
        operation: Operation,
        claim: &Claim<ClaimDetail>,
        now: Instant,
    ) -> ClaimTimes {
        let mut seen = self.seen.lock();
        let key = (rule.clone(), pod.clone(), operation);
        let current = ClaimTimes::from_claim(claim, seen.get(&key).copied(), now);
        seen.insert(key, current);
        current
    }

    /// Whether the Pod of a claim is to be read live, of which the cache has this version: once for each version, and again
    /// after a while, since a read may fail.
    fn is_read_due(&self, claimed: ClaimKey, version: u64, now: Instant) -> bool {
        let mut read = self.read.lock();
        let known = read.get(&claimed);
        let is_due = known.is_none_or(|(last, at)| *last < version || now - *at >= LAPSE_MARGIN);
        if is_due {
            read.insert(claimed, (version, now));
        }
        is_due
    }

    /// Forgets claims of a rule object that are not in `current`.
    fn retain_claims(&self, rule: &Uid, current: impl Fn(&Uid, Operation) -> bool) {
        self.read
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.proven
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
        self.seen
            .lock()
            .retain(|(r, pod, operation), _| r != rule || current(pod, *operation));
    }

    /// Forgets a rule object.
    pub fn forget_rule(&self, rule: &Uid) {
        self.retain_claims(rule, |_, _| false);
    }

    /// How long a claim, which can be released as far as is seen at `now`, may still wait for another that takes it along.
    fn coalescing_time_left(&self, claimed: ClaimKey, attempt: u64, now: Instant) -> Duration {
        let mut proven = self.proven.lock();
        let known = proven.get(&claimed).filter(|(of, _)| *of == attempt);
        let since = known.map_or(now, |(_, since)| *since);
        proven.insert(claimed, (attempt, since));
        RELEASE_COALESCING.saturating_sub(now - since)
    }
}

/// Releases what can be released; how long until the claims are to be looked at again, if there were any.
pub async fn release_ledger_claims(
    context: &Arc<Context>,
    deadlines: &ClaimDeadlines,
    key: &RuleKey,
) -> Option<Duration> {
    let snapshot = context.ledgers.latest_snapshot(key)?;
    if snapshot.fault.is_some() {
        return None; // nothing is written to such a ledger
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
        let PodObservation {
            sighting,
            position,
            is_known,
        } = observe_claim_pod(context, deadlines, key, claimed, claim).await;
        let based_on = sighting.and_then(|s| release_evidence(*operation, claim.at, s));
        if let Some(based_on) = based_on {
            let claimed = (key.uid.clone(), pod.clone(), *operation);
            wait = wait.min(match sighting {
                // The claim of an available Pod is all that keeps its place taken.
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
            // What a newer build has stored is written back as it was.
            Some(Duration::ZERO) if *operation == Operation::Unknown => {}
            Some(Duration::ZERO) => {
                info!(rule = %key.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim that is renewed without effect is closing");
                let (pod, opened) = (pod.clone(), claim.opened);
                context.ledgers.close_claim(key, pod, *operation, opened);
                next.push(RELEASE_RECHECK);
            }
            pause => next.extend(pause),
        }
        if *operation == Operation::Begin {
            next.push(wait_queue::CLAIM_LOST_AFTER.unsigned_abs()); // its Pod may have to be asked for again
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
struct PodObservation {
    sighting: Option<ClaimedPodState>,
    /// Position of the cache.
    position: u64,
    /// Whether the cache has the Pod.
    is_known: bool,
}

/// Looks at the Pod of a claim: in the cache, and live where the cache does not tell enough.
async fn observe_claim_pod(
    context: &Arc<Context>,
    deadlines: &ClaimDeadlines,
    key: &RuleKey,
    (pod, operation): (&Uid, Operation),
    claim: &Claim<ClaimDetail>,
) -> PodObservation {
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
    PodObservation {
        sighting,
        position,
        is_known,
    }
}

fn new_evidence(
    pod: &Uid,
    operation: Operation,
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

/// The Pod of a claim as the cache has it; `None` while the cache is older than the claim, or if it does not hold what tells
/// the effect of the operation.
fn sighting_from_cache(
    state: &IndexState,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
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

/// What the metadata of a Pod tell that is too large to be cached. They are enough for its end, and for operations that are
/// conditional on the version: a newer one is all that these need. Such a Pod counts as not available with or without claim.
fn sighting_from_stub(pod: &Pod, operation: Operation) -> Option<ClaimedPodState> {
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
    operation: Operation,
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

/// Whether the Pod carries what its claim was given for.
fn is_applied(pod: &Pod, operation: Operation, detail: &ClaimDetail) -> bool {
    let Some(target) = detail.target.as_deref() else {
        return false;
    };
    match operation {
        // A change that has taken the place of a resize need not be written: the resize may come all the same.
        Operation::InPlace => {
            let stacked = detail.containers.iter().any(|c| c.by_resources);
            stacked || inplace::is_spec_applied(pod, target)
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
            owners.any(|owner| target.split(' ').any(|one| one == uid_token(&owner.uid)))
        }
        _ => false,
    }
}

/// A Pod that the cache has lost, looked up: it may only have left the management, and come back while an eviction or a
/// restart is still on its way. `None` if it can't be read now.
async fn confirm_gone(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
    claim: &Claim<ClaimDetail>,
    gone: ClaimedPodState,
) -> Option<ClaimedPodState> {
    let live = read_claim_pod(context, key, pod, claim).await?;
    Some(live.map_or(gone, |live| sighting_from_pod(&live, operation, claim)))
}

/// Whether the Pod of a claim, which the cache has not known for so long, does not exist: the present position of the Pods. A
/// Pod that is gone never comes back. The cache says so by itself once it has seen an event later than the claim; none comes
/// for a Pod that never was, and a version that no Pod has reached yet.
async fn confirmed_gone_at(
    context: &Arc<Context>,
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
    // After the read: its end is before this position, and every cache that has reached this one has seen it.
    let present = context
        .ledgers
        .store()
        .read_present_position(&key.namespace);
    let present = tokio::time::timeout(API_CALL_TIMEOUT, present).await;
    let present = present.ok()?.ok()?;
    info!(rule = %key.name, pod = %claim.detail.pod_name, "the Pod of a claim does not exist");
    Some(present)
}

/// Whether a live read shows that nothing came of the claim, and the version read.
async fn confirmed_lapsed_at(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    operation: Operation,
    claim: &Claim<ClaimDetail>,
) -> Option<u64> {
    let live = read_claim_pod(context, key, pod, claim).await??; // gone: the cache will say so
    let nothing_comes = is_claim_lapsed(operation, sighting_from_pod(&live, operation, claim))
        || (operation == Operation::Reown && has_controller(context, &live));
    nothing_comes.then_some(live.metadata.resource_version)
}

/// Whether the Pod's controller is known to exist: the garbage collector then leaves the Pod alone.
fn has_controller(context: &Context, pod: &Pod) -> bool {
    let state = context.index.read_state();
    let namespace = state.namespace(&pod.metadata.namespace);
    let owner = pod.controller();
    namespace
        .zip(owner)
        .is_some_and(|(namespace, owner)| namespace.has_owner(owner))
}

/// The Pod of a claim as etcd has it, `Some(None)` when it is gone; `None` if it can't be read now.
async fn read_claim_pod(
    context: &Arc<Context>,
    key: &RuleKey,
    pod: &Uid,
    claim: &Claim<ClaimDetail>,
) -> Option<Option<Pod>> {
    let name = &claim.detail.pod_name;
    let read = pod_requests::get_pod(&context.client, &key.namespace, name);
    let live = apirequest::within(API_CALL_TIMEOUT, read).await;
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

    /// The API server takes any text that is not empty for the UID of an owner.
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
            let detail = detail.merge_earlier_detail(Some(&earlier), Operation::Reown, false);
            for other in uids {
                let is_applied = is_applied(&owned(other), Operation::Reown, &detail);
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

    /// What the cache has of a Pod that is too large for it.
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
        for operation in Operation::ALL {
            let conditional = is_conditional(operation);
            assert_eq!(released(&living, operation), conditional.then_some(6));
            assert_eq!(released(&going, operation), Some(6), "{operation:?}");
        }
        let same = stub(json!({ "resourceVersion": "5" }));
        assert_eq!(released(&same, Operation::Delete), None);
    }

    #[test]
    fn pod_is_read_once_for_each_version() {
        let (deadlines, now) = (ClaimDeadlines::default(), Instant::now());
        let claimed: ClaimKey = ("rule".into(), "web-1".into(), Operation::InPlace);
        let reads = |version, now| deadlines.is_read_due(claimed.clone(), version, now);
        assert!(reads(6, now) && !reads(6, now) && reads(7, now));
        assert!(reads(7, now + LAPSE_MARGIN) && !reads(7, now + LAPSE_MARGIN));
        deadlines.forget_rule(&"rule".into());
        assert!(reads(7, now + LAPSE_MARGIN));
    }

    /// Claims on a Pod that is too large to be cached, of which the API server holds this, after one look.
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
        context: Arc<Context>,
    }

    /// An API server that holds this Pod.
    fn bed(live: Value) -> Bed {
        let service = tower::service_fn(move |request: http::Request<Body>| {
            assert_eq!(request.uri().path(), "/api/v1/namespaces/n/pods/web-1");
            let body = Body::from(live.to_string().into_bytes());
            async move { Ok::<_, Infallible>(http::Response::new(body)) }
        });
        let client = Client::new(service, "default");
        Bed {
            context: Context::at_epoch(client),
        }
    }
}
