//! Changes that the load balancer has accepted, and that a read has not shown. A load balancer that accepts a change again
//! and again without making it is not asked without a pause.

use crate::{Control, Presence};

/// So many accepted changes without an effect are a failure. Fewer can be a read that is late.
const FRUITLESS: u32 = 3;

/// A change of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Register,
    Drain,
    Deregister,
}

/// The last change that was accepted, until a read shows its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    kind: Kind,
    /// How often it was accepted in a row.
    count: u32,
    /// Whether a read has been compared with it.
    compared: bool,
}

/// What a read tells of an accepted change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Seen,
    /// It may still come.
    Open,
    /// What is left of it; and what is wrong, once after each change that comes after too many.
    Missing(Accepted, Option<String>),
}

impl Accepted {
    /// The change was accepted once more.
    pub fn again(before: Option<Accepted>, kind: Kind) -> Accepted {
        let before = before.filter(|before| before.kind == kind);
        Accepted {
            kind,
            count: before.map_or(0, |before| before.count).saturating_add(1),
            compared: false,
        }
    }

    /// Whether it was not accepted before.
    pub fn is_first(self) -> bool {
        self.count == 1
    }

    /// Whether it is a removal that no read has been compared with.
    pub fn is_unread_removal(self) -> bool {
        self.kind == Kind::Deregister && !self.compared
    }

    /// Whether it was accepted too often.
    pub fn is_fruitless(self) -> bool {
        self.count >= FRUITLESS
    }

    /// Compares it with a read. `is_as_wanted` says whether a member that should serve has the Pod and the weight that it
    /// should have.
    pub fn compare(mut self, control: Control, presence: &Presence, is_as_wanted: bool) -> Effect {
        match (self.kind, presence) {
            (_, Presence::Unknown) | (Kind::Register, Presence::Pending) => Effect::Open,
            (Kind::Register, Presence::Serving) if is_as_wanted => Effect::Seen,
            (Kind::Drain, Presence::Draining { .. } | Presence::Absent)
            | (Kind::Deregister, Presence::Absent) => Effect::Seen,
            (Kind::Deregister, Presence::Draining { .. }) if control == Control::Deregisters => {
                Effect::Seen
            }
            // It lets open requests end, which is no fault.
            (Kind::Deregister, Presence::Draining { .. }) => {
                self.compared = true;
                Effect::Missing(self, None)
            }
            _ => {
                let is_new = !std::mem::replace(&mut self.compared, true);
                let complains = is_new && self.is_fruitless();
                Effect::Missing(self, complains.then(|| self.kind.complaint()))
            }
        }
    }
}

impl Kind {
    fn complaint(self) -> String {
        let (change, instead) = match self {
            Kind::Register => (
                "to register the member",
                "does not list it as serving, for its Pod and with its weight",
            ),
            Kind::Drain => ("to drain the member", "still lists it as serving"),
            Kind::Deregister => ("to remove the member", "still lists it"),
        };
        format!("the load balancer has accepted again and again {change}, and {instead}")
    }
}
