//! Carries out a plan, stage by stage in the order of its fields. If the API server refuses a write, this module skips
//! the write and the writes that depend on it, and nothing else. The status reports the refusal.

mod batch;
mod dry_runs;
mod events;
mod fence;
mod finalizer;
mod live_state;
mod orphaning;
mod pod_patches;
mod pods;
mod pvcs;
mod resource_context;
mod revisions;
mod rollout_command;
mod status;

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::ControllerContext;
use super::reconcile_state::{MIN_RECONCILE_INTERVAL, ReconcileState};
use super::requests::{StageError, worse_result};
use crate::api::collaset::CollaSet;
use crate::cluster::objects::ObjectCaches;
use crate::domain::collaset::observed::{InstancePool, ObservedSet, Pvc};
use crate::domain::collaset::plan::{SetEvent, SetPlan};
use crate::domain::collaset::pool_write_failure::without_pool_writes;
use crate::domain::pod::Pod;

/// What the stages of one plan share.
pub struct PlanExecution<'a> {
    context: &'a ControllerContext,
    set: &'a Arc<CollaSet>,
    /// The pool that the plan was made from.
    pool: Option<&'a Arc<InstancePool>>,
    /// The orphaned Pods that the plan was made with.
    orphans: &'a [Arc<Pod>],
    state: &'a ReconcileState,
    /// Whether the plan does without the revision of the template, because the revision was refused.
    without_revision: bool,
    /// Names of the Pods that have been created.
    created: Mutex<Vec<String>>,
    /// The Events of the Pod changes that have been written.
    patch_events: Mutex<Vec<SetEvent>>,
    /// Names of the PVCs that have been deleted.
    deleted_pvcs: Mutex<Vec<String>>,
    /// Names of the PVCs that have become kept.
    retained_pvcs: Mutex<Vec<String>>,
    /// Names of the PVCs that were kept and have been released.
    released_pvcs: Mutex<Vec<String>>,
    requeue: Mutex<Option<Duration>>,
    planned_at: Instant,
}

impl<'a> PlanExecution<'a> {
    /// Prepares the execution of a plan for `observed`.
    pub fn new(
        context: &'a ControllerContext,
        observed: &'a ObservedSet,
        state: &'a ReconcileState,
    ) -> Self {
        PlanExecution {
            context,
            set: &observed.set,
            pool: observed.pool.as_ref(),
            orphans: &observed.orphans,
            state,
            without_revision: observed.refused.revision.is_some(),
            created: Mutex::default(),
            patch_events: Mutex::default(),
            deleted_pvcs: Mutex::default(),
            retained_pvcs: Mutex::default(),
            released_pvcs: Mutex::default(),
            requeue: Mutex::default(),
            planned_at: Instant::now(),
        }
    }

    fn client(&self) -> &Client {
        &self.context.client
    }

    fn objects(&self) -> &ObjectCaches {
        &self.context.objects
    }

    fn namespace(&self) -> &str {
        self.set.metadata.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.set.metadata.name.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.set.metadata.uid.as_deref().unwrap_or_default()
    }

    fn generation(&self) -> i64 {
        self.set.metadata.generation.unwrap_or(0)
    }

    /// Whether the plan is older than `age`.
    fn is_older_than(&self, age: Duration) -> bool {
        self.planned_at.elapsed() > age
    }

    /// The remaining time in which a PVC must not be deleted, because it is mounted by a Pod that no cache contains. A
    /// set that is being deleted does not wait: it releases the PVC.
    fn mounted_pvc_backoff(&self, pvc: &Pvc, now: Instant) -> Option<Duration> {
        let is_deleting = self.set.metadata.deletion_timestamp.is_some();
        let remaining = self.state.hold_remaining(&pvc.uid, now);
        remaining.filter(|_| !is_deleting)
    }

    /// Requeues the set if the write succeeded. The caches already contain the result, so no event enqueues the set.
    fn requeue_if_written<E>(&self, result: Result<(), E>) -> Result<(), E> {
        if result.is_ok() {
            self.requeue_after(MIN_RECONCILE_INTERVAL);
        }
        result
    }

    /// Requeues the set after this time at the latest.
    fn requeue_after(&self, pause: Duration) {
        let mut requeue = self.requeue.lock();
        *requeue = Some(requeue.map_or(pause, |earlier| earlier.min(pause)));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// All writes were done except refused ones. Contains the time after which to reconcile again even if nothing
    /// changes.
    All(Option<Duration>),
    /// An object has changed since the plan was made, the name of a revision is taken by other data, or this process no
    /// longer leads.
    Moved,
    /// A plan that adds or removes the finalizer failed.
    Failed,
}

pub async fn apply_plan(execution: &PlanExecution<'_>, mut plan: SetPlan) -> ApplyOutcome {
    if let Some(nanos) = plan.requeue_after_nanos {
        execution.requeue_after(Duration::from_nanos(nanos));
    }
    if plan.add_finalizer {
        let added = finalizer::add_finalizer(execution).await;
        if added.is_err() {
            return finish_plan(execution, plan, added).await;
        }
    }
    let revisions = revisions::write_revisions(execution, take(&mut plan.revisions)).await;
    if revisions::is_template_revision_refused(execution) {
        // The plan is invalid without its revision. The next plan is made without the revision.
        execution.requeue_after(MIN_RECONCILE_INTERVAL);
        return ApplyOutcome::All(*execution.requeue.lock());
    }
    let result = match revisions {
        Err(StageError::Moved | StageError::Collision) => revisions,
        revisions => worse_result(revisions, run_stages(execution, &mut plan).await),
    };
    finish_plan(execution, plan, result).await
}

/// Ends a plan: writes the status and records the Events.
async fn finish_plan(
    execution: &PlanExecution<'_>,
    plan: SetPlan,
    mut result: Result<(), StageError>,
) -> ApplyOutcome {
    if !execution.context.leadership.is_leading() {
        events::announce_written(execution);
        return ApplyOutcome::Moved;
    }
    if plan.clear_command {
        // Before the status is written: the removal has the resourceVersion of the plan as precondition, and a write of
        // the status changes that version.
        result = worse_result(
            result,
            rollout_command::clear_rollout_command(execution).await,
        );
    }
    let status = status::write_set_status(
        execution,
        (plan.status, &plan.shortfall),
        &plan.events_after_status,
        &result,
    )
    .await;
    events::announce_plan(execution, &plan.events, &result);
    if plan.remove_finalizer && result.is_ok() {
        result = finalizer::remove_finalizer(execution).await;
    }
    match (result, status) {
        (Err(StageError::Failed(..)), _) if plan.add_finalizer || plan.remove_finalizer => {
            ApplyOutcome::Failed
        }
        (Err(StageError::Moved | StageError::Collision), _) | (_, Err(_)) => ApplyOutcome::Moved,
        (Ok(()) | Err(StageError::Failed(..)), Ok(())) => {
            ApplyOutcome::All(*execution.requeue.lock())
        }
    }
}

async fn run_stages(execution: &PlanExecution<'_>, plan: &mut SetPlan) -> Result<(), StageError> {
    let (live_state, live_read) = match live_state::read_for_plan(execution, plan).await {
        Ok(live_state) => (live_state, Ok(())),
        Err(error @ StageError::Failed(..)) => {
            live_state::drop_unverified_changes(plan);
            (live_state::LiveState::default(), Err(error))
        }
        Err(error) => return Err(error),
    };
    let pool = resource_context::write_resource_context(execution, plan.pool.clone()).await;
    match pool {
        Err(StageError::Moved | StageError::Collision) => return pool,
        Err(StageError::Failed(..)) => {
            let whole = take(plan);
            *plan = without_pool_writes(whole, execution.pool.map(|pool| &**pool));
        }
        Ok(()) => {}
    }
    let dependents = orphaning::release_uncached_dependents(execution, plan).await;
    let pvcs = pvcs::write_pvcs(execution, take(&mut plan.pvcs), &live_state).await;
    let pods = pods::write_pods(execution, take(&mut plan.pods), &live_state).await;
    [live_read, pool, dependents, pvcs, pods]
        .into_iter()
        .fold(Ok(()), worse_result)
}
