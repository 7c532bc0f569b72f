//! The lifecycle of a CollaSet's own operations: ID `collaset`, types `update` and `scale-in` (contract 3.1).

use crate::api::keys;
use crate::domain::grace;
use crate::domain::lifecycle::{LabelPatch, operator};
use crate::domain::pod::Pod;

/// The lifecycle ID of both operations. A change of type is a fresh run (contract 10.1 Q4).
const ID: &str = "collaset";

/// An operation of a CollaSet on a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// To another revision.
    Update,
    /// Away.
    ScaleIn,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Not begun.
    Idle,
    /// Begun; the Pod may still serve. Or undone, and not yet over.
    Waiting,
    /// The Pod may be operated on after so many nanoseconds.
    Delayed(u64),
    /// The Pod may be operated on.
    Allowed,
}

impl Operation {
    const fn type_(self) -> &'static str {
        match self {
            Operation::Update => "update",
            Operation::ScaleIn => "scale-in",
        }
    }

    /// Begins it; `deletes` tells cooperators that the Pod will not come back.
    pub fn begin(self, pod: &Pod, deletes: bool, now: u64) -> LabelPatch {
        operator::begin(pod, ID, self.type_(), deletes, now)
    }

    /// Cancels it, and the word that the Pod would go (contract 10.1 Q6).
    pub fn undo(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::undo(ID, self.type_());
        forget_deletion(pod, &mut labels);
        labels
    }

    /// Says that it is done, and takes back the word that the Pod would go.
    pub fn finish(self, pod: &Pod) -> LabelPatch {
        let mut labels = operator::finish(pod, ID);
        forget_deletion(pod, &mut labels);
        labels
    }

    /// Where it stands, with `delay` nanoseconds to wait once it is allowed.
    pub fn turn(self, pod: &Pod, delay: u64, now: u64) -> Turn {
        if !operator::is_during(pod, ID, self.type_()) {
            return Turn::Idle;
        }
        // Until an undo has been carried out nothing begins in its place: two that want different things of the Pod
        // would take turns for ever.
        if self.is_undone(pod) || !operator::is_allowed(pod, ID, self.type_(), 0, now) {
            return Turn::Waiting;
        }
        if operator::is_allowed(pod, ID, self.type_(), delay, now) {
            return Turn::Allowed;
        }
        let since = pod
            .label(&keys::Family::Operate.key(ID))
            .and_then(|s| s.parse::<u64>().ok())
            .unwrap_or(now);
        Turn::Delayed((since.saturating_add(delay)).saturating_sub(now).max(1))
    }

    fn is_undone(self, pod: &Pod) -> bool {
        pod.label(&keys::Family::UndoOperationType.key(ID)) == Some(self.type_())
    }

    /// Whether it has begun and is not over.
    pub fn is_on(self, pod: &Pod) -> bool {
        self.turn(pod, 0, 0) != Turn::Idle
    }
}

/// Whether the Pod is on its way out through the lifecycle `pod-delete`, or told to go that way.
pub fn is_leaving(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some() || operator::is_during(pod, grace::ID, grace::TYPE)
}

fn forget_deletion(pod: &Pod, labels: &mut LabelPatch) {
    if pod.label(keys::PREPARING_TO_DELETE).is_some() && !is_leaving(pod) {
        labels.0.insert(keys::PREPARING_TO_DELETE.to_owned(), None);
    }
}
