//! What is known of one member or Pod, and of a failure.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::accepted::Accepted;
use super::backoff::{later, pause_after};
use super::late::Late;
use super::view::View;
use crate::{AdapterError, Control, Member, MemberKey, Presence};

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
    /// The last accepted change, until a read shows its effect.
    pub accepted: Option<Accepted>,
    /// Lost changes.
    pub late: Late,
}

impl Known {
    /// A member of which nothing is known yet.
    pub fn new(member: Member, now: Timestamp) -> Known {
        Known {
            member,
            presence: Presence::Absent,
            since: now,
            drains_since: None,
            connections: None,
            failure: None,
            accepted: None,
            late: Late::default(),
        }
    }

    /// Whether it is registered for the Pod and with the weight that it should have.
    pub fn is_as_wanted(&self, view: &View, wanted: &Member) -> bool {
        let uid = &self.member.pod.uid;
        let same_pod = uid.is_empty() || *uid == wanted.pod.uid;
        let observes = view.settings.control == Control::Observes;
        same_pod && (observes || self.member.weight == wanted.weight)
    }

    /// Whether its last change was accepted too often, so that only a read tells whether it was made.
    pub fn is_fruitless(&self) -> bool {
        self.accepted.is_some_and(Accepted::is_fruitless)
    }

    /// Whether it may get requests. What was pending at the last read may serve by now.
    pub fn is_on(&self) -> bool {
        matches!(self.presence, Presence::Serving | Presence::Pending)
    }

    /// Since when it gets no new requests, as far as was seen.
    pub fn drains_since(&self) -> Timestamp {
        self.drains_since.unwrap_or(self.since)
    }

    /// Whether a read that began after the draining has found no open connection.
    pub fn is_idle(&self) -> bool {
        self.connections
            .is_some_and(|(count, read)| count == 0 && read > self.drains_since())
    }

    /// Takes a presence. Returns whether it is new.
    pub fn turn(&mut self, presence: Presence, now: Timestamp) -> bool {
        let kind = std::mem::discriminant(&presence);
        let is_new = kind != std::mem::discriminant(&self.presence);
        if is_new {
            self.since = now;
            self.connections = None;
        }
        self.drains_since = match presence {
            Presence::Draining { .. } => self.drains_since.or(Some(now)),
            Presence::Unknown => self.drains_since,
            Presence::Serving | Presence::Pending | Presence::Absent => None,
        };
        self.presence = presence;
        is_new
    }
}

/// What is known of a Pod.
#[derive(Clone, Debug)]
pub(super) struct KnownPod {
    /// Whether it should serve.
    pub should_serve: bool,
    /// Whether somebody may wait until it is off traffic.
    pub protected: bool,
    /// The operations that keep it off, if it is off.
    pub operations: BTreeSet<String>,
    /// Since when it is Ready or not.
    pub ready_since: Option<String>,
    /// Whether the employer selects it.
    pub selected: bool,
    /// Whether it could not be looked at for a while.
    pub is_stale: bool,
    /// Whether it lacked a member when it last went off traffic.
    pub lacked: bool,
    /// Where it should serve.
    pub planned: BTreeSet<MemberKey>,
    /// Since when that is known.
    pub turned: Timestamp,
    /// When it turned last for another reason than the loss of its protection, which another program can cause.
    pub operated: Timestamp,
    /// If somebody else changes members: the first read, of those since then, from which on every read has found no
    /// member of the Pod.
    pub absent_since: Option<Timestamp>,
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
    /// The failure that comes after `former`, which was the last one if there is no success between them.
    pub fn after(
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
