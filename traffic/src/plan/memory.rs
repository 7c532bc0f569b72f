//! What the leader knows of an employer. `turned`, `observed` and `applied` put into it what has changed.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::known::{Failure, Known, KnownPod};
use super::view::View;
use crate::{AdapterError, Member, MemberKey, Presence};

/// What the leader knows of an employer. A new leader begins with an empty memory, and reads the members first.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Members that are registered, or were lately.
    pub(super) members: BTreeMap<MemberKey, Known>,
    /// Groups that the last read left out, each with the reason.
    pub(super) unreadable: BTreeMap<String, AdapterError>,
    /// Planned groups, and groups with members, that the last read has told of, or an earlier one if the last one could
    /// not. Of a group that was never read, it is not known which Pods have members there.
    pub(super) read_groups: BTreeSet<String>,
    /// The last failure to read a group.
    pub(super) unreadable_failure: Option<Failure>,
    /// When the last successful read of the members began.
    pub(super) observed: Option<Timestamp>,
    /// When the first successful read of the members began.
    pub(super) first_observed: Option<Timestamp>,
    /// Whether something is unknown that only a read can tell.
    pub(super) must_observe: bool,
    /// Number of reads since something changed.
    pub(super) quiet_reads: u32,
    /// The last failure of a call as a whole, and how often it failed in a row.
    pub(super) failure: Option<Failure>,
    /// When the last round of calls began.
    pub(super) round: Option<Timestamp>,
    /// When the last call began.
    pub(super) last_call: Option<Timestamp>,
    /// Whether the load balancer counts open connections.
    pub(super) counts_connections: bool,
    /// Whether the adapter refuses the employer, so that it is not asked.
    pub(super) is_refused: bool,
    /// Whether a look has begun since the last [`Memory::end_look`].
    pub(super) is_looked_at: bool,
    /// Since when the employer seems to be settled, in a move.
    pub(super) settling: Option<Timestamp>,
    /// What is known of each Pod, by UID.
    pub(super) pods: BTreeMap<String, KnownPod>,
}

impl Memory {
    /// Notes that a call begins. `first` says that it is the first call of a look.
    pub fn begin_call(&mut self, first: bool, now: Timestamp) {
        if first {
            self.round = Some(now);
        }
        self.last_call = Some(now);
    }

    /// Whether the members are known: the last read has told all, and the adapter can be asked again.
    pub fn is_read(&self) -> bool {
        !self.is_refused
            && self.observed.is_some()
            && self.failure.is_none()
            && self.unreadable.is_empty()
    }

    /// Reads the members again at the next look.
    pub fn read_again(&mut self) {
        self.must_observe = true;
    }

    /// Whether no member is registered, as far as a complete read tells.
    pub fn is_empty(&self) -> bool {
        let absent =
            |known: &Known| known.presence == Presence::Absent && known.late.on().is_none();
        let complete = self.observed.is_some() && self.unreadable.is_empty() && !self.must_observe;
        complete && self.members.values().all(absent)
    }

    /// Whether a member is registered, as far as reads and changes tell, or may be by a lost change.
    pub fn may_have_members(&self) -> bool {
        let mut members = self.members.values();
        members.any(|known| known.presence != Presence::Absent || known.late.on().is_some())
    }

    /// The registered members whose Pod is not in `view`: the Pod is gone, or the cache does not know it yet. Only the
    /// API server can tell.
    pub fn members_of_unknown_pods(&self, view: &View) -> Vec<Member> {
        let registered = self.members.values();
        let unknown = registered.filter(|known| {
            let uid = &known.member.pod.uid;
            known.presence != Presence::Absent && !uid.is_empty() && !view.pods.contains_key(uid)
        });
        unknown.map(|known| known.member.clone()).collect()
    }

    /// Whether a Pod serves, at all the members that it should have. The view says whether it should.
    pub(super) fn does_serve(&self, view: &View, uid: &str) -> bool {
        let mut keys = view.planned_keys(uid).into_iter();
        view.obstacle(uid).is_none() && keys.all(|key| self.does_serve_at(view, &key))
    }

    /// Whether a wanted member serves, and no lost change may still take it off.
    pub(super) fn does_serve_at(&self, view: &View, key: &MemberKey) -> bool {
        let known = self.members.get(key);
        let is_safe = |known: &Known| {
            let member = view.wanted.get(key);
            member.is_some_and(|member| known.late.lost_by(&member.pod.uid).is_none())
        };
        self.served_at(view, key) && known.is_some_and(is_safe)
    }

    /// Whether a wanted member serves, for its Pod and with its weight, as far as the last reads and changes tell.
    pub(super) fn served_at(&self, view: &View, key: &MemberKey) -> bool {
        let member = view.wanted.get(key);
        let known = self.members.get(key);
        let serves = known.zip(member).is_some_and(|(known, member)| {
            let serves = known.presence == Presence::Serving && known.is_as_wanted(view, member);
            serves && !known.is_fruitless()
        });
        serves && !self.unreadable.contains_key(&key.group)
    }

    /// Whether a read has told since the member began to drain whether connections are counted.
    pub(super) fn was_read_since(&self, known: &Known) -> bool {
        let began = known.drains_since();
        self.observed.is_some_and(|observed| observed > began)
    }

    /// Forgets the failed changes of members that serve as they should: they have had an effect, or are not wanted any
    /// more. Of a change that was accepted too often, only a read proves the effect.
    pub(super) fn forget_settled_failures(&mut self, view: &View) {
        for known in self.members.values_mut() {
            let wanted = view.wanted.get(&known.member.key);
            let settled = wanted.is_some_and(|member| known.is_as_wanted(view, member));
            if settled && known.presence == Presence::Serving && !known.is_fruitless() {
                known.failure = None;
            }
        }
    }

    /// Forgets absent members, except wanted ones that could not be registered, and those of lost changes.
    pub(super) fn forget_absent(&mut self, view: &View) {
        self.members.retain(|key, known| {
            let failed = known.failure.is_some() || known.accepted.is_some();
            let failed = failed && view.wanted.contains_key(key);
            known.presence != Presence::Absent || failed || known.late.until().is_some()
        });
    }
}
