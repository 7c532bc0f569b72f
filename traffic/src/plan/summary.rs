//! Counts and waiting members, for the status of the employer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::departure::drained_at;
use super::marks::Mark;
use super::memory::Memory;
use super::open::open_members;
use super::view::View;
use super::waiting::Waiting;
use crate::{AdapterError, Control, MemberKey};

/// Most waiting members, and held Pods, that a summary lists.
pub const LISTED: usize = 10;

/// The state of an employer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Members that serve, and should.
    pub registered: usize,
    /// Members that should serve and do not yet.
    pub pending: usize,
    /// Members that should be off traffic and are not yet.
    pub draining: usize,
    /// Members whose last change failed.
    pub failed: usize,
    /// The last failure, until a call succeeds.
    pub last_error: Option<String>,
    /// When a failed call is repeated.
    pub next_try: Option<Timestamp>,
    /// Members that are not as they should be, at most [`LISTED`].
    pub waiting: Vec<Waiting>,
    /// Pods that wait although none of the members above says why: name and reason, at most [`LISTED`].
    pub held: Vec<(String, String)>,
    /// UIDs of the Pods of which some member is pending or draining.
    counted: BTreeSet<String>,
}

impl Summary {
    /// The state now.
    pub fn of(view: &View, memory: &Memory, now: Timestamp) -> Summary {
        let mut summary = Summary::default();
        summary.add_members(view, memory, now);
        summary.add_pods_without_members(view);
        summary.add_observed_pods(view, memory, now);
        let failures = || memory.members.values().filter_map(|k| k.failure.as_ref());
        summary.failed = failures().count();
        let groups = memory.unreadable_failure.iter();
        let all = memory.failure.iter().chain(groups).chain(failures());
        let last = all.max_by_key(|failure| failure.retry_at);
        let refused = view.refused.as_ref().map(AdapterError::to_string);
        let last_error = last.map(|failure| failure.error.to_string());
        summary.last_error = refused.or(last_error).or(summary.last_error);
        summary.next_try = last.map(|failure| failure.retry_at);
        summary
    }

    /// Adds a Pod without which a move does not end, and the reason.
    pub fn add_unproven(&mut self, (pod, reason): (String, String)) {
        self.pending += 1;
        self.held.insert(0, (pod, reason));
        self.held.truncate(LISTED);
    }

    /// Adds `difference` to all times, from the clock of the plan to that of the reader.
    pub fn shift(&mut self, difference: SignedDuration) {
        let shift = |time: &mut Timestamp| *time = time.saturating_add(difference).unwrap_or(*time);
        self.next_try.iter_mut().for_each(shift);
        let untils = self.waiting.iter_mut().filter_map(|w| w.until.as_mut());
        untils.for_each(shift);
    }

    /// Adds the Pods that keep or lack their finalizer for a reason that no member tells.
    pub fn add_held(&mut self, view: &View, marks: &BTreeMap<String, Mark>) {
        if view.refused.is_some() {
            return; // one reason for all
        }
        for (uid, mark) in marks {
            let (serves, protected) = (view.should_serve(uid), view.is_protected(uid));
            let (Mark::Keep(reason), true) = (mark, serves != protected) else {
                continue;
            };
            if self.counted.contains(uid) {
                continue;
            }
            match serves {
                true => self.pending += 1,
                false => self.draining += 1,
            }
            if self.held.len() < LISTED {
                let name = view.pods.get(uid).map(|input| input.pod.id.name.clone());
                self.held.push((name.unwrap_or_default(), reason.clone()));
            }
        }
    }

    fn add_members(&mut self, view: &View, memory: &Memory, now: Timestamp) {
        let open = open_members(view, memory, now);
        for member in open.values() {
            self.add_waiting(member.uid, Waiting::for_member(view, memory, member));
        }
        let serves = |key: &&MemberKey| !open.contains_key(*key);
        self.registered = view.wanted.keys().filter(serves).count();
    }

    /// Adds the Pods that should serve and can't have a member.
    fn add_pods_without_members(&mut self, view: &View) {
        for (uid, input) in &view.pods {
            let obstacle = view.obstacle(uid).filter(|_| view.should_serve(uid));
            if let Some(reason) = obstacle {
                self.pending += 1;
                self.counted.insert(uid.clone());
                let name = &input.pod.id.name;
                self.last_error
                    .get_or_insert(format!("Pod {name}: {reason}"));
                if self.held.len() < LISTED {
                    self.held.push((name.clone(), reason));
                }
            }
        }
    }

    /// Adds the Pods whose members somebody else has removed, until the drain time has passed.
    fn add_observed_pods(&mut self, view: &View, memory: &Memory, now: Timestamp) {
        if view.settings.control != Control::Observes || view.deleting {
            return;
        }
        for uid in view.off_pods() {
            let drains = drained_at(view, memory, uid).is_some_and(|at| now < at);
            if let (true, Some(key)) = (drains, view.planned_keys(uid).first()) {
                self.add_waiting(uid, Waiting::for_pod(view, memory, uid, key));
            }
        }
    }

    fn add_waiting(&mut self, uid: &str, waiting: Waiting) {
        match waiting.on {
            true => self.pending += 1,
            false => self.draining += 1,
        }
        self.counted.insert(uid.to_owned());
        if self.waiting.len() < LISTED {
            self.waiting.push(waiting);
        }
    }
}
