//! Changes whose answer was lost. The load balancer may still make them, although a read shows nothing of them.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::accepted::Kind;

/// Until when lost changes of a member may still be made, by their direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Late {
    /// Changes that put the member on traffic: until when, by the UID of the Pod.
    on: BTreeMap<String, Timestamp>,
    /// A change that takes it off.
    pub off: Option<Timestamp>,
}

impl Late {
    /// A change was lost.
    pub fn add(&mut self, kind: Kind, uid: &str, until: Timestamp) {
        match kind {
            Kind::Register => drop(self.on.insert(uid.to_owned(), until)),
            Kind::Drain | Kind::Deregister => self.off = Some(until),
        }
    }

    /// Until when a Pod that serves at the member may lose it: it may be taken off, or be registered for another Pod.
    pub fn lost_by(&self, uid: &str) -> Option<Timestamp> {
        let others = self.on.iter().filter(|(other, _)| *other != uid);
        others.map(|(_, until)| *until).chain(self.off).max()
    }

    /// Until when it may be put on traffic, for any Pod.
    pub fn on(&self) -> Option<Timestamp> {
        self.on.values().max().copied()
    }

    /// The UIDs of the Pods for which it may be put on traffic.
    pub fn on_for(&self) -> impl Iterator<Item = &str> {
        self.on.keys().map(String::as_str)
    }

    /// Whether it may put the member on traffic for this Pod.
    pub fn may_reach(&self, uid: &str) -> bool {
        self.on.contains_key(uid)
    }

    /// When a read tells the end of the first one.
    pub fn until(&self) -> Option<Timestamp> {
        self.on.values().copied().chain(self.off).min()
    }

    /// A read began that shows what has happened until then.
    pub fn settle(&mut self, began: Timestamp) {
        self.on.retain(|_, until| began < *until);
        self.off = self.off.filter(|until| began < *until);
    }
}
