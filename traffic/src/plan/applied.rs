//! Takes what became of changes into the memory.

use jiff::Timestamp;

use super::accepted::{Accepted, Kind};
use super::backoff::later;
use super::known::{Failure, Known};
use super::memory::Memory;
use super::view::View;
use crate::{AdapterError, Applied, Changes, Member, Presence};

impl Memory {
    /// Takes the result of changes.
    pub fn applied(
        &mut self,
        view: &View,
        changes: &Changes,
        mut results: Applied,
        now: Timestamp,
    ) {
        let mut asked_to_wait = None;
        for (kind, member) in changes_by_kind(changes) {
            let known = self.members.entry(member.key.clone());
            let known = known.or_insert_with(|| Known::new(member.clone(), now));
            let result = results.remove(&member.key).unwrap_or_else(|| {
                let text = "the load balancer has not said what became of the change";
                Err(AdapterError::Transient(text.to_owned()))
            });
            let presence = match result {
                Ok(presence) => {
                    if kind == Kind::Register {
                        known.member = member.clone();
                    }
                    let accepted = Accepted::again(known.accepted, kind);
                    known.accepted = Some(accepted);
                    // A failure to make accepted changes ends with a read that shows the effect.
                    known.failure = known.failure.take().filter(|_| accepted.is_fruitless());
                    if accepted.is_first() {
                        self.quiet_reads = 0;
                    }
                    Some(presence)
                }
                Err(error) => {
                    let presence = presence_after(&error);
                    if presence == Some(Presence::Unknown) {
                        let until = later(now, view.settings.timeout * 2);
                        known.late.add(kind, &member.pod.uid, until);
                    }
                    if matches!(
                        error,
                        AdapterError::Throttled { .. } | AdapterError::Unavailable { .. }
                    ) {
                        asked_to_wait = Some(error.clone());
                    }
                    let former = known.failure.as_ref();
                    known.failure = Some(Failure::after(former, error, view, now));
                    presence
                }
            };
            if let Some(presence) = presence {
                self.must_observe |= presence == Presence::Unknown;
                known.turn(presence, now);
            }
        }
        let failure = |error| Failure::after(self.failure.as_ref(), error, view, now);
        self.failure = asked_to_wait.map(failure);
    }
}

fn changes_by_kind(changes: &Changes) -> impl Iterator<Item = (Kind, &Member)> {
    let lists = [
        (Kind::Register, &changes.register),
        (Kind::Drain, &changes.drain),
        (Kind::Deregister, &changes.deregister),
    ];
    let members = lists.map(|(kind, list)| list.iter().map(move |member| (kind, member)));
    members.into_iter().flatten()
}

/// What is known of a member whose change failed; `None` if nothing has changed.
fn presence_after(error: &AdapterError) -> Option<Presence> {
    match error {
        // The change may have been made although the call failed.
        AdapterError::Transient(_) => Some(Presence::Unknown),
        AdapterError::Throttled { .. }
        | AdapterError::Unavailable { .. }
        | AdapterError::Permanent(_) => None,
    }
}
