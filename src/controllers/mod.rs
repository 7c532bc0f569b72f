//! The controllers, which run on the leader only. Each controller reads the index, lets the domain decide, and writes
//! the result. The guarantee does not need the controllers.

mod api_calls;
mod cache_waits;
pub(crate) mod collaset;
mod context;
mod decoration_board;
mod dispatch;
mod finalizer_answer;
mod headroom;
pub(crate) mod lifecycle;
pub(crate) mod namespaces;
mod operationjob;
pub(crate) mod pod_deletion;
mod pod_write_failures;
mod poddecoration;
mod queues;
mod requests;
pub mod rule_endpoints;
pub(crate) mod rules;
mod run_pace;
mod status_patch;
mod step_writes;
mod traffic;
mod wait_events;
mod wait_queue;
mod written_versions;
mod yielder;

use std::sync::Arc;

use tracing::{Instrument, error_span};

use crate::cluster::work_queue::StopTokens;

pub use context::{
    CollaSetName, ControllerContext, DecorationName, JobName, PodKey, RuleObjectName,
};
use decoration_board::DecorationBoard;
pub use pod_write_failures::PodWriteFailures;
pub use queues::{ControllerFigures, ControllerStats, Queues};

/// Runs all controllers until the stop in `ends`, for example because the lease was lost. `work` provides the queues
/// and counts the runs.
pub async fn run(context: Arc<ControllerContext>, work: &ControllerStats, ends: StopTokens) {
    let stop = ends.begun.clone();
    let queues = work.begin_term();
    // The pattern names every queue, so that a new queue does not compile until its workers run here.
    let Queues {
        lifecycle: lifecycle_queue,
        poddeletion: deletion_queue,
        rules: rule_queue,
        collasets: collaset_queue,
        decorations: decoration_queue,
        jobs: job_queue,
        traffic: traffic_queue,
        namespaces: namespace_queue,
    } = &*queues;
    let wait_queue = wait_queue::WaitQueue::new(&context, &queues, &stop);
    let lifecycle =
        lifecycle::LifecycleController::new(Arc::clone(&context), Arc::clone(&wait_queue));
    let rules = rules::RuleController::new(&context, &queues, &wait_queue, &stop);
    let board = Arc::<DecorationBoard>::default();
    let collasets = collaset::CollaSetController::new(Arc::clone(&context), Arc::clone(&board));
    let decorations = poddecoration::PodDecorationController::new(
        Arc::clone(&context),
        Arc::clone(&board),
        Arc::clone(&queues),
    );
    let jobs = operationjob::OperationJobController::new(Arc::clone(&context));
    let watched = Arc::<traffic::WatchedPods>::default();
    let traffic = traffic::TrafficController::new(Arc::clone(&context), Arc::clone(&watched));
    let deletion = context.clone();
    let namespaces = namespaces::NamespaceController::new(Arc::clone(&context));
    let start = Arc::clone(&rules);
    tokio::join!(
        start.begin_term(&stop),
        wait_events::run_wait_events(Arc::clone(&context), stop.clone()),
        dispatch::run_dispatcher(
            Arc::clone(&context),
            Arc::clone(&queues),
            wait_queue,
            board,
            watched,
            stop.clone()
        ),
        Arc::clone(lifecycle_queue).run_workers(16, ends.clone(), move |key| {
            let lifecycle = Arc::clone(&lifecycle);
            async move { lifecycle.reconcile(key).await }
        }),
        Arc::clone(rule_queue).run_workers(8, ends.clone(), move |key| {
            let rules = Arc::clone(&rules);
            async move { rules.reconcile(key).await }
        }),
        Arc::clone(deletion_queue).run_workers(8, ends.clone(), move |key| {
            let context = Arc::clone(&deletion);
            async move { pod_deletion::reconcile(&context, key).await }
        }),
        Arc::clone(collaset_queue).run_workers(8, ends.clone(), move |name| {
            let collasets = Arc::clone(&collasets);
            let span = error_span!("collaset", namespace = %name.0, name = %name.1);
            async move { collasets.reconcile(name).await }.instrument(span)
        }),
        Arc::clone(decoration_queue).run_workers(4, ends.clone(), move |name| {
            let decorations = Arc::clone(&decorations);
            let span = error_span!("poddecoration", namespace = %name.0, name = %name.1);
            async move { decorations.reconcile(name).await }.instrument(span)
        }),
        Arc::clone(job_queue).run_workers(4, ends.clone(), move |name| {
            let jobs = Arc::clone(&jobs);
            let span = error_span!("operationjob", namespace = %name.0, name = %name.1);
            async move { jobs.reconcile(name).await }.instrument(span)
        }),
        // Calls to load balancers take at most six of them.
        Arc::clone(traffic_queue).run_workers(16, ends.clone(), move |name| {
            let traffic = Arc::clone(&traffic);
            let span = error_span!("traffic", employer = %name.key());
            async move { traffic.reconcile(name).await }.instrument(span)
        }),
        Arc::clone(namespace_queue).run_workers(2, ends.clone(), move |key| {
            let namespaces = Arc::clone(&namespaces);
            async move { namespaces.reconcile(key).await }
        }),
    );
    work.end_term();
}
