//! Changes whose answer was lost. The load balancer may still make them, although a read shows nothing of them.

use jiff::Timestamp;

use super::accepted::Kind;

/// Until when a lost change of a member may still be made, by its direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Late {
    /// A change that puts the member on traffic.
    pub on: Option<Timestamp>,
    /// UID of the Pod that it would be on traffic for.
    pub on_for: String,
    /// A change that takes it off.
    pub off: Option<Timestamp>,
}

impl Late {
    /// A change was lost.
    pub fn add(&mut self, kind: Kind, uid: &str, until: Timestamp) {
        match kind {
            Kind::Register => {
                self.on = Some(until);
                uid.clone_into(&mut self.on_for);
            }
            Kind::Drain | Kind::Deregister => self.off = Some(until),
        }
    }

    /// Whether it may put the member on traffic for this Pod.
    pub fn may_reach(&self, uid: &str) -> bool {
        self.on.is_some() && self.on_for == uid
    }

    /// When a read tells the end of the first one.
    pub fn until(&self) -> Option<Timestamp> {
        self.on.into_iter().chain(self.off).min()
    }

    /// A read began that shows what has happened until then.
    pub fn settle(&mut self, began: Timestamp) {
        for until in [&mut self.on, &mut self.off] {
            *until = until.filter(|until| began < *until);
        }
    }
}
