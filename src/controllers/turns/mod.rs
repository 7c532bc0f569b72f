//! Whose turn it is among the Pods that wait for a budget.
//!
//! A turn says who should ask for a claim next, and no more: the ledger decides at admission. A turn that has changed in
//! the meantime delays a Pod for a moment, or costs a request that is refused.

mod round;
mod rounds;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use self::round::Budget;
pub use self::round::Round;
pub use self::rounds::Known;
use self::rounds::Rounds;
use super::{Context, room};
use crate::cluster::index::{Entry, State};
use crate::domain::pod::Pod;
use crate::ledger::protocol::Operation;
use crate::ledger::store::Uid;

/// A Pod that still waits this long after it was given a claim is asked for again: the answer to the claim was lost, or
/// the Pod was changed under the request. Nothing but the moment of asking rests on the clock of whoever wrote the claim.
pub const LOST: SignedDuration = SignedDuration::from_secs(2);

/// The turns of all namespaces.
pub struct Turns {
    context: Arc<Context>,
    rounds: Rounds,
}

impl Turns {
    /// Nothing judged yet.
    pub fn new(context: Arc<Context>) -> Arc<Self> {
        let rounds = Rounds::default();
        Arc::new(Turns { context, rounds })
    }

    /// Something has changed in a namespace.
    pub fn changed(&self, namespace: &str) {
        match self.context.index.read().namespace(namespace) {
            Some(_) => self.rounds.changed(namespace),
            None => self.rounds.forget(namespace),
        }
    }

    /// Anything may have changed.
    pub fn all_changed(&self) {
        self.rounds.all_changed();
    }

    /// The turns in a namespace as they are known, and if they may have changed since, when to look again.
    pub async fn look(&self, namespace: &str) -> Known {
        let context = &self.context;
        let measure = |state: &State, entry: &Entry| budget(context, state, entry);
        self.rounds.look(&context.index, namespace, measure).await
    }

    /// Whether it is the Pod's turn by every rule that covers it; if not, and that may have changed, when to look again. A
    /// Pod that is down for longer than a moment takes nothing more from a budget and needs no turn.
    pub async fn is_next(&self, pod: &Pod) -> (bool, Option<Duration>) {
        let is_free = {
            let state = self.context.index.read();
            let is_down = !pod.is_available() && !state.is_down_for_a_moment(pod);
            is_down || state.covering(pod).next().is_none()
        };
        if is_free {
            return (true, None);
        }
        let (round, again) = self.look(&pod.metadata.namespace).await;
        match round.is_next(&pod.metadata.uid) {
            true => (true, None),
            false => (false, again),
        }
    }
}

fn budget(context: &Context, state: &State, entry: &Entry) -> Budget {
    Budget::new(
        room::allowed(&context.ledgers, state, entry),
        room::is_overdrawn(&context.ledgers, state, entry),
        lost(context, entry),
    )
}

/// Pods with a claim that they have had for a while. A closing claim admits nothing: its Pod waits until the claim is gone,
/// and then for its turn.
fn lost(context: &Context, entry: &Entry) -> BTreeSet<Uid> {
    let claims = context.ledgers.newer(&entry.key(), &entry.snapshot).claims;
    let now = (context.now)();
    let old = claims.claims.iter().filter(|((_, operation), claim)| {
        *operation == Operation::Begin && !claim.closing && is_old(claim.detail.since, now)
    });
    old.map(|((pod, _), _)| pod.clone()).collect()
}

/// Whether a claim was given a while ago, as far as two clocks can tell. A claim of the future is one whose clock, or ours, has
/// jumped: to ask too early for its Pod costs a request, to ask too late costs the Pod its turn.
fn is_old(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since).abs() >= LOST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_that_jumps_an_hour_lets_no_pod_wait_longer() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(2);
        assert!(!is_old(now, now));
        assert!(!is_old(now - SignedDuration::from_secs(1), now));
        assert!(is_old(now - LOST, now));
        for hour in [-1, 1] {
            assert!(is_old(now + SignedDuration::from_hours(hour), now));
        }
    }
}
