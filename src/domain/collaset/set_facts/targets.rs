//! The compositions that the Pods of members should have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::decorations::ComposedOrFailure;
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::DecorationRevisions;

/// The targets of all members that an update may change, by instance ID.
pub type Targets = BTreeMap<i64, Target>;

/// What the Pod of a member should be made of.
#[derive(Clone, Debug)]
pub struct Target {
    /// The revision of the template: the updated revision if the member is in the scope of the rollout, otherwise the
    /// Pod's own revision.
    pub template: Arc<Revision>,
    /// Whether the rollout of the template includes the member.
    pub in_scope: bool,
    /// The decorations.
    pub decorations: DecorationRevisions,
    /// The template with the decorations.
    pub goal: ComposedOrFailure,
    /// Whether the Pod lacks something that the target has. Always false for a paused set.
    pub is_behind: bool,
    /// Whether only the decorations of the Pod differ.
    pub by_decorations: bool,
    /// Whether the set is paused, and the Pod will get other decorations when it goes on.
    pub is_postponed: bool,
    /// Names of the PodDecorations for which labels matter that only this Pod has, and that can't be applied or removed in
    /// place.
    pub by_single_labels: BTreeSet<String>,
}

impl Target {
    /// The name of the target's composition; empty if a decoration can't be applied.
    pub fn name(&self) -> &str {
        match &self.goal {
            Ok(goal) => goal.name(),
            Err(_) => "",
        }
    }
}
