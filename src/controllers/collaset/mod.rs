//! Reconciles CollaSets (contract 6): each run reads the caches, makes a plan and writes what the plan asks for.
//! [`crate::domain::collaset`] decides; this module carries the decisions out. A lost answer, a refusal or a stale
//! cache never causes two Pods with the same instance ID.
//!
//! | File | Purpose |
//! |---|---|
//! | `observe` | reads the caches, once they contain this controller's own writes |
//! | `blocking_rules` | names the rules that hold waiting Pods, and their reasons |
//! | `unmanaged` | finds the Pods of `podToInclude` that lack the control label |
//! | `pod_lookups` | remembers the answers of the API server about such Pods |
//! | `reconcile_state` | remembers facts between two runs: backoff, written versions, held Pods |
//! | `refusals` | remembers what the API server refused, with a backoff for each |
//! | `backoff` | delays the new Pods of instances whose Pods have finished |
//! | `names` | keeps names of objects whose creation is not confirmed yet |
//! | `apply` | executes the stages of a plan |
//! | `owner` | patches owner references, and names the CollaSet as the subject of Events |
//! | `gc` | deletes empty ResourceContexts that no CollaSet uses |
//! | `requests` | sends requests with a deadline, and classifies their failures |

mod apply;
mod backoff;
mod blocking_rules;
mod gc;
mod names;
mod observe;
mod owner;
mod pod_lookups;
mod reconcile_state;
pub(in crate::controllers) mod refusals;
mod requests;
#[cfg(test)]
mod tests;
mod unmanaged;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache_waits::TermStart;
use super::decoration_board::DecorationBoard;
use super::{CollaSetName, ControllerContext};
use crate::api::collaset::CollaSet;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::collaset::planner;
use reconcile_state::ReconcileState;

pub struct CollaSetController {
    context: Arc<ControllerContext>,
    states: Mutex<HashMap<CollaSetName, Arc<ReconcileState>>>,
    /// The decorations that the plans of sets read.
    board: Arc<DecorationBoard>,
    term_start: TermStart,
}

/// If rules hold Pods of a set, the set is reconciled again after this time, because its conditions quote the rules.
const HELD_REQUEUE: Duration = Duration::from_secs(10);

impl CollaSetController {
    /// Creates the controller of one term. `board` shows the decorations that are published in this term.
    pub fn new(context: Arc<ControllerContext>, board: Arc<DecorationBoard>) -> Arc<Self> {
        Arc::new(CollaSetController {
            context,
            states: Mutex::default(),
            board,
            term_start: TermStart::default(),
        })
    }

    pub async fn reconcile(&self, name: CollaSetName) -> ReconcileOutcome {
        if !self.context.collasets {
            return ReconcileOutcome::Done;
        }
        let Some(set) = self.context.objects.sets.get(&name.0, &name.1) else {
            self.states.lock().remove(&name);
            return gc::delete_empty_resource_context(&self.context, &name).await;
        };
        let caught_up = self.term_start.wait_until_current(&self.context, &name.0);
        let pod_position = match caught_up.await {
            Ok(position) => position,
            Err(outcome) => return outcome,
        };
        let state = self.set_reconcile_state(name, &set);
        state.record_pod_write(pod_position);
        let generation = set.metadata.generation.unwrap_or(0);
        if let Some(outcome) = state.begin_reconcile(Instant::now(), generation) {
            return outcome;
        }
        let observed =
            match observe::observe_collaset(&self.context, &self.board, &set, &state).await {
                Ok(observed) => observed,
                Err(outcome) => return outcome,
            };
        let mut plan = planner::plan_set(&observed);
        if self.ends_with_namespace(&set) {
            plan = plan.status_alone();
        }
        plan.events.extend(state.canary_event(plan.pause.as_ref()));
        let execution = apply::PlanExecution::new(&self.context, &observed, &state);
        let outcome = apply::apply_plan(&execution, plan).await;
        requeue_outcome(outcome, &state, generation, !observed.held.is_empty())
    }

    /// Whether the set will be deleted because its namespace is being deleted. Until then only its status is kept up to
    /// date: every creation would be refused, and the namespace controller deletes the Pods.
    fn ends_with_namespace(&self, set: &CollaSet) -> bool {
        let index = self.context.index.read_state();
        let namespace = index.namespace(set.metadata.namespace.as_deref().unwrap_or_default());
        let created = set.metadata.creation_timestamp.as_ref().map(|at| at.0);
        set.metadata.deletion_timestamp.is_none()
            && namespace.is_some_and(|namespace| namespace.ended_after(created))
    }

    fn set_reconcile_state(&self, name: CollaSetName, set: &CollaSet) -> Arc<ReconcileState> {
        let uid = set.metadata.uid.as_deref().unwrap_or_default();
        let mut states = self.states.lock();
        let state = states.entry(name).or_default();
        if state.uid() != uid {
            *state = Arc::new(ReconcileState::new(uid)); // another set of the same name
        }
        Arc::clone(state)
    }
}

/// Time between two runs that look up Pods which no cache contains. It bounds the requests for a spec with many names.
const LOOKUP_REQUEUE: Duration = Duration::from_secs(1);

/// Decides when the set is reconciled again. `is_held` says whether rules hold Pods: the rules state their reasons in
/// their own status, and a change of that status does not enqueue the set.
fn requeue_outcome(
    outcome: apply::ApplyOutcome,
    state: &ReconcileState,
    generation: i64,
    is_held: bool,
) -> ReconcileOutcome {
    match outcome {
        apply::ApplyOutcome::Failed => {
            ReconcileOutcome::After(state.record_failure(Instant::now(), generation))
        }
        apply::ApplyOutcome::Moved => ReconcileOutcome::Retry,
        apply::ApplyOutcome::All(requeue) => {
            state.record_success();
            let held_requeue = is_held.then_some(HELD_REQUEUE);
            let lookup_requeue = state.has_more_lookups().then_some(LOOKUP_REQUEUE);
            let requeues = requeue
                .into_iter()
                .chain(held_requeue)
                .chain(lookup_requeue);
            requeues
                .min()
                .map_or(ReconcileOutcome::Done, ReconcileOutcome::After)
        }
    }
}
