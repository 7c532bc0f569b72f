//! Counts and waiting members, for the status of the employer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use jiff::{SignedDuration, Timestamp};

use super::departure::{Departure, departure, drained_at};
use super::marks::Mark;
use super::memory::Memory;
use super::view::View;
use crate::{AdapterError, Control, MemberKey, Presence};

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
    /// Pods whose finalizer stays although none of the members above says why: name and reason, at most [`LISTED`].
    pub held: Vec<(String, String)>,
    /// UIDs of the Pods of which some member is pending or draining.
    counted: BTreeSet<String>,
}

/// A member that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Name of the Pod; empty if it is not known.
    pub pod: String,
    /// The member.
    pub member: MemberKey,
    /// Whether the member should serve.
    pub on: bool,
    /// What the load balancer does with it.
    pub presence: Presence,
    /// Open connections, if the load balancer counts them.
    pub connections: Option<u64>,
    /// When it counts as drained.
    pub until: Option<Timestamp>,
    /// Whether it must go, but stays until its Pod serves at its other members.
    pub stays: bool,
    /// Why its last change failed.
    pub error: Option<String>,
}

impl Summary {
    /// The state now.
    pub fn of(view: &View, memory: &Memory, now: Timestamp) -> Summary {
        let mut summary = Summary::default();
        let add = |summary: &mut Summary, uid: &str, waiting: Waiting| {
            summary.counted.insert(uid.to_owned());
            if summary.waiting.len() < LISTED {
                summary.waiting.push(waiting);
            }
        };
        for (key, member) in &view.wanted {
            let waiting = Waiting::of(view, memory, key, &member.pod.uid, now);
            match waiting.presence {
                Presence::Serving if waiting.error.is_none() => summary.registered += 1,
                _ => {
                    summary.pending += 1;
                    add(&mut summary, &member.pod.uid, waiting);
                }
            }
        }
        for uid in view.pods.keys().filter(|uid| view.should_serve(uid)) {
            if let Some(reason) = view.obstacle(uid) {
                summary.pending += 1;
                summary.counted.insert(uid.clone());
                let name = view.pods.get(uid).map_or("", |input| &input.pod.id.name);
                summary
                    .last_error
                    .get_or_insert(format!("Pod {name}: {reason}"));
            }
        }
        for (key, known) in &memory.members {
            let is_left = view.deleting && view.settings.control == Control::Observes;
            let leaves = !view.wanted.contains_key(key) && !is_left;
            if leaves && departure(view, memory, known, now) != Departure::Gone {
                summary.draining += 1;
                let behind = view.pod_behind(&known.member);
                let uid = behind.map_or(&known.member.pod.uid, |input| &input.pod.id.uid);
                add(&mut summary, uid, Waiting::of(view, memory, key, uid, now));
            }
        }
        for uid in view.pods.keys() {
            let waits = !view.should_serve(uid) && view.is_protected(uid) && !view.deleting;
            let drained = drained_at(view, memory, uid).filter(|at| now < *at);
            let observes = view.settings.control == Control::Observes;
            if let (true, true, Some(_), Some(key)) =
                (observes, waits, drained, view.planned_keys(uid).first())
            {
                summary.draining += 1;
                let waiting = Waiting::of(view, memory, key, uid, now);
                add(&mut summary, uid, waiting);
            }
        }
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
}

impl Summary {
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
}

impl Waiting {
    /// The state of one member of the Pod with this UID.
    pub(super) fn of(
        view: &View,
        memory: &Memory,
        key: &MemberKey,
        uid: &str,
        now: Timestamp,
    ) -> Waiting {
        let known = memory.members.get(key);
        let on = view.wanted.contains_key(key);
        let leaves = known
            .filter(|_| !on)
            .map(|known| departure(view, memory, known, now));
        let until = match (view.settings.control, leaves) {
            _ if on => None,
            (Control::Observes, _) => drained_at(view, memory, uid),
            (_, Some(Departure::Waits { until, .. })) => until,
            _ => None,
        };
        let name = view.pods.get(uid).map(|input| input.pod.id.name.clone());
        Waiting {
            pod: name
                .or_else(|| known.map(|k| k.member.pod.name.clone()))
                .unwrap_or_default(),
            member: key.clone(),
            on,
            presence: match memory.unreadable.contains_key(&key.group) {
                true => Presence::Unknown,
                false => known.map_or(Presence::Absent, |known| known.presence.clone()),
            },
            connections: known.and_then(|k| k.connections).map(|(count, _)| count),
            until,
            stays: leaves == Some(Departure::Stays),
            error: known
                .and_then(|known| known.failure.as_ref())
                .map(|failure| failure.error.to_string()),
        }
    }
}

impl Display for Waiting {
    /// For example `traffic is still on at web/10.0.0.1:80: 12 connections, drained by 2026-01-01T00:00:20Z at the
    /// latest`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = match (self.on, &self.presence) {
            (true, Presence::Serving) => "traffic is on",
            (true, Presence::Pending) => "the load balancer sends no requests yet",
            (true, _) => "traffic is not on yet",
            (false, Presence::Absent) => "requests may still arrive",
            (false, Presence::Draining { .. }) => "requests may still be open",
            (false, Presence::Unknown) => "it is not known whether traffic is off",
            _ if self.stays => "traffic stays on, until the Pod serves at its other members,",
            (false, _) => "traffic is still on",
        };
        write!(f, "{state} at {}", self.member)?;
        let mut separator = ": ";
        let mut add = |f: &mut Formatter<'_>, text: String| {
            let written = write!(f, "{separator}{text}");
            separator = ", ";
            written
        };
        match self.connections.filter(|_| !self.on) {
            Some(1) => add(f, "1 connection".to_owned())?,
            Some(count) => add(f, format!("{count} connections"))?,
            None => {}
        }
        if let Some(until) = self.until {
            let until = until.round(jiff::Unit::Second).unwrap_or(until);
            add(f, format!("drained by {until} at the latest"))?;
        }
        match &self.error {
            Some(error) => add(f, format!("the last call failed: {error}")),
            None => Ok(()),
        }
    }
}
