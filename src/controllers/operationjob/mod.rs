//! Reconciles OperationJobs (contract 1.5): each run reads the caches, makes a plan, and makes the writes that the plan
//! asks for. [`crate::domain::operationjob`] decides; this module carries the decisions out.
//!
//! A write of a Pod rests on what is stored in the status of the job, so that a crash between two writes loses nothing
//! and repeats nothing. After its writes, a run plans again from the caches, which contain them.
//!
//! | File | Purpose |
//! |---|---|
//! | `observe` | collects what a plan reads |
//! | `execution` | makes the writes of a plan on the job |
//! | `target_writes` | sends the requests of a plan for the Pods |
//! | `recreate_requests` | sends requests about ContainerRecreateRequests |
//! | `unanswered_writes` | writes of Pods whose outcome is not known |
//! | `unstored_fields` | the fields of the status that the API server drops |
//! | `memory` | what is remembered of a job between two runs |

mod execution;
mod memory;
mod observe;
mod recreate_requests;
mod target_writes;
#[cfg(test)]
mod tests;
mod unanswered_writes;
mod unstored_fields;

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache_waits::{TermStart, UNSYNCED_RETRY, wait_for_pod_cache};
use super::run_pace::MIN_RUN_INTERVAL;
use super::{ControllerContext, JobName};
use crate::cluster::objects::CachedJob;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::operationjob::plan::plan_job;
use execution::{Execution, RunStep};
use memory::JobMemory;
use recreate_requests::RequestApi;

/// Maximum number of plans in one run. The rest follows in the next run.
const MAX_PLANS: usize = 16;

pub struct OperationJobController {
    context: Arc<ControllerContext>,
    memories: Mutex<HashMap<JobName, Arc<JobMemory>>>,
    request_api: RequestApi,
    term_start: TermStart,
}

impl OperationJobController {
    /// Creates the controller of one term.
    pub fn new(context: Arc<ControllerContext>) -> Arc<Self> {
        Arc::new(OperationJobController {
            context,
            memories: Mutex::default(),
            request_api: RequestApi::default(),
            term_start: TermStart::default(),
        })
    }

    pub async fn reconcile(&self, name: JobName) -> ReconcileOutcome {
        if !self.context.collasets {
            return ReconcileOutcome::Done;
        }
        if !self.context.index.listed_kinds().has_collaset_kinds() {
            return ReconcileOutcome::After(UNSYNCED_RETRY);
        }
        let Some(cached) = self.cached(&name) else {
            self.memories.lock().remove(&name);
            return ReconcileOutcome::Done;
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

    /// Plans and makes the writes that may be made now, again and again until none is left.
    async fn plan_and_write(&self, name: &JobName, memory: &JobMemory) -> ReconcileOutcome {
        for _ in 0..MAX_PLANS {
            let Some(cached) = self.cached(name) else {
                self.memories.lock().remove(name);
                return ReconcileOutcome::Done;
            };
            if cached.object.metadata.uid.as_deref() != Some(memory.uid()) {
                return ReconcileOutcome::Retry; // another job of this name
            }
            let execution = Execution {
                context: &self.context,
                memory,
                request_api: &self.request_api,
                job: &cached.object,
            };
            let step = match &cached.unreadable {
                Some(fault) => execution.report_unreadable(fault).await,
                None => {
                    let begin = Instant::now();
                    let observed =
                        observe::observe_job(&self.context, &cached, memory, &self.request_api);
                    let plan = plan_job(&observed);
                    memory.pace().record_plan(begin.elapsed());
                    execution.carry_out(&plan).await
                }
            };
            match step {
                RunStep::PlanAgain => {}
                RunStep::Stale => return ReconcileOutcome::Retry,
                RunStep::Wait(None) => return ReconcileOutcome::Done,
                RunStep::Wait(Some(pause)) => return ReconcileOutcome::After(pause),
            }
        }
        ReconcileOutcome::After(MIN_RUN_INTERVAL)
    }

    fn cached(&self, (namespace, name): &JobName) -> Option<Arc<CachedJob>> {
        self.context.objects.jobs.get(namespace, name)
    }

    fn memory(&self, name: &JobName, cached: &CachedJob) -> Arc<JobMemory> {
        let uid = cached.object.metadata.uid.as_deref().unwrap_or_default();
        let mut memories = self.memories.lock();
        let memory = memories.entry(name.clone()).or_default();
        if memory.uid() != uid {
            *memory = Arc::new(JobMemory::new(uid)); // another job of the same name
        }
        Arc::clone(memory)
    }
}
