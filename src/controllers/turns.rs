//! Whose turn it is among the Pods that wait for a budget.

use jiff::SignedDuration;

use crate::cluster::index::{Entry, State};
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;
use crate::domain::rules::stage::{candidates, rejections_of};
use crate::domain::rules::webhook::Candidate;
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
                && any_passes(state, Stage::PreCheck, pod)
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

/// Pods that wait although they have a claim, and have had it for a while. A closing claim admits nothing: its Pod waits
/// until the claim is gone, and then for its turn.
fn lost(context: &Context, entry: &Entry) -> Vec<Uid> {
    let claims = context.ledgers.newer(&entry.key(), &entry.snapshot).claims;
    let now = (context.now)();
    let old = claims.claims.iter().filter(|((_, operation), claim)| {
        *operation == Operation::Begin
            && !claim.closing
            && now.duration_since(claim.detail.since) >= LOST
    });
    old.map(|((pod, _), _)| pod)
        .filter(|pod| entry.tally.waiting().any(|waiting| waiting == *pod))
        .cloned()
        .collect()
}

/// Whether it is the Pod's turn by every rule that covers it. A Pod that is down takes nothing more from a budget. If it is
/// down for a moment only, the budget must not be overdrawn already: the operation would make the loss last.
pub fn is_next(context: &Context, state: &State, pod: &Pod) -> bool {
    if state.is_down_for_a_moment(pod) {
        return covering(state, pod)
            .all(|entry| !room::is_overdrawn(&context.ledgers, state, entry));
    }
    !pod.is_available()
        || covering(state, pod).all(|entry| {
            next(context, state, entry)
                .iter()
                .any(|uid| **uid == *pod.metadata.uid)
        })
}

/// Whether no rule of the stage keeps this operation on the Pod waiting whatever the budgets.
pub fn passes(state: &State, stage: Stage, pod: &Pod, waiting: &Candidate) -> bool {
    let waiting = std::slice::from_ref(waiting);
    covering(state, pod).all(|entry| {
        rejections_of(&entry.snapshot.rules, stage, pod, waiting, &entry.verdicts).is_empty()
    })
}

/// Whether no rule of the stage keeps all operations on the Pod waiting.
pub fn any_passes(state: &State, stage: Stage, pod: &Pod) -> bool {
    candidates(stage, pod)
        .iter()
        .any(|waiting| passes(state, stage, pod, waiting))
}

fn could_go(context: &Context, state: &State, pod: &Pod) -> bool {
    any_passes(state, Stage::PreCheck, pod)
        && covering(state, pod)
            .all(|entry| room::allowed(&context.ledgers, state, entry) != Some(0))
}

/// The rule objects that cover a Pod.
pub fn covering<'a>(state: &'a State, pod: &'a Pod) -> impl Iterator<Item = &'a Entry> {
    let namespace = state.namespace(&pod.metadata.namespace);
    namespace
        .into_iter()
        .flat_map(|n| n.rules.values())
        .filter(|entry| entry.snapshot.rules.selects(pod))
}
