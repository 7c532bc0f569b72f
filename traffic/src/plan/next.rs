//! The next call, or how long to wait.

use jiff::Timestamp;

use super::backoff::{later, pause};
use super::departure::{Departure, departure, drained_at};
use super::known::Known;
use super::memory::Memory;
use super::view::View;
use crate::{Changes, Control, Member, Presence};

/// Most calls in one look. What is left is done in the next round.
const CALLS_IN_A_LOOK: u32 = 8;

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Read the members.
    Observe,
    /// Make these changes.
    Apply(Changes),
    /// Nothing until this time, or until something changes.
    Wait(Option<Timestamp>),
}

/// The next call of a look in which `calls` calls were made. `observed` says whether the members were read in this look.
pub fn next_call(view: &View, memory: &Memory, calls: u32, observed: bool, now: Timestamp) -> Next {
    if view.refused.is_some() {
        return Next::Wait(None);
    }
    if let Some(failure) = memory.failure.as_ref().filter(|f| now < f.retry_at) {
        return Next::Wait(Some(failure.retry_at));
    }
    let round_end = memory.round.map(|begun| later(begun, view.settings.round));
    let (open, changes) = Open::collect(view, memory, now);
    let free = view.settings.observes_for_free;
    let reads = match free {
        true => !observed,
        false => must_read(view, memory, &open, now),
    };
    if !reads && changes.is_empty() {
        return Next::Wait(open.wake_at(view, memory));
    }
    if let Some(end) = round_end.filter(|end| !free && calls == 0 && now < *end) {
        return Next::Wait(Some(end));
    }
    if calls >= CALLS_IN_A_LOOK {
        return Next::Wait(Some(later(now, view.settings.round)));
    }
    match reads {
        true => Next::Observe,
        false => Next::Apply(changes),
    }
}

/// Whether the members must be read now, if a read costs a call.
fn must_read(view: &View, memory: &Memory, open: &Open, now: Timestamp) -> bool {
    if memory.observed.is_none() {
        return true; // an employer without Pods may have members of Pods that are gone
    }
    memory.must_observe
        || memory
            .unreadable_failure
            .as_ref()
            .is_some_and(|failure| failure.retry_at <= now)
        || view.settings.control == Control::Observes && memory.any_turned(view)
        || open.read_at(view, memory).is_some_and(|at| at <= now)
}

/// What is open.
struct Open {
    /// Whether a read can end a wait.
    poll: bool,
    /// The earliest time at which something can be done without a read.
    due: Option<Timestamp>,
}

impl Open {
    /// The open states, and the changes that can be made now.
    fn collect(view: &View, memory: &Memory, now: Timestamp) -> (Open, Changes) {
        let mut open = Open {
            poll: false,
            // A group that could not be read is tried again; the others go on.
            due: memory
                .unreadable_failure
                .as_ref()
                .map(|failure| failure.retry_at),
        };
        let mut changes = Changes::default();
        for member in view.wanted.values() {
            let known = memory.members.get(&member.key);
            if open.must_register(view, memory, member, known, now) {
                push(view, &mut changes.register, member);
            }
        }
        for (key, known) in &memory.members {
            if view.wanted.contains_key(key) || open.waits_after_failure(known, now) {
                continue;
            }
            match departure(view, memory, known, now) {
                Departure::Drain => push(view, &mut changes.drain, &known.member),
                Departure::Deregister => push(view, &mut changes.deregister, &known.member),
                Departure::Waits { until, poll } => {
                    open.poll |= poll;
                    // What the load balancer is late with, a read tells.
                    open.add_due(until.filter(|until| now < *until));
                }
                Departure::Gone | Departure::Stays => {}
                Departure::Unknown => open.poll = true,
            }
        }
        if view.settings.control == Control::Observes {
            open.add_observed_pods(view, memory, now);
        }
        (open, changes)
    }

    /// Adds the Pods that should not serve, and whose members somebody else changes.
    fn add_observed_pods(&mut self, view: &View, memory: &Memory, now: Timestamp) {
        // Nobody waits for a Pod that is not protected.
        let off = |uid: &&String| !view.should_serve(uid) && view.is_protected(uid);
        for uid in view.pods.keys().filter(off) {
            match drained_at(view, memory, uid) {
                None => self.poll = true,
                Some(at) if now < at => self.add_due(Some(at)),
                Some(_) => {}
            }
        }
    }

    /// Whether a wanted member must be registered now.
    fn must_register(
        &mut self,
        view: &View,
        memory: &Memory,
        member: &Member,
        known: Option<&Known>,
        now: Timestamp,
    ) -> bool {
        if memory.observed.is_none() || memory.unreadable.contains_key(&member.key.group) {
            return false;
        }
        let observes = view.settings.control == Control::Observes;
        let as_wanted = known.is_some_and(|known| known.is_as_wanted(view, member));
        match known.map(|known| &known.presence) {
            Some(Presence::Serving) if as_wanted => false,
            Some(Presence::Pending) if as_wanted => {
                self.poll = true;
                false
            }
            Some(Presence::Unknown) => {
                self.poll = true;
                false
            }
            _ if observes => {
                self.poll = true;
                false
            }
            _ => !known.is_some_and(|known| self.waits_after_failure(known, now)),
        }
    }

    /// Whether the last change of a member failed, and it is too early to repeat it.
    fn waits_after_failure(&mut self, known: &Known, now: Timestamp) -> bool {
        let retry_at = known.failure.as_ref().map(|failure| failure.retry_at);
        let waits = retry_at.is_some_and(|at| now < at);
        if waits {
            self.add_due(retry_at);
        }
        waits
    }

    fn add_due(&mut self, at: Option<Timestamp>) {
        self.due = self.due.into_iter().chain(at).min();
    }

    /// When the members are read next, if they are.
    fn read_at(&self, view: &View, memory: &Memory) -> Option<Timestamp> {
        let settings = &view.settings;
        if settings.observes_for_free {
            return None; // the adapter is told of changes
        }
        let observed = memory.observed?;
        let last = memory.last_call.unwrap_or(observed);
        let poll = self
            .poll
            .then(|| later(last, pause(settings, memory.quiet_reads)));
        let resync = settings.resync.map(|resync| later(observed, resync));
        // A call of a former leader may have been under way at the first read.
        let confirms = memory.first_observed == Some(observed);
        let confirmation = confirms.then(|| later(observed, settings.timeout * 2));
        poll.into_iter().chain(resync).chain(confirmation).min()
    }

    /// When something is to be done next, if nothing changes until then.
    fn wake_at(&self, view: &View, memory: &Memory) -> Option<Timestamp> {
        let idle = view.pods.is_empty() && memory.members.is_empty();
        let read = self.read_at(view, memory).filter(|_| !idle);
        read.into_iter().chain(self.due).min()
    }
}

fn push(view: &View, list: &mut Vec<Member>, member: &Member) {
    if list.len() < view.settings.batch.max(1) {
        list.push(member.clone());
    }
}
