//! Decides which Pods that wait for a budget are next.
//!
//! The wait queue only says which Pod should ask for a claim next; the ledger decides at admission. If the order has
//! changed in the meantime, a Pod waits a little longer, or one request is denied.

mod round;
mod rounds;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio_util::sync::CancellationToken;

pub use self::round::Round;
use self::round::RoundBudget;
use self::rounds::Rounds;
pub use self::rounds::{Requester, RoundLookup};
use super::{ControllerContext, Queues, headroom};
use crate::cluster::index::{IndexState, RuleEntry};
use crate::domain::pod::Pod;
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::Uid;

/// If a Pod still waits this long after it got a claim, the claim is requested again: the answer was lost, or the Pod
/// was changed during the request. Only the time of this request depends on the clock of the replica that wrote the
/// claim.
pub const CLAIM_LOST_AFTER: SignedDuration = SignedDuration::from_secs(2);

/// The wait queues of all namespaces.
pub struct WaitQueue {
    context: Arc<ControllerContext>,
    queues: Arc<Queues>,
    stop: CancellationToken,
    rounds: Rounds,
}

impl WaitQueue {
    /// Creates an empty wait queue. Requesters that must wait for a round are put back into `queues`. All rounds end at
    /// `stop`.
    pub fn new(
        context: &Arc<ControllerContext>,
        queues: &Arc<Queues>,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        Arc::new(WaitQueue {
            context: Arc::clone(context),
            queues: Arc::clone(queues),
            stop: stop.clone(),
            rounds: Rounds::default(),
        })
    }

    /// Records that something has changed in a namespace.
    pub fn mark_changed(&self, namespace: &str) {
        match self.context.index.read_state().namespace(namespace) {
            Some(_) => self.rounds.mark_changed(namespace),
            None => self.rounds.forget_namespace(namespace),
        }
    }

    /// Records that anything may have changed.
    pub fn mark_all_changed(&self) {
        self.rounds.mark_all_changed();
    }

    /// Returns the latest round of a namespace. If the round may be stale, the requester is enqueued after the next
    /// round. This function never waits, so that no tenant can block the workers for the namespaces of others.
    pub fn latest_round(self: &Arc<Self>, namespace: &str, requester: Requester) -> RoundLookup {
        let (lookup, must_start) = self.rounds.look_up_round(namespace, requester);
        if must_start {
            let (wait_queue, namespace) = (Arc::clone(self), namespace.to_owned());
            tokio::spawn(async move {
                let round = wait_queue.run_round(&namespace);
                wait_queue.stop.run_until_cancelled(round).await;
            });
        }
        lookup
    }

    /// Runs the next round of a namespace.
    async fn run_round(&self, namespace: &str) {
        let context = &self.context;
        let measure = |state: &IndexState, entry: &RuleEntry| measure_budget(context, state, entry);
        let judge = Round::judge_namespace(&context.index, namespace, measure);
        let hand_back = |requester| match requester {
            Requester::Pod(uid) => self.queues.lifecycle.add((namespace.to_owned(), uid)),
            Requester::Rule(name) => self.queues.rules.add((namespace.to_owned(), name)),
        };
        self.rounds
            .run_next_round(namespace, judge, hand_back)
            .await;
    }

    /// Whether the Pod is next by every rule that covers it. If not, and if the order may have changed, the Pod is
    /// enqueued for the lifecycle controller again. Three kinds of Pods are always next, because no budget holds them:
    /// Pods that have been down for [`BRIEFLY_DOWN`](crate::domain::pod::BRIEFLY_DOWN) or longer, Pods that are deleted
    /// with their CollaSet, and Pods that no rule covers.
    pub fn is_next(self: &Arc<Self>, pod: &Pod) -> bool {
        let is_free = {
            let state = self.context.index.read_state();
            let is_down = !pod.is_available() && !state.is_briefly_down(pod);
            is_down
                || state.is_deleted_with_collaset(pod)
                || state.rules_covering(pod).next().is_none()
        };
        let uid = Uid::from(pod.metadata.uid.as_str());
        is_free
            || match self.latest_round(&pod.metadata.namespace, Requester::Pod(uid)) {
                RoundLookup::Fresh(round) | RoundLookup::Stale(round) => {
                    round.is_next(&pod.metadata.uid)
                }
                RoundLookup::Pending => false,
            }
    }
}

fn measure_budget(
    context: &ControllerContext,
    state: &IndexState,
    entry: &RuleEntry,
) -> RoundBudget {
    RoundBudget::new(
        headroom::allowed_disruptions(&context.ledgers, state, entry),
        headroom::is_overdrawn(&context.ledgers, state, entry),
        pods_with_lost_claim(context, entry),
    )
}

/// Pods that have had a claim for [`CLAIM_LOST_AFTER`]. A closing claim is left out, because it admits nothing: its Pod
/// waits until the claim is gone, and then until it is next.
fn pods_with_lost_claim(context: &ControllerContext, entry: &RuleEntry) -> BTreeSet<Uid> {
    let claims = context
        .ledgers
        .newer_snapshot(&entry.rule_key(), &entry.snapshot)
        .claims;
    let now = (context.now)();
    let old_claims = claims.claims.iter().filter(|((_, operation), claim)| {
        *operation == ClaimOperation::Begin
            && !claim.closing
            && is_old_claim(claim.detail.since, now)
    });
    old_claims.map(|((pod, _), _)| pod.clone()).collect()
}

/// Whether a claim is older than [`CLAIM_LOST_AFTER`], as far as two clocks can tell. If the claim is in the future,
/// one of the clocks was changed, and the claim counts as old: a request that is too early costs little, and a late
/// request makes the Pod wait.
fn is_old_claim(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since).abs() >= CLAIM_LOST_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_jump_does_not_prolong_wait() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(2);
        assert!(!is_old_claim(now, now));
        assert!(!is_old_claim(now - SignedDuration::from_secs(1), now));
        assert!(is_old_claim(now - CLAIM_LOST_AFTER, now));
        for hour in [-1, 1] {
            assert!(is_old_claim(now + SignedDuration::from_hours(hour), now));
        }
    }
}
