//! How far a member is that should go.

use jiff::Timestamp;

use super::accepted::Accepted;
use super::backoff::later;
use super::known::Known;
use super::memory::Memory;
use super::step::{Stay, Step, late_step};
use super::succession::has_left_selection;
use super::view::{PodInput, View};
use crate::{Control, Presence};

/// The next step of a known member that should go; `None` if it is gone. `awaits_successors` says that Pods that have left
/// the selection stay until others serve.
pub(super) fn departure(
    view: &View,
    memory: &Memory,
    known: &Known,
    awaits_successors: bool,
    now: Timestamp,
) -> Option<Step> {
    if known.presence == Presence::Absent {
        return late_step(known.late.on());
    }
    let uid = &known.member.pod.uid;
    if !uid.is_empty() && !view.pods.contains_key(uid) && !view.gone.contains(uid) {
        return Some(Step::POLL); // the cache does not know the Pod yet, or it is gone
    }
    if memory.unreadable.contains_key(&known.member.key.group) {
        return Some(Step::POLL);
    }
    let behind = view.pod_behind(&known.member);
    let has_ended = view.gone.contains(uid) || behind.is_some_and(|input: &PodInput| input.ended);
    // A late registration may be for another Pod, which has the address now.
    let has_ended = has_ended && known.late.on().is_none();
    let control = view.settings.control;
    let drained_at = match has_ended {
        true => known.since,
        false => later(known.drains_since(), view.drain_time),
    };
    let stay = match stays(view, memory, known, behind) {
        true => Some(Stay::UntilItServesElsewhere),
        false => behind
            .filter(|input| awaits_successors && has_left_selection(input) && is_at(known, input))
            .map(|_| Stay::UntilOthersServe),
    };
    Some(match &known.presence {
        Presence::Unknown | Presence::Absent => Step::POLL,
        _ if control == Control::Observes => Step::POLL,
        // What was pending at the last read may serve by now.
        Presence::Serving | Presence::Pending => {
            let drains = control == Control::Drains && !has_ended && !view.drain_time.is_zero();
            match (stay, drains) {
                (Some(stay), _) => Step::Stay(stay),
                (None, true) => Step::Drain,
                (None, false) => Step::Deregister,
            }
        }
        Presence::Draining { until } if control == Control::Deregisters => Step::Wait {
            until: *until,
            poll: true,
        },
        // It may get requests again, which the removal would cut off.
        Presence::Draining { .. } if known.late.on().is_some() => Step::Wait {
            until: known.late.on(),
            poll: false,
        },
        // The load balancer has accepted the removal, and lets open requests end.
        Presence::Draining { .. } if known.accepted.is_some_and(Accepted::is_unread_removal) => {
            Step::POLL
        }
        Presence::Draining { .. } if now >= drained_at || known.is_idle() => Step::Deregister,
        Presence::Draining { .. } => Step::Wait {
            until: Some(drained_at),
            poll: memory.counts_connections || !memory.was_read_since(known),
        },
    })
}

/// Whether a member that is not wanted any more must stay, because its Pod should serve and would serve nowhere. This
/// happens when the ports or groups of the employer change.
fn stays(view: &View, memory: &Memory, known: &Known, behind: Option<&PodInput>) -> bool {
    let Some(input) = behind else { return false };
    let uid = &input.pod.id.uid;
    is_at(known, input) && view.should_serve(uid) && !memory.does_serve(view, uid)
}

fn is_at(known: &Known, input: &PodInput) -> bool {
    input.pod.addresses.contains(&known.member.key.address)
}

/// When a Pod that should not serve, and whose members somebody else changes, counts as drained. `None` if the last
/// read does not prove that it has no member.
pub(super) fn drained_at(view: &View, memory: &Memory, uid: &str) -> Option<Timestamp> {
    let absent_since = memory.pods.get(uid)?.absent_since?;
    let has_ended = view.pods.get(uid).is_some_and(|input| input.ended);
    Some(match has_ended {
        true => absent_since,
        false => later(absent_since, view.drain_time),
    })
}
