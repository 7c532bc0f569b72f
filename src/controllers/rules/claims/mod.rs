//! Releases claims: on evidence in the state of the Pod, or when the API server can no longer carry out the request.

mod deadlines;
mod pod_state;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

pub use self::deadlines::ClaimDeadlines;
use self::deadlines::{ClaimKey, ClaimTimes, RELEASE_COALESCING};
use self::pod_state::{
    ClaimPodObservation, confirmed_gone_at, confirmed_lapsed_at, observe_claim_pod,
};
use super::super::{ControllerContext, wait_queue};
use crate::ledger::commit::Evidence;
use crate::ledger::evidence::{ClaimedPodState, LAPSE_MARGIN, release_evidence};
use crate::ledger::protocol::{Claim, ClaimOperation};
use crate::ledger::store::{ClaimDetail, RuleKey, Uid};

/// After a release was queued, the claim is checked again after this time. The write may have failed, and no event
/// reports that.
const RELEASE_RECHECK: Duration = Duration::from_secs(1);

/// A claim of a rule object.
#[derive(Clone, Copy)]
struct ClaimRef<'a> {
    rule: &'a RuleKey,
    pod: &'a Uid,
    operation: ClaimOperation,
    claim: &'a Claim<ClaimDetail>,
}

impl ClaimRef<'_> {
    fn key(&self) -> ClaimKey {
        (self.rule.uid.clone(), self.pod.clone(), self.operation)
    }

    /// Evidence for the release of the claim: the state of the Pod at version `based_on`.
    fn new_evidence(&self, based_on: u64, position: u64) -> Evidence {
        Evidence {
            pod: self.pod.clone(),
            operation: self.operation,
            attempt: self.claim.attempt,
            based_on,
            position,
            lapsed: false,
        }
    }
}

/// Releases the claims of a rule object that can be released. Returns the time until the next check; `None` if there
/// are no claims, or if the ledger is unusable: then nothing is written.
pub async fn release_ledger_claims(
    context: &Arc<ControllerContext>,
    deadlines: &ClaimDeadlines,
    rule: &RuleKey,
) -> Option<Duration> {
    let snapshot = context.ledgers.latest_snapshot(rule)?;
    if snapshot.fault.is_some() {
        return None; // such a ledger is never written
    }
    if let Some(pause) = context.ledgers.store().retry_delay(rule) {
        return (!snapshot.claims.claims.is_empty()).then_some(pause);
    }
    let claims = &snapshot.claims.claims;
    deadlines.retain_claims(&rule.uid, |pod, operation| {
        claims.contains_key(&(pod.clone(), operation))
    });
    let mut next_check = None;
    let mut proven = Vec::new();
    let mut release_in = RELEASE_COALESCING;
    for ((pod, operation), claim) in claims {
        let claimed = ClaimRef {
            rule,
            pod,
            operation: *operation,
            claim,
        };
        let observation = observe_claim_pod(context, deadlines, claimed).await;
        let based_on = observation
            .pod_state
            .and_then(|state| release_evidence(*operation, claim.at, state));
        let Some(based_on) = based_on else {
            let pause = check_unproven_claim(context, deadlines, claimed, &observation).await;
            next_check = next_check.into_iter().chain([pause]).min();
            continue;
        };
        release_in = release_in.min(match observation.pod_state {
            // While a Pod is available, only its claim uses up the budget. Therefore this claim is released at once.
            Some(ClaimedPodState::Seen {
                available: true, ..
            }) => Duration::ZERO,
            _ => deadlines.coalescing_time(claimed.key(), claim.attempt, Instant::now()),
        });
        proven.push(claimed.new_evidence(based_on, observation.position));
    }
    let release_pause = release_proven_claims(context, rule, proven, release_in);
    next_check.into_iter().chain(release_pause).min()
}

/// Releases the claims with evidence, now or with the next write of the ledger. `release_in` is the time until the
/// release; zero means now. Returns the time until the next check, if there are such claims.
fn release_proven_claims(
    context: &ControllerContext,
    rule: &RuleKey,
    mut proven: Vec<Evidence>,
    release_in: Duration,
) -> Option<Duration> {
    let pause = match release_in.is_zero() {
        true => RELEASE_RECHECK,
        false => release_in,
    };
    let pause = (!proven.is_empty()).then_some(pause);
    if release_in.is_zero() {
        for evidence in proven.drain(..) {
            context.ledgers.release_claim(rule, evidence);
        }
    }
    context.ledgers.defer_releases(rule, proven);
    pause
}

/// Checks a claim without evidence for its release. Returns the time until the next check.
async fn check_unproven_claim(
    context: &Arc<ControllerContext>,
    deadlines: &ClaimDeadlines,
    claimed: ClaimRef<'_>,
    observation: &ClaimPodObservation,
) -> Duration {
    let now = Instant::now();
    let times = deadlines.observe_claim(claimed.key(), claimed.claim, now);
    let closing_pause = close_renewed_claim(context, claimed, &times, now);
    // The wait queue may have to ask for its Pod again.
    let is_begin = claimed.operation == ClaimOperation::Begin;
    let queue_pause = is_begin.then(|| wait_queue::CLAIM_LOST_AFTER.unsigned_abs());
    let release_pause = release_ended_claim(context, claimed, observation, &times, now).await;
    closing_pause
        .into_iter()
        .chain(queue_pause)
        .fold(release_pause, Duration::min)
}

/// Makes a claim a closing claim if it is renewed without effect. Returns the time until the next check, if necessary.
fn close_renewed_claim(
    context: &ControllerContext,
    claimed: ClaimRef<'_>,
    times: &ClaimTimes,
    now: Instant,
) -> Option<Duration> {
    let ClaimRef {
        rule,
        pod,
        operation,
        claim,
    } = claimed;
    let pause = times.closes_in(claim, context.request_timeout, now)?;
    if !pause.is_zero() {
        return Some(pause);
    }
    if operation == ClaimOperation::Unknown {
        return None; // this build does not know the operation; the claim stays as a newer build has stored it
    }
    info!(rule = %rule.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "closing a claim that is renewed without effect");
    context
        .ledgers
        .close_claim(rule, pod.clone(), operation, claim.opened);
    Some(RELEASE_RECHECK)
}

/// Releases a claim whose Pod does not exist, or whose requests have all ended without effect. Returns the time until
/// the next check.
async fn release_ended_claim(
    context: &Arc<ControllerContext>,
    claimed: ClaimRef<'_>,
    observation: &ClaimPodObservation,
    times: &ClaimTimes,
    now: Instant,
) -> Duration {
    let ClaimRef {
        rule,
        operation,
        claim,
        ..
    } = claimed;
    let end = times.ends_in(context.request_timeout, now);
    let unknown_for = (!observation.is_known).then(|| now - times.first_seen);
    if let Some(version) = confirmed_gone_at(context, claimed, unknown_for).await {
        let evidence = claimed.new_evidence(version, observation.position);
        context.ledgers.release_claim(rule, evidence);
        return RELEASE_RECHECK;
    }
    if !end.is_zero() {
        return match observation.is_known {
            true => end,
            false => end.min(LAPSE_MARGIN),
        };
    }
    let Some(version) = confirmed_lapsed_at(context, claimed).await else {
        return LAPSE_MARGIN;
    };
    info!(rule = %rule.name, pod = %claim.detail.pod_name, operation = operation.as_str(), "a claim had no effect; releasing it");
    let mut evidence = claimed.new_evidence(version, observation.position);
    evidence.lapsed = true;
    context.ledgers.release_claim(rule, evidence);
    RELEASE_RECHECK
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    /// A claim of Pod `web-1`.
    pub(super) fn claim(opened: u64, attempt: u64) -> Claim<ClaimDetail> {
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
}
