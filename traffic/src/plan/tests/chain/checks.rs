//! What must hold after each step.

use jiff::Timestamp;

use super::super::balancer::{Entry, is_drained};
use super::super::model::DRAIN;
use super::state::Chain;
use crate::plan::*;
use crate::{Changes, Control, Member};

impl Chain {
    /// Nobody is cut off while requests may be open, and no Pod that should serve leaves its last load balancer.
    pub fn check_changes(&self, adapter: usize, view: &View, changes: &Changes) {
        let balancer = &self.balancers[adapter];
        assert_ne!(balancer.control, Control::Observes);
        if balancer.control == Control::Drains {
            let removed = changes.deregister.iter();
            for entry in removed.filter_map(|member| balancer.entries.get(&member.key)) {
                let owner = self.pods.get(&entry.owner);
                let has_ended = owner.is_none_or(|pod| pod.input.ended);
                let is_idle = entry.drained_from.is_some() && entry.connections == 0;
                let is_off = has_ended || is_idle || is_drained(entry, self.now);
                assert!(is_off, "{entry:?} is cut off at {adapter}");
            }
        }
        if !self.deleting {
            for member in changes.drain.iter().chain(&changes.deregister) {
                self.check_last_member(adapter, view, member);
            }
        }
    }

    fn check_last_member(&self, adapter: usize, view: &View, member: &Member) {
        let entry = self.balancers[adapter].entries.get(&member.key);
        let Some(entry) = entry.filter(|entry| entry.serves()) else {
            return;
        };
        let Some(pod) = self.pods.get(&entry.owner) else {
            return;
        };
        let input = &pod.input;
        // If it came back in this look, the next one registers it.
        let came_back_now = pod.last_on == Some(self.now);
        let is_on = input.pod.on && input.selected && !input.ended && !came_back_now;
        let seen = view.pods.get(&entry.owner);
        let is_seen_on = seen.is_some_and(|seen| seen.pod.on && seen.selected);
        let address = member.key.address;
        if !is_on || !is_seen_on || !input.pod.addresses.contains(&address) {
            return;
        }
        if self.is_unseen_loss(&entry.owner, view) {
            return;
        }
        let serves_elsewhere = self.serving().any(|(at, other)| {
            let key = &other.member.key;
            key.address == address && (at != adapter || *key != member.key)
        });
        assert!(
            serves_elsewhere,
            "{} leaves its last load balancer {adapter}: {member:?}",
            entry.owner
        );
    }

    /// Whether the Pod has lost a member that no read had to show yet. Before a former adapter `retires`, a read must have
    /// told that the present one serves.
    fn is_unseen_loss(&self, uid: &str, view: &View) -> bool {
        let retires = view.deleting;
        let plan = self.plans.get(&self.chosen).filter(|_| retires);
        let settling = plan.and_then(|plan| plan.settling);
        let mut losses = self.losses(uid);
        losses.any(|(adapter, lost)| match settling {
            Some(settling) => adapter == self.chosen && lost > settling,
            None => true,
        })
    }

    fn losses(&self, uid: &str) -> impl Iterator<Item = (usize, Timestamp)> {
        let addresses = &self.pods[uid].input.pod.addresses;
        let losses = self.lost.iter();
        let losses = losses.filter(|((_, key), _)| addresses.contains(&key.address));
        losses.map(|((adapter, _), lost)| (*adapter, *lost))
    }

    /// Forgets the losses that a read has told.
    pub fn forget_losses(&mut self) {
        let plans = &self.plans;
        self.lost.retain(|(adapter, _), lost| {
            let plan = plans.get(adapter).filter(|plan| plan.is_read());
            plan.is_none_or(|plan| plan.observed < Some(*lost))
        });
    }

    /// Whether the Pod serves somewhere, as far as reads have told. A Pod that does not tell since when it is Ready can go
    /// off and come back unseen between two looks, and leave a watched load balancer meanwhile. The kubelet always tells it.
    fn seems_to_serve(&self, uid: &str) -> bool {
        let mut adapters = self.record.iter();
        let is_watched = adapters.any(|adapter| self.observes(*adapter));
        let may_leave_unseen = is_watched && self.troubles.hides_ready_times;
        self.serves(uid) || may_leave_unseen || self.losses(uid).next().is_some()
    }

    /// The members that serve at the chosen and the recorded load balancers.
    fn serving(&self) -> impl Iterator<Item = (usize, &Entry)> {
        let unrecorded = [self.chosen].into_iter().filter(|n| !self.is_listed(*n));
        let adapters = self.record.iter().copied().chain(unrecorded);
        let entries = adapters.flat_map(|adapter| {
            let entries = self.balancers[adapter].entries.values();
            entries.map(move |entry| (adapter, entry))
        });
        entries.filter(|(_, entry)| entry.serves())
    }

    fn serves(&self, uid: &str) -> bool {
        let addresses = &self.pods[uid].input.pod.addresses;
        self.serving()
            .any(|(_, entry)| addresses.contains(&entry.member.key.address))
    }

    /// A Pod that waits has a reason, and only a Pod that serves becomes protected.
    pub fn check_mark(&self, uid: &str, mark: &Mark, version: u64) {
        if let Mark::Keep(reason) = mark {
            assert!(!reason.is_empty(), "{uid} waits without a reason");
        }
        let pod = self.pods.get(uid).filter(|pod| pod.version == version);
        let becomes_protected = pod.is_some_and(|pod| !pod.input.protected);
        if *mark == Mark::Protect && becomes_protected {
            assert!(
                self.seems_to_serve(uid),
                "{uid} is protected and serves nowhere"
            );
        }
    }

    /// A Pod becomes available when it is on and has what it expects. If the employer selects it, it serves then.
    pub fn count_availability(&mut self, uid: &str) {
        let pod = &self.pods[uid];
        let has_expected = !pod.expected || pod.input.protected;
        if pod.available || !pod.input.pod.on || pod.input.ended || !has_expected {
            return;
        }
        let must_serve = pod.expected && pod.input.selected;
        assert!(
            !must_serve || self.seems_to_serve(uid),
            "{uid} becomes available and serves nowhere"
        );
        self.pod_mut(uid).available = true;
    }

    /// No request is open when the operation of a Pod goes on.
    pub fn check_release(&self, uid: &str) {
        let pod = &self.pods[uid];
        // Without an operation nobody waits, and by the expectation the next operation protects it again.
        let nobody_waits = !pod.in_operation && pod.expected;
        if pod.input.ended || nobody_waits {
            return;
        }
        for adapter in self.record.iter().copied() {
            // Nobody waits for what somebody else does with the members of a deleted employer.
            if self.deleting && self.observes(adapter) {
                continue;
            }
            let balancer = &self.balancers[adapter];
            for entry in balancer.entries.values().filter(|e| e.owner == uid) {
                let is_idle = entry.connections == 0 || is_drained(entry, self.now);
                let is_off = !entry.serves() && is_idle;
                assert!(is_off, "{uid} is released at {adapter}: {entry:?}");
            }
            let mut delayed = balancer.delayed.iter();
            let comes = delayed.any(|delayed| {
                delayed.kind == 0 && delayed.member.pod.uid == uid && self.now < delayed.at
            });
            assert!(!comes, "{uid} may come on traffic at {adapter}");
            let left = self.left.get(&(adapter, uid.to_owned()));
            let since = left.map(|left| self.now.duration_since(*left).unsigned_abs());
            let is_drained = since.is_none_or(|since| since >= DRAIN);
            assert!(is_drained, "{uid} may have open requests at {adapter}");
        }
    }

    /// No Pod gets requests while an operation works on it.
    pub fn check_operations(&self) {
        let operating = self.pods.iter().filter(|(_, pod)| pod.operating);
        for (uid, pod) in operating.filter(|(_, pod)| !pod.input.ended && !pod.unguarded) {
            for adapter in &self.record {
                let was_released = Some(self.recorded[adapter]) >= pod.released; // before the move
                let changed_by_others =
                    (self.deleting || pod.unselected) && self.observes(*adapter);
                if was_released || changed_by_others {
                    continue;
                }
                let mut entries = self.balancers[*adapter].entries.values();
                let on = entries.find(|entry| entry.owner == *uid && entry.serves());
                assert!(
                    on.is_none(),
                    "{uid} is worked on and serves at {adapter}: {on:?}"
                );
            }
        }
    }
}
