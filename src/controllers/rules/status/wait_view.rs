//! The facts that explain why Pods wait for a rule object.

use super::StatusView;
use crate::domain::lifecycle::Stage;
use crate::domain::pod::Pod;

/// A Pod that waits in a stage, with the facts that explain its wait.
pub struct PodWait<'a> {
    pub pod: &'a Pod,
    pub stage: Stage,
    /// The name of the Pod that is first in the wait queue, if it comes before this Pod.
    pub behind: Option<&'a str>,
    /// Whether the Pod is down for a moment and may become available again by itself.
    pub is_briefly_down: bool,
    /// Whether no budget holds the Pod, because the Pod is deleted with its CollaSet.
    pub is_deleted_with_collaset: bool,
}

/// The facts that explain the waits for one rule object.
pub struct WaitView<'a> {
    /// The facts from which the status is computed.
    pub status: &'a StatusView<'a>,
    /// Whether admission denies every disruption, because the number of replicas of an owner is not known.
    pub denies_all: bool,
}

impl<'a> WaitView<'a> {
    pub fn new(status: &'a StatusView<'a>, denies_all: bool) -> WaitView<'a> {
        WaitView { status, denies_all }
    }
}
