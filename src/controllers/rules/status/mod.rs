//! Computes the status of a PodTransitionRule, except the ledger: the counts for users and tools, and the reasons why
//! Pods wait. Lists are sorted, and the status is written only if it differs. Its size is bounded for any number of
//! Pods.

mod conditions;
mod details;
mod patch;
mod refusals;
mod wait_reasons;
mod wait_view;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use self::details::{all_stage_waits, count_reasons, exceeds_details};
pub use self::patch::rule_status_patch;
pub use self::refusals::WaitRefusal;
pub use self::wait_reasons::WaitReasonCounts;
use super::super::rule_endpoints::CallStates;
use crate::cluster::index::{IndexState, RuleEntry};
use crate::domain::rules::budget::BudgetGauges;
use crate::domain::rules::conditions::{
    LedgerStorage, NamespaceState, SelectorMatches, UnknownReplicasOwners,
};
use crate::ledger::store::Uid;

/// Facts about a rule object that are not counts of its Pods.
pub struct StatusInputs {
    pub namespace_state: NamespaceState,
    /// Whether deletions and evictions go through the lifecycle first (feature gate `GraceDeleteWebhook`).
    pub grace_delete: bool,
    /// Which Pods the selector of the rule object matches.
    pub matches: SelectorMatches,
    /// The owners of its Pods that the last run could not read, each as a clause of a sentence.
    pub unreadable: Vec<String>,
    /// How its ledger was repaired, as a clause of a sentence; `None` if there was no repair.
    pub ledger_repair_message: Option<String>,
    /// Whether the API server stores the ledger as it is written.
    pub ledger_storage: LedgerStorage,
}

/// Facts about the Pods that wait for a rule object, besides its gauges.
#[derive(Clone, Debug, Default)]
pub struct QueueFacts {
    /// The Pod that is first in the wait queue.
    pub head: Option<Uid>,
    /// Pods that hold a claim. A budget without headroom does not refuse these Pods.
    pub claimed: BTreeSet<Uid>,
    /// The counted reasons, if more Pods wait than `details` lists.
    pub counted: Option<Arc<WaitReasonCounts>>,
}

/// How soon a status is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusUrgency {
    /// Pods wait for a verdict of an endpoint that is not stored yet.
    Verdicts,
    /// A condition differs, and a user may have to act.
    Conditions,
    /// Only counts, names and reasons differ, which are information for users.
    Counts,
}

/// The facts from which the status of one rule object is computed.
pub struct StatusView<'a> {
    /// The index that contains the rule object.
    pub state: &'a IndexState,
    pub entry: &'a RuleEntry,
    pub gauges: BudgetGauges,
    /// The states of its endpoint calls; `None` if they are not known yet.
    pub call_states: Option<&'a CallStates>,
    /// The facts that are not counts of its Pods.
    pub inputs: &'a StatusInputs,
    /// The facts about the Pods that wait.
    pub queue: &'a QueueFacts,
}

impl StatusView<'_> {
    /// Whether the status shows a limit. The limit is left out if it is not enforced or if no Pod is expected.
    /// Otherwise the limit would look like a budget that is used up.
    fn has_limit(&self) -> bool {
        self.entry
            .snapshot
            .rules
            .availability_limits()
            .next()
            .is_some()
            && self.gauges.expected > 0
            && self.inputs.namespace_state == NamespaceState::default()
            && self.inputs.matches != SelectorMatches::FilteredOut
    }

    /// The owners whose number of replicas is not known.
    fn unknown_replicas_owners(&self) -> UnknownReplicasOwners {
        UnknownReplicasOwners {
            unreadable: self.inputs.unreadable.clone(),
            ..self.entry.tally.unknown_replicas_owners()
        }
    }
}

#[cfg(test)]
mod tests;
