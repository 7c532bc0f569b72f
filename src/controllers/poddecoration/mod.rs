//! Reconciles PodDecorations (contract 1.4): each run reads the caches, makes a plan, publishes what the plans of
//! CollaSets read, and writes what the plan asks for. [`crate::domain::decoration`] decides; this module carries the
//! decisions out.
//!
//! A run publishes before it writes, so a refused write never delays what CollaSets read. After each write, the run
//! plans again from the caches, which contain the write, and publishes again.
//!
//! | File | Purpose |
//! |---|---|
//! | `observe` | collects what a plan reads, and plans a PodDecoration whose spec can't be read |
//! | `publish` | publishes a plan's value, and wakes the CollaSets that read it |
//! | `apply` | makes the next write of a plan |
//! | `execution` | sends one write, and remembers its refusal |
//! | `revisions` | writes ControllerRevisions |
//! | `memory` | what is remembered of a PodDecoration between two runs |

mod apply;
mod execution;
mod memory;
mod observe;
mod publish;
mod revisions;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache_waits::{TermStart, UNSYNCED_RETRY, wait_for_pod_cache};
use super::decoration_board::DecorationBoard;
use super::run_pace::MIN_RUN_INTERVAL;
use super::{ControllerContext, DecorationName, Queues};
use crate::cluster::objects::CachedDecoration;
use crate::cluster::work_queue::ReconcileOutcome;
use apply::NextStep;
use execution::Execution;
use memory::DecorationMemory;

/// Maximum number of plans in one run. A run needs one for each write and one more; the rest follows in the next run.
const MAX_PLANS: usize = 16;

pub struct PodDecorationController {
    context: Arc<ControllerContext>,
    board: Arc<DecorationBoard>,
    queues: Arc<Queues>,
    memories: Mutex<HashMap<DecorationName, Arc<DecorationMemory>>>,
    term_start: TermStart,
}

impl PodDecorationController {
    /// Creates the controller of one term. It publishes on `board` and wakes the keys of `queues`.
    pub fn new(
        context: Arc<ControllerContext>,
        board: Arc<DecorationBoard>,
        queues: Arc<Queues>,
    ) -> Arc<Self> {
        Arc::new(PodDecorationController {
            context,
            board,
            queues,
            memories: Mutex::default(),
            term_start: TermStart::default(),
        })
    }

    pub async fn reconcile(&self, name: DecorationName) -> ReconcileOutcome {
        if !self.context.collasets {
            return ReconcileOutcome::Done;
        }
        if !self.context.index.listed_kinds().has_collaset_kinds() {
            return ReconcileOutcome::After(UNSYNCED_RETRY);
        }
        let Some(cached) = self.cached(&name) else {
            return self.forget(&name);
        };
        let caught_up = self.term_start.wait_until_current(&self.context, &name.0);
        let pod_position = match caught_up.await {
            Ok(position) => position,
            Err(outcome) => return outcome,
        };
        let memory = self.memory(&name, &cached);
        let generation = cached.object.metadata.generation.unwrap_or(0);
        if let Some(remaining) = memory.pace().begin_run(Instant::now(), generation) {
            return ReconcileOutcome::Early(remaining);
        }
        match wait_for_pod_cache(&self.context, pod_position).await {
            Ok(()) => self.plan_and_write(&name, &memory).await,
            Err(outcome) => outcome,
        }
    }

    /// Plans, publishes and makes one write, again and again until no write is left that may be made now.
    async fn plan_and_write(
        &self,
        name: &DecorationName,
        memory: &DecorationMemory,
    ) -> ReconcileOutcome {
        for _ in 0..MAX_PLANS {
            let Some(cached) = self.cached(name) else {
                return self.forget(name);
            };
            if cached.object.metadata.uid.as_deref() != Some(memory.uid()) {
                return ReconcileOutcome::Retry; // another PodDecoration of this name
            }
            let begin = Instant::now();
            let observed = observe::observe_decoration(&self.context, &self.board, &cached, memory);
            let plan = observe::plan(&observed, cached.unreadable.as_deref());
            memory.pace().record_plan(begin.elapsed());
            publish::publish(self, &name.0, &plan.publish);
            let execution = Execution {
                context: &self.context,
                memory,
                object: &observed.object,
            };
            if let Some(fault) = &cached.unreadable {
                execution.announce_unreadable(fault);
            }
            match execution.make_next_write(&plan).await {
                NextStep::PlanAgain => {}
                NextStep::Stale => return ReconcileOutcome::Retry,
                NextStep::Wait(None) => return ReconcileOutcome::Done,
                NextStep::Wait(Some(pause)) => return ReconcileOutcome::After(pause),
            }
        }
        ReconcileOutcome::After(MIN_RUN_INTERVAL)
    }

    /// The PodDecoration is gone. Its Pods lose the decoration.
    fn forget(&self, name: &DecorationName) -> ReconcileOutcome {
        self.memories.lock().remove(name);
        publish::withdraw(self, name);
        ReconcileOutcome::Done
    }

    fn cached(&self, (namespace, name): &DecorationName) -> Option<Arc<CachedDecoration>> {
        self.context.objects.decorations.get(namespace, name)
    }

    fn memory(&self, name: &DecorationName, cached: &CachedDecoration) -> Arc<DecorationMemory> {
        let uid = cached.object.metadata.uid.as_deref().unwrap_or_default();
        let mut memories = self.memories.lock();
        let memory = memories.entry(name.clone()).or_default();
        if memory.uid() != uid {
            *memory = Arc::new(DecorationMemory::new(uid)); // another PodDecoration of the same name
        }
        Arc::clone(memory)
    }
}
