//! Takes the claim with which an operation takes a Pod off traffic.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PodMutator;
use crate::admission::bypass::{Approval, BypassCheck};
use crate::admission::overlap;
use crate::cluster::index::RuleEntry;
use crate::domain::lifecycle::Stage;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::ledger::protocol::ClaimOperation;

/// Maximum number of Pods of a wait queue that are checked for a Pod that waits longer. If rules keep all of these Pods
/// waiting for other reasons than the budget, a Pod behind them may go first, and the ledger decides.
const MAX_QUEUED_PODS: usize = 50;

impl PodMutator {
    /// Takes the claim that an operation needs to take the Pod offline, or to keep it there. The error says why the
    /// operation waits.
    pub(super) async fn claim_operation(
        &self,
        bypass: &BypassCheck<'_>,
        old: &Arc<Pod>,
        is_granted: bool,
    ) -> Result<Approval, String> {
        let context = &self.0;
        let rules = context.index.rules_covering_pod(old);
        let queues = if is_granted
            || overlap::check_overlap(&context.index, &rules, &BTreeSet::new(), old).is_err()
        {
            Vec::new() // such a claim is denied
        } else {
            self.queue_heads(old)
        };
        for (rule, head) in queues {
            if let Err(note) = bypass.may_bypass(Some(&rule)).await {
                let text = format!(
                    "Pod {} {}, which waits longer for the budget of PodTransitionRule {rule}",
                    old.metadata.name,
                    messages::queue_position(&head)
                );
                return Err(note.map_or(text.clone(), |note| format!("{text}; {note}")));
            }
        }
        let claimed = bypass
            .claim_or_bypass(context.new_disruption(old, ClaimOperation::Begin))
            .await;
        claimed.map_err(|refused| refused.denial_message(&old.metadata.name, (context.now)()))
    }

    /// The rule objects in whose wait queue other Pods wait, each with the Pod that is next. The Pod that waits longest
    /// goes first, so an operation that begins now joins the queue. A Pod that a rule keeps waiting whatever the budget
    /// has no turn.
    fn queue_heads(&self, pod: &Pod) -> Vec<(String, String)> {
        let state = self.0.index.read_state();
        let limiting = state
            .rules_covering(pod)
            .filter(|entry| entry.snapshot.rules.availability_limits().next().is_some());
        let head = |entry: &RuleEntry| {
            let others = entry.tally.pre_check_waiting().take(MAX_QUEUED_PODS);
            let mut others = others
                .filter(|uid| ***uid != *pod.metadata.uid)
                .filter_map(|uid| state.pod(&pod.metadata.namespace, uid))
                .filter(|other| !state.is_deleted_with_collaset(other));
            let next = others.find(|other| state.has_passing_operation(Stage::PreCheck, other))?;
            Some((
                entry.snapshot.rules.name.clone(),
                next.metadata.name.clone(),
            ))
        };
        limiting.filter_map(head).collect()
    }
}
