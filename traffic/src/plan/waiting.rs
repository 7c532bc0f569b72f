//! A member that is not as it should be, for the status of the employer and the reasons of Pods.

use std::fmt::{self, Display, Formatter};

use jiff::Timestamp;

use super::departure::drained_at;
use super::memory::Memory;
use super::open::OpenMember;
use super::step::{Stay, Step};
use super::view::View;
use crate::{MemberKey, Presence};

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
    /// Until when it stays on traffic, if it must go and stays for now.
    pub stays: Option<Stay>,
    /// When it is read again, if a call without an answer may still change it.
    pub may_change_until: Option<Timestamp>,
    /// Why its last change failed.
    pub error: Option<String>,
}

impl Waiting {
    /// The state of an open member.
    pub(super) fn for_member(view: &View, memory: &Memory, open: &OpenMember) -> Waiting {
        let registered_for = open.known.map(|known| &known.member.pod.name);
        let mut waiting = Waiting::of(view, memory, open.uid, &open.member.key);
        if !view.pods.contains_key(open.uid) {
            waiting.pod = registered_for.cloned().unwrap_or_default();
        }
        waiting.on = open.on;
        match open.step {
            Step::Wait { until, .. } => {
                let late = open.known.map(|known| &known.late);
                let may_change = match (open.on, &waiting.presence) {
                    (true, Presence::Serving) => {
                        late.is_some_and(|late| late.lost_by(open.uid).is_some())
                    }
                    (false, Presence::Absent | Presence::Draining { .. }) => {
                        late.is_some_and(|late| late.on().is_some())
                    }
                    _ => false,
                };
                match may_change {
                    true => waiting.may_change_until = until,
                    false => waiting.until = until,
                }
            }
            Step::Stay(stay) => waiting.stays = Some(stay),
            _ => {}
        }
        waiting
    }

    /// The state of a Pod that should not serve, at a member that somebody else has removed.
    pub(super) fn for_pod(view: &View, memory: &Memory, uid: &str, key: &MemberKey) -> Waiting {
        let mut waiting = Waiting::of(view, memory, uid, key);
        waiting.until = drained_at(view, memory, uid);
        waiting
    }

    fn of(view: &View, memory: &Memory, uid: &str, key: &MemberKey) -> Waiting {
        let known = memory.members.get(key);
        let failure = known.and_then(|known| known.failure.as_ref());
        let connections = known.and_then(|known| known.connections);
        let name = view.pods.get(uid).map(|input| input.pod.id.name.clone());
        Waiting {
            pod: name.unwrap_or_default(),
            member: key.clone(),
            on: false,
            presence: match memory.unreadable.contains_key(&key.group) {
                true => Presence::Unknown,
                false => known.map_or(Presence::Absent, |known| known.presence.clone()),
            },
            connections: connections.map(|(count, _)| count),
            until: None,
            stays: None,
            may_change_until: None,
            error: failure.map(|failure| failure.error.to_string()),
        }
    }
}

impl Display for Waiting {
    /// For example `traffic is still on at web/10.0.0.1:80: 12 connections, drained by 2026-01-01T00:00:20Z at the
    /// latest`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let state = match (self.on, &self.presence) {
            (true, Presence::Serving) if self.may_change_until.is_some() => {
                "traffic is on, and a call without an answer may still take it off"
            }
            (false, _) if self.may_change_until.is_some() => {
                "a call without an answer may still put traffic on"
            }
            (true, Presence::Serving) => "traffic is on for another Pod or with another weight",
            (true, Presence::Pending) => "the load balancer sends no requests yet",
            (true, _) => "traffic is not on yet",
            (false, Presence::Absent) => "requests may still arrive",
            (false, Presence::Draining { .. }) => "requests may still be open",
            (false, Presence::Unknown) => "it is not known whether traffic is off",
            (false, _) => match self.stays {
                Some(Stay::UntilItServesElsewhere) => {
                    "traffic stays on, until the Pod serves at its other members,"
                }
                Some(Stay::UntilOthersServe) => {
                    "traffic stays on, until the Pods that are selected now serve,"
                }
                None => "traffic is still on",
            },
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
        let whole = |time: Timestamp| time.round(jiff::Unit::Second).unwrap_or(time);
        if let Some(until) = self.until.map(whole) {
            add(f, format!("drained by {until} at the latest"))?;
        }
        if let Some(until) = self.may_change_until.map(whole) {
            add(f, format!("it is read again after {until}"))?;
        }
        match &self.error {
            Some(error) => add(f, format!("the last change failed: {error}")),
            None => Ok(()),
        }
    }
}
