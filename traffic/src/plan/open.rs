//! The members that are not as they should be: what each lacks, and why it waits.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::arrival::arrival;
use super::departure::departure;
use super::known::Known;
use super::memory::Memory;
use super::step::Step;
use super::succession::awaits_successors;
use super::view::View;
use crate::{Control, Member, MemberKey};

/// A member that is not as it should be.
pub(super) struct OpenMember<'a> {
    /// The member as it should be, or as it is registered if it should go.
    pub member: &'a Member,
    /// Whether it should serve.
    pub on: bool,
    /// UID of the Pod that waits for it; empty if that is not known.
    pub uid: &'a str,
    /// What is known of it.
    pub known: Option<&'a Known>,
    /// What is to be done next.
    pub step: Step,
}

/// The members that are not as they should be.
pub(super) fn open_members<'a>(
    view: &'a View,
    memory: &'a Memory,
    now: Timestamp,
) -> BTreeMap<&'a MemberKey, OpenMember<'a>> {
    let mut open = BTreeMap::new();
    for (key, member) in &view.wanted {
        let known = memory.members.get(key);
        if let Some(step) = arrival(view, memory, member) {
            let member = OpenMember {
                member,
                on: true,
                uid: &member.pod.uid,
                known,
                step: step.after_failure(known, now),
            };
            open.insert(key, member);
        }
    }
    // Whoever registers the members of a deleted employer removes them, but perhaps only when it is gone.
    if view.deleting && view.settings.control == Control::Observes {
        return open;
    }
    let awaits_successors = awaits_successors(view, memory);
    let leaving = memory.members.iter();
    for (key, known) in leaving.filter(|(key, _)| !view.wanted.contains_key(*key)) {
        if let Some(step) = departure(view, memory, known, awaits_successors, now) {
            let behind = view.pod_behind(&known.member);
            let member = OpenMember {
                member: &known.member,
                on: false,
                uid: behind.map_or(&known.member.pod.uid, |input| &input.pod.id.uid),
                known: Some(known),
                step: step.after_failure(Some(known), now),
            };
            open.insert(key, member);
        }
    }
    open
}
