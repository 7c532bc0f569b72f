//! Takes the result of a read into the memory.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::accepted::Effect;
use super::known::{Failure, Known};
use super::memory::Memory;
use super::view::View;
use crate::{AdapterError, MemberKey, Observation, Presence, Registration};

impl Memory {
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
        self.failure = None;
        self.must_observe = false;
        self.observed = Some(began);
        self.first_observed.get_or_insert(began);
        self.note_unreadable(view, observation.unreadable_groups, now);
        let mut listed = BTreeSet::new();
        let mut changed = false;
        for registration in observation.registrations {
            listed.insert(registration.member.key.clone());
            changed |= self.note_registration(registration, began, now);
        }
        changed |= self.note_unlisted(&listed, now);
        self.compare_accepted(view, began, now);
        self.note_read_groups(view, &listed);
        self.note_absent_pods(view, began);
        self.forget_absent(view);
        self.forget_settled_failures(view);
        self.quiet_reads = match changed {
            true => 0,
            false => self.quiet_reads.saturating_add(1),
        };
    }

    fn note_unreadable(
        &mut self,
        view: &View,
        mut groups: Vec<(String, AdapterError)>,
        now: Timestamp,
    ) {
        groups.sort_by(|a, b| a.0.cmp(&b.0));
        let former = self.unreadable_failure.take();
        self.unreadable_failure = groups
            .first()
            .map(|(_, error)| Failure::after(former.as_ref(), error.clone(), view, now));
        self.unreadable = groups.into_iter().collect();
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
        self.counts_connections |= connections.is_some();
        let known = self.members.entry(member.key.clone());
        let known = known.or_insert_with(|| Known::new(member.clone(), now));
        let is_new = known.member != member;
        known.member = member;
        let before = known.connections.map(|(count, _)| count);
        let turned = known.turn(presence, now);
        known.connections = connections.map(|count| (count, began));
        turned || is_new || before != connections
    }

    /// A member that the read has not listed is absent, if its group was read. Returns whether anything is new.
    fn note_unlisted(&mut self, listed: &BTreeSet<MemberKey>, now: Timestamp) -> bool {
        let mut changed = false;
        for (key, known) in &mut self.members {
            if !listed.contains(key) && !self.unreadable.contains_key(&key.group) {
                changed |= known.turn(Presence::Absent, now);
            }
        }
        changed
    }

    /// Compares what was accepted with what a read tells, and forgets the lost changes that it must have shown.
    fn compare_accepted(&mut self, view: &View, began: Timestamp, now: Timestamp) {
        for known in self.members.values_mut() {
            if self.unreadable.contains_key(&known.member.key.group) {
                continue;
            }
            let might_serve = known.late.on().is_some();
            known.late.settle(began);
            if might_serve && known.late.on().is_none() && known.drains_since.is_some() {
                known.drains_since = Some(now); // it may have served, and drained again, since the last read
            }
            let Some(accepted) = known.accepted.take() else {
                continue;
            };
            let wanted = view.wanted.get(&known.member.key);
            let is_as_wanted = wanted.is_none_or(|wanted| known.is_as_wanted(view, wanted));
            let effect = accepted.compare(view.settings.control, &known.presence, is_as_wanted);
            match effect {
                Effect::Seen => known.failure = None,
                Effect::Open => {
                    known.failure = None;
                    known.accepted = Some(accepted);
                }
                Effect::Missing(left, complaint) => {
                    known.accepted = Some(left);
                    let error = complaint.map(AdapterError::Transient);
                    let former = known.failure.as_ref();
                    let failure = error.map(|error| Failure::after(former, error, view, now));
                    known.failure = failure.or(known.failure.take());
                }
            }
        }
    }

    fn note_read_groups(&mut self, view: &View, listed: &BTreeSet<MemberKey>) {
        let planned = view.planned_members().map(|(key, _)| &key.group);
        let told = listed.iter().map(|key| &key.group).chain(planned);
        let told = told.filter(|group| !self.unreadable.contains_key(*group));
        // Only names in the present answer are kept: the load balancer chooses them.
        let unreadable = self.unreadable.keys();
        let known = unreadable.filter(|group| self.read_groups.contains(*group));
        self.read_groups = told.chain(known).cloned().collect();
    }
}
