//! What is known of the members of an employer, and what became of the calls.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::backoff::{later, pause_after};
use super::reach::Reach;
use super::view::View;
use crate::{
    AdapterError, Applied, Changes, Control, Member, MemberKey, Observation, Presence, Registration,
};

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
    /// What is known of each Pod, by UID.
    pub(super) pods: BTreeMap<String, PodMemory>,
}

/// What is known of a Pod.
#[derive(Clone, Debug)]
pub(super) struct PodMemory {
    /// Whether it should serve.
    pub should_serve: bool,
    /// Since when that is known.
    pub turned: Timestamp,
    /// If somebody else changes members: the first read, of those since then, from which on every read has found no
    /// member of the Pod.
    pub absent_since: Option<Timestamp>,
}

/// What is known of a member.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub member: Member,
    pub presence: Presence,
    /// When this presence was first seen.
    pub since: Timestamp,
    /// When it was first seen to drain. It stays while the presence is not known, for example after a lost reply.
    pub drains_since: Option<Timestamp>,
    /// Open connections, and when the read began that counted them.
    pub connections: Option<(u64, Timestamp)>,
    /// The last failed change.
    pub failure: Option<Failure>,
}

/// A failed call or change.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub error: AdapterError,
    /// Number of failures in a row.
    pub count: u32,
    pub retry_at: Timestamp,
}

impl Failure {
    fn after(
        former: Option<&Failure>,
        error: AdapterError,
        view: &View,
        now: Timestamp,
    ) -> Failure {
        let count = former.map_or(0, |failure| failure.count);
        let retry_at = later(now, pause_after(&view.settings, &error, count));
        Failure {
            error,
            count: count.saturating_add(1),
            retry_at,
        }
    }
}

impl Memory {
    /// Begins a look: notes which Pods have turned on or off since the last look.
    pub fn begin_look(&mut self, view: &View, now: Timestamp) {
        for uid in view.pods.keys() {
            let should_serve = view.should_serve(uid);
            if self.pods.get(uid).map(|known| known.should_serve) != Some(should_serve) {
                let known = PodMemory {
                    should_serve,
                    turned: now,
                    absent_since: None,
                };
                self.pods.insert(uid.clone(), known);
                self.quiet_reads = 0;
            }
        }
        self.pods.retain(|uid, _| view.pods.contains_key(uid));
        self.forget_absent(view);
        self.forget_settled_failures(view);
    }

    /// Notes that a call begins. `first` says that it is the first call of a look.
    pub fn begin_call(&mut self, first: bool, now: Timestamp) {
        if first {
            self.round = Some(now);
        }
        self.last_call = Some(now);
    }

    /// Whether the members are known: the last read has told all.
    pub fn is_read(&self) -> bool {
        self.observed.is_some() && self.failure.is_none() && self.unreadable.is_empty()
    }

    /// Reads the members again at the next look.
    pub fn read_again(&mut self) {
        self.must_observe = true;
    }

    /// Since when this leader knows that the Pod should serve, or should not.
    pub fn turned_at(&self, uid: &str) -> Option<Timestamp> {
        self.pods.get(uid).map(|known| known.turned)
    }

    /// Whether a Pod has turned since the last successful read.
    pub(super) fn any_turned(&self, view: &View) -> bool {
        view.pods.keys().any(|uid| self.has_turned(uid))
    }

    /// Whether the next read may end the wait of a Pod that has turned off since the last one.
    pub fn awaits_absence(&self, view: &View) -> bool {
        let off = |uid: &&String| view.is_protected(uid) && !view.should_serve(uid);
        view.pods.keys().filter(off).any(|uid| self.has_turned(uid))
    }

    fn has_turned(&self, uid: &str) -> bool {
        let is_new = |turned| self.observed.is_none_or(|observed| observed < turned);
        self.turned_at(uid).is_some_and(is_new)
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

    /// Whether a wanted member serves, for its Pod and with its weight, as far as the last reads and changes tell.
    pub(super) fn does_serve_at(&self, view: &View, key: &MemberKey) -> bool {
        let member = view.wanted.get(key);
        let known = self.members.get(key);
        let serves = known.zip(member).is_some_and(|(known, member)| {
            known.presence == Presence::Serving && known.is_as_wanted(view, member)
        });
        serves && !self.unreadable.contains_key(&key.group)
    }

    /// Whether a read has told since the member began to drain whether connections are counted.
    pub(super) fn was_read_since(&self, known: &Known) -> bool {
        let began = known.drains_since.unwrap_or(known.since);
        self.observed.is_some_and(|observed| observed > began)
    }

    /// Whether no member is registered, as far as a complete read tells.
    pub fn is_empty(&self) -> bool {
        let absent = |known: &Known| known.presence == Presence::Absent;
        let complete = self.observed.is_some() && self.unreadable.is_empty() && !self.must_observe;
        complete && self.members.values().all(absent)
    }

    /// Takes the result of a read that began at `began`.
    pub fn observed(
        &mut self,
        view: &View,
        result: Result<Observation, AdapterError>,
        began: Timestamp,
        now: Timestamp,
    ) {
        let observation = match result {
            Ok(observation) => observation,
            Err(error) => {
                self.failure = Some(Failure::after(self.failure.as_ref(), error, view, now));
                return;
            }
        };
        let mut unreadable = observation.unreadable_groups;
        unreadable.sort_by(|a, b| a.0.cmp(&b.0));
        self.failure = None;
        let former = self.unreadable_failure.take();
        self.unreadable_failure = unreadable
            .first()
            .map(|(_, error)| Failure::after(former.as_ref(), error.clone(), view, now));
        self.unreadable = unreadable.into_iter().collect();
        self.must_observe = false;
        self.observed = Some(began);
        self.first_observed.get_or_insert(began);
        let mut listed = BTreeSet::new();
        let mut changed = false;
        for registration in observation.registrations {
            listed.insert(registration.member.key.clone());
            changed |= self.note_registration(registration, began, now);
        }
        let absent: Vec<_> = self.members.keys().cloned().collect();
        for key in absent {
            if !listed.contains(&key) && !self.unreadable.contains_key(&key.group) {
                changed |= self.note_presence(&key, Presence::Absent, now);
            }
        }
        let planned = view.planned_members().map(|(key, _)| &key.group);
        let told = listed.iter().map(|key| &key.group).chain(planned);
        let told = told.filter(|group| !self.unreadable.contains_key(*group));
        let mut read_groups: BTreeSet<_> = told.cloned().collect();
        // Only names in the present answer are kept: the load balancer chooses them.
        let unreadable = self.unreadable.keys();
        let known = unreadable.filter(|group| self.read_groups.contains(*group));
        read_groups.extend(known.cloned());
        self.read_groups = read_groups;
        self.note_absent_pods(view, began);
        self.forget_absent(view);
        self.forget_settled_failures(view);
        self.quiet_reads = match changed {
            true => 0,
            false => self.quiet_reads.saturating_add(1),
        };
    }

    /// Takes the result of changes.
    pub fn applied(
        &mut self,
        view: &View,
        changes: &Changes,
        mut results: Applied,
        now: Timestamp,
    ) {
        let mut failure = None;
        for member in changes.members() {
            let known = self.members.entry(member.key.clone());
            let known = known.or_insert_with(|| Known::new(member.clone(), now));
            let result = results.remove(&member.key).unwrap_or_else(|| {
                let text = "the load balancer has not said what became of the change";
                Err(AdapterError::Transient(text.to_owned()))
            });
            let presence = match result {
                Ok(presence) => {
                    if changes.register.contains(member) {
                        known.member = member.clone();
                    }
                    known.failure = None;
                    self.quiet_reads = 0;
                    Some(presence)
                }
                Err(error) => {
                    if matches!(error, AdapterError::Throttled(_)) {
                        failure = Some(error.clone());
                    }
                    // The change may have been made although the call failed.
                    let presence = match error {
                        AdapterError::Transient(_) => Some(Presence::Unknown),
                        AdapterError::Throttled(_) | AdapterError::Permanent(_) => None,
                    };
                    let former = known.failure.as_ref();
                    known.failure = Some(Failure::after(former, error, view, now));
                    presence
                }
            };
            if let Some(presence) = presence {
                self.must_observe |= presence == Presence::Unknown;
                self.note_presence(&member.key, presence, now);
            }
        }
        self.failure = failure.map(|error| Failure::after(self.failure.as_ref(), error, view, now));
    }

    /// Notes which Pods had no member in the last read, which began at `began`.
    fn note_absent_pods(&mut self, view: &View, began: Timestamp) {
        let reach = Reach::new(self.members.values());
        for (uid, pod) in &mut self.pods {
            let mut keys = view.planned_keys(uid);
            let reaching = reach.members(view, uid);
            keys.extend(reaching.map(|known| known.member.key.clone()));
            let mut keys = keys.into_iter();
            let has_ended = view.pods.get(uid).is_some_and(|input| input.ended);
            let is_present = keys.any(|key| {
                let known = self.members.get(&key);
                let registered = known.is_some_and(|known| known.presence != Presence::Absent);
                // Another Pod has the address of a Pod that has ended.
                let is_other = has_ended && view.wanted.contains_key(&key);
                registered && !is_other
            });
            let is_known = self.unreadable.is_empty() && began >= pod.turned;
            pod.absent_since = match is_present || !is_known {
                true => None,
                false => pod.absent_since.or(Some(began)),
            };
        }
    }

    /// Returns whether anything is new.
    fn note_registration(
        &mut self,
        registration: Registration,
        began: Timestamp,
        now: Timestamp,
    ) -> bool {
        let Registration {
            member,
            presence,
            connections,
        } = registration;
        let key = member.key.clone();
        let known = self.members.entry(key.clone());
        let known = known.or_insert_with(|| Known::new(member.clone(), now));
        let is_new = known.member != member;
        known.member = member;
        self.counts_connections |= connections.is_some();
        let before = known.connections.map(|(count, _)| count);
        let turned = self.note_presence(&key, presence, now);
        if let Some(known) = self.members.get_mut(&key) {
            known.connections = connections.map(|count| (count, began));
        }
        turned || is_new || before != connections
    }

    /// Returns whether the presence is new.
    fn note_presence(&mut self, key: &MemberKey, presence: Presence, now: Timestamp) -> bool {
        let Some(known) = self.members.get_mut(key) else {
            return false;
        };
        let kind = std::mem::discriminant(&presence);
        let is_new = kind != std::mem::discriminant(&known.presence);
        if is_new {
            known.since = now;
            known.connections = None;
        }
        known.drains_since = match presence {
            Presence::Draining { .. } => known.drains_since.or(Some(now)),
            Presence::Unknown => known.drains_since,
            Presence::Serving | Presence::Pending | Presence::Absent => None,
        };
        known.presence = presence;
        is_new
    }

    /// Forgets the failed changes of members that serve as they should: they have had an effect, or are not wanted any
    /// more.
    fn forget_settled_failures(&mut self, view: &View) {
        for known in self.members.values_mut() {
            let wanted = view.wanted.get(&known.member.key);
            let settled = wanted.is_some_and(|member| known.is_as_wanted(view, member));
            if settled && known.presence == Presence::Serving {
                known.failure = None;
            }
        }
    }

    /// Forgets absent members, except wanted ones that could not be registered.
    fn forget_absent(&mut self, view: &View) {
        self.members.retain(|key, known| {
            let failed = known.failure.is_some() && view.wanted.contains_key(key);
            known.presence != Presence::Absent || failed
        });
    }
}

impl Known {
    /// A member of which nothing is known yet.
    fn new(member: Member, now: Timestamp) -> Known {
        Known {
            member,
            presence: Presence::Absent,
            since: now,
            drains_since: None,
            connections: None,
            failure: None,
        }
    }

    /// Whether it is registered for the Pod and with the weight that it should have.
    pub fn is_as_wanted(&self, view: &View, wanted: &Member) -> bool {
        let uid = &self.member.pod.uid;
        let same_pod = uid.is_empty() || *uid == wanted.pod.uid;
        let observes = view.settings.control == Control::Observes;
        same_pod && (observes || self.member.weight == wanted.weight)
    }
}
