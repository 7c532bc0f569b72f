//! The output of a plan: the value that sets read, and the writes that the controller makes.

use std::sync::Arc;

use crate::api::poddecoration::PodDecorationStatus;
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::Decoration;
use crate::domain::decoration::revision::RevisionWrite;

/// What a PodDecoration needs. The controller publishes the value first and then makes the writes in the order of the
/// fields. The next plan starts from the objects that exist then.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecorationPlan {
    /// The value that the plans of CollaSets read. It does not depend on the success of a write.
    pub publish: Decoration,
    /// Whether to add the finalizer of contract 2.3, before the revision is written.
    pub add_finalizer: bool,
    /// The change of the annotation [`crate::api::keys::HELD_BACK`]: `Some(None)` removes it. It is stored before the
    /// status, because a status by Operating hides that Kuperator wrote the former one.
    pub held_back: Option<Option<String>>,
    /// The write that the revision of the present spec needs.
    pub revision: Option<RevisionWrite>,
    /// Revisions to delete.
    pub delete_revisions: Vec<Arc<Revision>>,
    /// The new status; `None` if the stored status is already right.
    pub status: Option<PodDecorationStatus>,
    /// Events about the PodDecoration, sent once the status is stored.
    pub events: Vec<DecorationEvent>,
    /// Whether to remove the finalizer, after all other writes.
    pub remove_finalizer: bool,
    /// Nanoseconds after which the controller plans again even if no object has changed.
    pub requeue_after_nanos: Option<u64>,
}

/// An Event about the PodDecoration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecorationEvent {
    /// Whether the type of the Event is Warning. Otherwise the type is Normal.
    pub warning: bool,
    /// One word in CamelCase.
    pub reason: &'static str,
    /// The message, a full sentence.
    pub message: String,
}

impl DecorationPlan {
    /// Whether the plan contains no write. The published value, Events and the time of the next plan do not count.
    pub fn is_empty(&self) -> bool {
        !self.add_finalizer
            && !self.remove_finalizer
            && self.held_back.is_none()
            && self.revision.is_none()
            && self.delete_revisions.is_empty()
            && self.status.is_none()
    }
}
