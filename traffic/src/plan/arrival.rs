//! How far a member is that should serve.

use super::known::Known;
use super::memory::Memory;
use super::step::{Step, late_step};
use super::view::View;
use crate::{Control, Member, Presence};

/// The next step of a wanted member; `None` if it serves as it should.
pub(super) fn arrival(view: &View, memory: &Memory, member: &Member) -> Option<Step> {
    if memory.served_at(view, &member.key) {
        let known = memory.members.get(&member.key);
        return late_step(known.and_then(|known| known.late.lost_by(&member.pod.uid)));
    }
    let known = memory.members.get(&member.key);
    if !view.registers && !known.is_some_and(Known::is_on) {
        return None;
    }
    if memory.observed.is_none() || memory.unreadable.contains_key(&member.key.group) {
        // The read that is due in any case comes first.
        return Some(Step::Wait {
            until: None,
            poll: false,
        });
    }
    let as_wanted = known.is_some_and(|known| known.is_as_wanted(view, member));
    Some(match known.map(|known| &known.presence) {
        Some(Presence::Pending) if as_wanted => Step::POLL,
        // A read must show that it serves, after answers that were wrong.
        Some(Presence::Serving) if as_wanted => Step::POLL,
        Some(Presence::Unknown) => Step::POLL,
        _ if view.settings.control == Control::Observes => Step::POLL,
        _ => Step::Register,
    })
}
