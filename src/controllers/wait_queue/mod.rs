//! Whose turn it is among the Pods that wait for a budget.
//!
//! A turn says who should ask for a claim next, and no more: the ledger decides at admission. A turn that has changed in
//! the meantime delays a Pod for a moment, or costs a request that is refused.

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
use super::{Context, Queues, headroom};
use crate::cluster::index::{IndexState, RuleEntry};
use crate::domain::pod::Pod;
use crate::ledger::protocol::Operation;
use crate::ledger::store::Uid;

/// A Pod that still waits this long after it was given a claim is asked for again: the answer to the claim was lost, or
/// the Pod was changed under the request. Nothing but the moment of asking rests on the clock of whoever wrote the claim.
pub const CLAIM_LOST_AFTER: SignedDuration = SignedDuration::from_secs(2);

/// The turns of all namespaces.
pub struct WaitQueue {
    context: Arc<Context>,
    queues: Arc<Queues>,
    stop: CancellationToken,
    rounds: Rounds,
}

impl WaitQueue {
    /// Nothing judged yet. Who has to wait for a round is handed back to `queues`; all ends at `stop`.
    pub fn new(
        context: &Arc<Context>,
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

    /// Something has changed in a namespace.
    pub fn mark_changed(&self, namespace: &str) {
        match self.context.index.read_state().namespace(namespace) {
            Some(_) => self.rounds.mark_changed(namespace),
            None => self.rounds.forget_namespace(namespace),
        }
    }

    /// Anything may have changed.
    pub fn mark_all_changed(&self) {
        self.rounds.mark_all_changed();
    }

    /// The turns in a namespace as they are known. If they may have changed since, the asker comes back to its queue after
    /// the next round. Nobody waits here, so that a tenant cannot keep the workers from the namespaces of others.
    pub fn latest_round(self: &Arc<Self>, namespace: &str, asker: Requester) -> RoundLookup {
        let (known, starts) = self.rounds.look_up_round(namespace, asker);
        if starts {
            let (turns, namespace) = (Arc::clone(self), namespace.to_owned());
            tokio::spawn(async move {
                let round = turns.run_round(&namespace);
                turns.stop.run_until_cancelled(round).await;
            });
        }
        known
    }

    /// The next round in a namespace.
    async fn run_round(&self, namespace: &str) {
        let context = &self.context;
        let measure = |state: &IndexState, entry: &RuleEntry| measure_budget(context, state, entry);
        let judge = Round::judge_namespace(&context.index, namespace, measure);
        let hand_back = |asker| match asker {
            Requester::Pod(uid) => self.queues.lifecycle.add((namespace.to_owned(), uid)),
            Requester::Rule(name) => self.queues.rules.add((namespace.to_owned(), name)),
        };
        self.rounds
            .run_next_round(namespace, judge, hand_back)
            .await;
    }

    /// Whether it is the Pod's turn by every rule that covers it; if not, and that may have changed, the Pod comes back to
    /// the queue of the lifecycle. A Pod that is down for longer than a moment takes nothing more from a budget and needs no
    /// turn, nor does one that goes with its CollaSet.
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

fn measure_budget(context: &Context, state: &IndexState, entry: &RuleEntry) -> RoundBudget {
    RoundBudget::new(
        headroom::allowed_disruptions(&context.ledgers, state, entry),
        headroom::is_overdrawn(&context.ledgers, state, entry),
        pods_with_lost_claim(context, entry),
    )
}

/// Pods with a claim that they have had for a while. A closing claim admits nothing: its Pod waits until the claim is gone,
/// and then for its turn.
fn pods_with_lost_claim(context: &Context, entry: &RuleEntry) -> BTreeSet<Uid> {
    let claims = context
        .ledgers
        .newer_snapshot(&entry.rule_key(), &entry.snapshot)
        .claims;
    let now = (context.now)();
    let old = claims.claims.iter().filter(|((_, operation), claim)| {
        *operation == Operation::Begin && !claim.closing && is_old_claim(claim.detail.since, now)
    });
    old.map(|((pod, _), _)| pod.clone()).collect()
}

/// Whether a claim was given a while ago, as far as two clocks can tell. A claim of the future is one whose clock, or ours, has
/// jumped: to ask too early for its Pod costs a request, to ask too late costs the Pod its turn.
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
