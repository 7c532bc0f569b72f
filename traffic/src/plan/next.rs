//! The next call, or how long to wait.

use jiff::Timestamp;

use super::backoff::{later, pause};
use super::departure::drained_at;
use super::memory::Memory;
use super::open::open_members;
use super::step::Step;
use super::view::View;
use crate::{Changes, Control, Member};

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
    let (waits, changes) = Waits::collect(view, memory, now);
    let free = view.settings.observes_for_free;
    let reads = match free {
        true => !observed,
        false => must_read(view, memory, &waits, now),
    };
    if !reads && changes.is_empty() {
        return Next::Wait(waits.wake_at(view, memory));
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
fn must_read(view: &View, memory: &Memory, waits: &Waits, now: Timestamp) -> bool {
    if memory.observed.is_none() {
        return true; // an employer without Pods may have members of Pods that are gone
    }
    memory.must_observe
        || memory
            .unreadable_failure
            .as_ref()
            .is_some_and(|failure| failure.retry_at <= now)
        || view.settings.control == Control::Observes && memory.any_turned(view)
        || waits.read_at(view, memory).is_some_and(|at| at <= now)
}

/// What the open members and Pods wait for.
struct Waits {
    /// Whether a read can end a wait.
    poll: bool,
    /// The earliest time at which something can be done without a read.
    due: Option<Timestamp>,
}

impl Waits {
    /// What is waited for, and the changes that can be made now.
    fn collect(view: &View, memory: &Memory, now: Timestamp) -> (Waits, Changes) {
        let mut waits = Waits {
            poll: false,
            // A group that could not be read is tried again; the others go on.
            due: memory
                .unreadable_failure
                .as_ref()
                .map(|failure| failure.retry_at),
        };
        let mut changes = Changes::default();
        for open in open_members(view, memory, now).values() {
            match open.step {
                Step::Register => push(view, &mut changes.register, open.member),
                Step::Drain => push(view, &mut changes.drain, open.member),
                Step::Deregister => push(view, &mut changes.deregister, open.member),
                Step::Retry(at) => waits.add_due(Some(at)),
                Step::Stay(_) => {}
                Step::Wait { until, poll } => {
                    waits.poll |= poll;
                    // What the load balancer is late with, a read tells.
                    waits.add_due(until.filter(|until| now < *until));
                }
            }
        }
        if view.settings.control == Control::Observes {
            waits.add_observed_pods(view, memory, now);
        }
        (waits, changes)
    }

    /// Adds the Pods that should not serve, and whose members somebody else changes.
    fn add_observed_pods(&mut self, view: &View, memory: &Memory, now: Timestamp) {
        // Nobody waits for a Pod that is not protected.
        for uid in view.off_pods() {
            match drained_at(view, memory, uid) {
                None => self.poll = true,
                Some(at) if now < at => self.add_due(Some(at)),
                Some(_) => {}
            }
        }
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
        let lost = memory.members.values();
        // A group that could not be read is tried again after its own pause.
        let lost = lost.filter(|known| !memory.unreadable.contains_key(&known.member.key.group));
        let lost = lost.filter_map(|known| known.late.until()).min();
        let reads = poll.into_iter().chain(resync).chain(confirmation);
        reads.chain(lost).min()
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
