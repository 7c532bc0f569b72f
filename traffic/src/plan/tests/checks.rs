//! What must hold after each step.

use super::balancer::{Entry, is_drained};
use super::model::DRAIN;
use super::world::World;
use crate::plan::*;
use crate::{Changes, Control, Member};

impl World {
    /// Nobody is taken off who serves, and nobody is cut off while requests may be open.
    pub fn check_changes(&self, view: &View, changes: &Changes) {
        assert_ne!(self.control, Control::Observes);
        for member in changes.members() {
            let group = &member.key.group;
            let is_read = !self.memory.unreadable.contains_key(group);
            assert!(is_read, "{member:?} is changed, and its group was not read");
        }
        let off = changes.drain.iter().chain(&changes.deregister);
        for member in off {
            let wanted = view.wanted.get(&member.key);
            assert!(wanted.is_none(), "{member:?} should serve");
            assert!(view.refused.is_none(), "the employer is refused");
            self.check_other_member(view, member);
            self.check_successors(view, member);
            self.check_move(member);
        }
        if self.control == Control::Deregisters {
            assert!(changes.drain.is_empty());
            return;
        }
        for member in &changes.deregister {
            let Some(entry) = self.balancer.entries.get(&member.key) else {
                continue;
            };
            let behind = self.pods.get(&entry.member.pod.uid);
            let has_ended = behind.is_none_or(|input| input.ended);
            let is_idle = entry.drained_from.is_some() && entry.connections == 0;
            let drained = is_idle || is_drained(entry, self.now);
            assert!(has_ended || drained, "{entry:?} is cut off at {}", self.now);
        }
    }

    /// A Pod that should serve does not lose its last member.
    fn check_other_member(&self, view: &View, member: &Member) {
        let Some(entry) = self
            .balancer
            .entries
            .get(&member.key)
            .filter(|entry| entry.serves())
        else {
            return;
        };
        let owner = &entry.owner;
        let unknown = self.uncached.contains(owner) && self.pods.contains_key(owner);
        assert!(!unknown, "{owner} may serve");
        let input = self.pods.get(owner).filter(|_| view.should_serve(owner));
        let is_at_pod = |member: &Member| {
            input.is_some_and(|input| input.pod.addresses.contains(&member.key.address))
        };
        let at_pod = is_at_pod(member);
        let mut others = self
            .balancer
            .entries
            .values()
            .filter(|e| e.member.key != member.key);
        let serves = others.any(|other| other.serves() && is_at_pod(&other.member));
        assert!(!at_pod || serves, "{owner} loses its last member");
    }

    /// A Pod that serves, and only is not selected any more, does not go before others serve in its place.
    fn check_successors(&self, view: &View, member: &Member) {
        if !view.registers {
            return; // nobody takes its place here
        }
        let serves = |uid: &str| {
            let mut entries = self.balancer.entries.values();
            let addresses = &view.pods[uid].pod.addresses;
            entries.any(|entry| entry.serves() && addresses.contains(&entry.member.key.address))
        };
        let entry = self.balancer.entries.get(&member.key);
        let owner = entry.filter(|entry| entry.serves()).map(|e| &e.owner);
        let input = owner.and_then(|owner| view.pods.get(owner));
        let at_pod = |input: &&PodInput| input.pod.addresses.contains(&member.key.address);
        if !input
            .filter(at_pod)
            .is_some_and(|i| !i.selected && i.pod.on)
        {
            return;
        }
        let uids = || view.pods.keys().map(String::as_str);
        let own = |uid: &&str| view.should_serve(uid) && !view.shared.contains_key(*uid);
        let serving = uids().filter(own).filter(|uid| serves(uid)).count();
        assert!(
            serving > 0 || uids().filter(own).count() == 0,
            "{owner:?} goes before others serve"
        );
    }

    pub fn check_marks(&mut self, view: &View) {
        for (uid, mark) in marks(view, &self.memory, self.now) {
            self.check_mark_in_move(view, &uid, &mark);
            let input = &self.pods[&uid];
            assert!(view.refused.is_none() || matches!(mark, Mark::Keep(_)));
            let of_pod = |entry: &&Entry| {
                let taken = view.wanted.contains_key(&entry.member.key);
                let may_lag = taken || self.control == Control::Observes;
                entry.owner == uid && !(may_lag && input.ended)
            };
            match mark {
                Mark::Protect => {
                    assert!(input.pod.on && input.selected);
                    let serves = self.balancer.entries.values().any(|entry| {
                        entry.serves() && input.pod.addresses.contains(&entry.member.key.address)
                    });
                    assert!(serves, "{uid} is not on traffic");
                    // What somebody else does may be later than the last read.
                    let keys = view.planned_keys(&uid);
                    let mut entries = keys.iter().map(|key| self.balancer.entries.get(key));
                    let all = entries.all(|entry| entry.is_some_and(Entry::serves));
                    let observes = self.control == Control::Observes;
                    assert!(observes || all, "{uid} is not on traffic everywhere");
                    let mut delayed = self.balancer.delayed.iter();
                    let goes = delayed.any(|d| d.kind != 0 && keys.contains(&d.member.key));
                    assert!(!goes, "{uid} may go off traffic");
                    self.protected.insert(uid);
                }
                // Nobody waits for what somebody else does with the members of a deleted employer.
                Mark::Release if self.deleting && self.control == Control::Observes => {}
                Mark::Release => {
                    let mut delayed = self.balancer.delayed.iter();
                    let comes = delayed.any(|d| d.kind == 0 && d.member.pod.uid == uid);
                    assert!(!comes, "{uid} may come on traffic");
                    let on: Vec<_> = self.balancer.entries.values().filter(of_pod).collect();
                    if self.other.is_some() {
                        continue; // the former adapter may still send it requests
                    }
                    assert!(on.is_empty(), "{uid} is on traffic: {on:?}");
                    let left = self.left.get(&uid).filter(|_| !input.ended);
                    let since = left.map(|left| self.now.duration_since(*left).unsigned_abs());
                    let drained = since.is_none_or(|since| since >= DRAIN);
                    assert!(drained, "{uid} may have open requests");
                    self.protected.remove(&uid);
                }
                Mark::Keep(reason) => assert!(!reason.is_empty()),
            }
        }
    }
}
