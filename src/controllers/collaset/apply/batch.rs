//! Sends writes of one kind. Writes that were refused lately are left out, each until its own backoff ends.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{BatchOutcome, StageError, send_all_requests, worse_result};
use super::PlanExecution;
use crate::domain::collaset::status::FailedStep;

/// A write to be sent.
pub struct WriteRequest<F> {
    /// The key under which a refusal is recorded.
    pub key: RefusalKey,
    /// The step that a failure belongs to.
    pub step: FailedStep,
    pub request: F,
}

/// A write that may be sent now.
struct ReadyWrite<F> {
    /// When the write was last refused; `None` sorts first.
    refused_at: Option<Instant>,
    /// The position of the write in the plan.
    plan_index: usize,
    write: WriteRequest<F>,
}

/// The failures of the writes of one kind, and when to reconcile again.
#[derive(Default)]
struct BatchFailures {
    by_plan_index: BTreeMap<usize, StageError>,
    requeue: Option<Duration>,
}

impl BatchFailures {
    fn requeue_after(&mut self, pause: Duration) {
        self.requeue = Some(self.requeue.map_or(pause, |earlier| earlier.min(pause)));
    }
}

/// Sends writes of one kind, see [`send_all_requests`]. A write in backoff counts as failed, with the message of its
/// refusal. Writes that were never refused come first, then the writes that were refused longest ago. Therefore each
/// write is tried, however many others are refused each time. The reported failure depends on the order of the plan, so
/// that the message stays the same as long as the refusal lasts.
pub async fn send_batch<F>(
    execution: &PlanExecution<'_>,
    kind: BatchKind,
    carefully: bool,
    writes: impl IntoIterator<Item = WriteRequest<F>>,
) -> Result<(), StageError>
where
    F: Future<Output = Result<(), StageError>>,
{
    let mut writes = writes.into_iter().peekable();
    let Some(first_step) = writes.peek().map(|write| write.step) else {
        return Ok(());
    };
    let (ready, failures) = select_ready_writes(execution, writes);
    let all_of_kind = RefusalKey::All(kind);
    if let Some(message) = backoff_reason(execution, &all_of_kind) {
        return Err(StageError::Failed(first_step, message));
    }
    let never_refused = ready.partition_point(|write| write.refused_at.is_none());
    let (outcome, failures) = send_ready_writes(execution, carefully, ready, failures).await;
    let errors = failures.by_plan_index.into_values();
    let result = errors.map(Err).fold(Ok(()), worse_result);
    if outcome.any_succeeded {
        execution.state.clear_refusal(&all_of_kind);
    }
    let requeue = match &result {
        Err(StageError::Failed(_, message)) if outcome.given_up => {
            Some(execution.state.record_untried_rest(
                all_of_kind,
                message,
                outcome.begun < never_refused,
                Instant::now(),
                execution.generation(),
            ))
        }
        _ => failures.requeue,
    };
    if let Some(pause) = requeue {
        execution.requeue_after(pause);
    }
    result
}

/// The writes that may be sent now, in the order in which they are sent, and the failures of the writes that were
/// refused before.
fn select_ready_writes<F>(
    execution: &PlanExecution<'_>,
    writes: impl Iterator<Item = WriteRequest<F>>,
) -> (Vec<ReadyWrite<F>>, BatchFailures) {
    let mut failures = BatchFailures::default();
    let mut ready = Vec::new();
    for (plan_index, write) in writes.enumerate() {
        let now = Instant::now();
        let refusal = execution
            .state
            .mark_write_wanted(&write.key, now, execution.generation());
        let refused_at = refusal.as_ref().map(|refusal| refusal.at);
        if let Some(refusal) = refusal {
            if let Some(message) = refusal.message {
                let error = StageError::Failed(write.step, message);
                failures.by_plan_index.insert(plan_index, error);
            }
            if !refusal.remaining.is_zero() {
                failures.requeue_after(refusal.remaining);
                continue;
            }
        }
        ready.push(ReadyWrite {
            refused_at,
            plan_index,
            write,
        });
    }
    ready.sort_by_key(|write| (write.refused_at, write.plan_index));
    (ready, failures)
}

/// Sends the writes, and updates the failures with their results.
async fn send_ready_writes<F>(
    execution: &PlanExecution<'_>,
    carefully: bool,
    ready: Vec<ReadyWrite<F>>,
    failures: BatchFailures,
) -> (BatchOutcome, BatchFailures)
where
    F: Future<Output = Result<(), StageError>>,
{
    let failures = Mutex::new(failures);
    let requests = ready.into_iter().map(|ready| {
        let (plan_index, failures) = (ready.plan_index, &failures);
        async move {
            let (result, pause) = attempt_write(execution, ready.write).await;
            let mut failures = failures.lock();
            if let Some(pause) = pause {
                failures.requeue_after(pause);
            }
            match &result {
                Ok(()) => failures.by_plan_index.remove(&plan_index),
                Err(error) => failures.by_plan_index.insert(plan_index, error.clone()),
            };
            result
        }
    });
    let outcome = send_all_requests(carefully, requests).await;
    (outcome, failures.into_inner())
}

/// Sends one write, unless it is in backoff.
pub async fn send_write<F>(
    execution: &PlanExecution<'_>,
    write: WriteRequest<F>,
) -> Result<(), StageError>
where
    F: Future<Output = Result<(), StageError>>,
{
    if let Some(message) = backoff_reason(execution, &write.key) {
        return Err(StageError::Failed(write.step, message));
    }
    let (result, pause) = attempt_write(execution, write).await;
    if let Some(pause) = pause {
        execution.requeue_after(pause);
    }
    result
}

/// Sends a write if this process still leads. If the write is refused, also returns its backoff.
async fn attempt_write<F>(
    execution: &PlanExecution<'_>,
    write: WriteRequest<F>,
) -> (Result<(), StageError>, Option<Duration>)
where
    F: Future<Output = Result<(), StageError>>,
{
    let result = match execution.context.leadership.is_leading() {
        true => write.request.await,
        false => Err(StageError::Moved), // the present leader decides from newer caches
    };
    let state = execution.state;
    let pause = match &result {
        Ok(()) => {
            state.clear_refusal(&write.key);
            None
        }
        Err(StageError::Failed(_, message)) => {
            Some(state.record_refusal(write.key, message, Instant::now(), execution.generation()))
        }
        Err(StageError::Moved | StageError::Collision) => None,
    };
    (result, pause)
}

/// The message of the refusal while the backoff of a key lasts. Requeues the set for the end of the backoff.
fn backoff_reason(execution: &PlanExecution<'_>, key: &RefusalKey) -> Option<String> {
    let refusal = execution
        .state
        .active_refusal(key, Instant::now(), execution.generation());
    let (remaining, message) = refusal?;
    execution.requeue_after(remaining);
    Some(message)
}
