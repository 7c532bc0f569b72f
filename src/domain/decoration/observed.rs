//! The input of a plan: a PodDecoration and the CollaSets of its namespace, as the controller has read them.

use std::sync::Arc;

use super::Decoration;
use crate::api::collaset::CollaSet;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::observed::{InstancePool, Revision};
use crate::domain::pod::Pod;

/// All objects that a plan reads. They come from caches that already contain the controller's own last writes.
#[derive(Clone, Debug)]
pub struct ObservedDecoration {
    /// The PodDecoration.
    pub object: Arc<PodDecoration>,
    /// ControllerRevisions that the PodDecoration controls, by its UID.
    pub revisions: Vec<Arc<Revision>>,
    /// All CollaSets of the namespace.
    pub sets: Vec<SetOfNamespace>,
    /// The Pods of the namespace, except terminating ones, that have the PodDecoration among their owners and that no
    /// CollaSet of `sets` controls. If the PodDecoration went before these references are removed, the garbage collector
    /// would delete the Pods that have no other owner.
    pub referring_pods: Vec<Arc<Pod>>,
    /// The published decorations of the namespace. The labels that they set on Pods select nobody.
    pub others: Vec<Arc<Decoration>>,
    /// The value that was published before for this PodDecoration. `None` after a change of the leader.
    pub last: Option<Arc<Decoration>>,
    /// The writes that the API server has refused.
    pub refused: RefusedWrites,
    /// Wall clock time in nanoseconds since 1970.
    pub now_nanos: u64,
}

/// A CollaSet with the objects on which the decorations of its members depend.
#[derive(Clone, Debug)]
pub struct SetOfNamespace {
    /// The CollaSet.
    pub set: Arc<CollaSet>,
    /// ControllerRevisions that the set controls.
    pub revisions: Vec<Arc<Revision>>,
    /// Pods that the set controls, in any phase.
    pub pods: Vec<Arc<Pod>>,
    /// The set's pool of instance IDs; `None` if the ResourceContext does not exist.
    pub pool: Option<Arc<InstancePool>>,
}

/// Recent refusals of the API server. They may be forgotten at any time: the controller then tries the write again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedWrites {
    /// Why the revision of the present spec can't be written.
    pub revision: Option<String>,
    /// Why the finalizer can't be added or removed.
    pub finalizer: Option<String>,
}
