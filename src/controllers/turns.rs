//! Whose turn it is among the Pods that wait for a budget.

use jiff::{SignedDuration, Timestamp};

use crate::cluster::index::{Entry, State};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::ledger::protocol::Operation;
use crate::ledger::store::Uid;

use super::{Context, room};

/// A Pod that still waits this long after it was given a claim is asked for again: the answer to the claim was lost, or
/// the Pod was changed under the request. Nothing but the moment of asking rests on the clock of whoever wrote the claim.
pub const LOST: SignedDuration = SignedDuration::from_secs(2);

/// The longest waiting Pods that the budget of `entry` has room for. A Pod that could not go anyway, because another
/// rule keeps it waiting or has no room at all, does not hold up those behind it. One that has a place already needs no
/// room: it would keep the place from all others until the claim lapses. Nor does one that is down: its place in the
/// budget is taken by the loss itself.
pub fn next(context: &Context, state: &State, entry: &Entry) -> Vec<Uid> {
    let namespace = &entry.snapshot.rules.namespace;
    let room = room::allowed(&context.ledgers, state, entry).unwrap_or(u32::MAX);
    let find = |uid: &Uid| state.pod(namespace, uid);
    let down = entry.tally.unavailable().map(|(_, uid)| uid);
    let down = down.filter(|uid| {
        find(uid).is_some_and(|pod| {
            state.is_down_for_a_moment(pod)
                && state.any_passes(Stage::PreCheck, pod)
                && is_next(context, state, pod)
        })
    });
    let up = entry.tally.waiting().filter(|uid| {
        find(uid)
            .is_some_and(|pod| !state.is_down_for_a_moment(pod) && could_go(context, state, pod))
    });
    let up = up.take(usize::try_from(room).unwrap_or(usize::MAX));
    let mut next: Vec<Uid> = lost(context, entry);
    next.extend(down.chain(up).cloned());
    next
}

/// The Pod whose turn is next for the budget of `entry`: the longest waiting one that could go. A Pod that is down for a
/// moment takes no turn.
pub fn head<'a>(context: &Context, state: &State, entry: &'a Entry) -> Option<&'a Uid> {
    let namespace = &entry.snapshot.rules.namespace;
    entry.tally.waiting().find(|uid| {
        state
            .pod(namespace, uid)
            .is_some_and(|pod| !state.is_down_for_a_moment(pod) && could_go(context, state, pod))
    })
}

/// Pods that wait although they have a claim, and have had it for a while. A closing claim admits nothing: its Pod waits
/// until the claim is gone, and then for its turn.
fn lost(context: &Context, entry: &Entry) -> Vec<Uid> {
    let claims = context.ledgers.newer(&entry.key(), &entry.snapshot).claims;
    let now = (context.now)();
    let old = claims.claims.iter().filter(|((_, operation), claim)| {
        *operation == Operation::Begin && !claim.closing && is_old(claim.detail.since, now)
    });
    old.map(|((pod, _), _)| pod)
        .filter(|pod| entry.tally.waiting().any(|waiting| waiting == *pod))
        .cloned()
        .collect()
}

/// Whether a claim was given a while ago, as far as two clocks can tell. A claim of the future is one whose clock, or ours, has
/// jumped: to ask too early for its Pod costs a request, to ask too late costs the Pod its turn.
fn is_old(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since).abs() >= LOST
}

/// Whether it is the Pod's turn by every rule that covers it. A Pod that is down takes nothing more from a budget. If it is
/// down for a moment only, the budget must not be overdrawn already: the operation would make the loss last.
pub fn is_next(context: &Context, state: &State, pod: &Pod) -> bool {
    if state.is_down_for_a_moment(pod) {
        return state
            .covering(pod)
            .all(|entry| !room::is_overdrawn(&context.ledgers, state, entry));
    }
    !pod.is_available()
        || state.covering(pod).all(|entry| {
            next(context, state, entry)
                .iter()
                .any(|uid| **uid == *pod.metadata.uid)
        })
}

fn could_go(context: &Context, state: &State, pod: &Pod) -> bool {
    state.any_passes(Stage::PreCheck, pod)
        && state
            .covering(pod)
            .all(|entry| room::allowed(&context.ledgers, state, entry) != Some(0))
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
