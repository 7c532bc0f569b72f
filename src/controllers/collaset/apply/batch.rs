//! Sends writes of one kind. Writes that were refused lately are left out, each until its own backoff ends.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::refusals::{BatchKind, RefusalKey};
use super::super::requests::{Halt, send_all_requests, worse_result};
use super::PlanExecution;
use crate::domain::collaset::status::FailedStep;

/// A write to be sent.
pub struct WriteRequest<F> {
    /// The key under which a refusal is recorded.
    pub key: RefusalKey,
    /// The step that a failure belongs to.
    pub step: FailedStep,
    /// The request.
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

/// The failures of the writes of one kind, by their positions in the plan, and when to reconcile again.
#[derive(Default)]
struct BatchFailures {
    failures: BTreeMap<usize, Halt>,
    requeue: Option<Duration>,
}

impl BatchFailures {
    fn requeue_after(&mut self, pause: Duration) {
        self.requeue = Some(self.requeue.map_or(pause, |known| known.min(pause)));
    }
}

/// Sends writes of one kind, see [`send_all_requests`]. A write in backoff counts as failed, with the message of its
/// refusal. Writes that were never refused come first, then those that were refused longest ago. Therefore each write
/// is tried, however many others are refused each time. The reported failure depends on the order of the plan, so that
/// the message stays the same as long as the refusal lasts.
pub async fn send_batch<F>(
    work: &PlanExecution<'_>,
    kind: BatchKind,
    carefully: bool,
    writes: impl IntoIterator<Item = WriteRequest<F>>,
) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    let mut told = BatchFailures::default();
    let mut candidates = Vec::new();
    let mut first = None;
    for (place, write) in writes.into_iter().enumerate() {
        first.get_or_insert(write.step);
        let now = Instant::now();
        let known = work
            .state
            .mark_write_wanted(&write.key, now, work.generation());
        let refused_at = known.as_ref().map(|known| known.at);
        if let Some(known) = known {
            if let Some(message) = known.message {
                let halt = Halt::Failed(write.step, message);
                told.failures.insert(place, halt);
            }
            if !known.remaining.is_zero() {
                told.requeue_after(known.remaining);
                continue;
            }
        }
        candidates.push(ReadyWrite {
            refused_at,
            plan_index: place,
            write,
        });
    }
    let Some(first) = first else {
        return Ok(());
    };
    let everything = RefusalKey::All(kind);
    if let Some(message) = backoff_reason(work, &everything) {
        return Err(Halt::Failed(first, message));
    }
    candidates.sort_by_key(|candidate| (candidate.refused_at, candidate.plan_index));
    let known_from = candidates.partition_point(|candidate| candidate.refused_at.is_none());
    let told = Mutex::new(told);
    let requests = candidates.into_iter().map(|candidate| {
        let (place, told) = (candidate.plan_index, &told);
        async move {
            let (done, pause) = attempt_write(work, candidate.write).await;
            let mut told = told.lock();
            if let Some(pause) = pause {
                told.requeue_after(pause);
            }
            match &done {
                Ok(()) => told.failures.remove(&place),
                Err(halt) => told.failures.insert(place, halt.clone()),
            };
            done
        }
    });
    let outcome = send_all_requests(carefully, requests).await;
    let told = told.into_inner();
    let result = told
        .failures
        .into_values()
        .map(Err)
        .fold(Ok(()), worse_result);
    if outcome.any_succeeded {
        work.state.clear_refusal(&everything);
    }
    match &result {
        Err(Halt::Failed(_, message)) if outcome.given_up => {
            let never_tried = outcome.begun < known_from;
            let (now, generation) = (Instant::now(), work.generation());
            let memory = work.state;
            work.requeue_after(memory.record_untried_rest(
                everything,
                message,
                never_tried,
                now,
                generation,
            ));
        }
        _ => told
            .requeue
            .into_iter()
            .for_each(|pause| work.requeue_after(pause)),
    }
    result
}

/// Sends one write, unless it is in backoff.
pub async fn send_write<F>(work: &PlanExecution<'_>, write: WriteRequest<F>) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    if let Some(message) = backoff_reason(work, &write.key) {
        return Err(Halt::Failed(write.step, message));
    }
    let (done, pause) = attempt_write(work, write).await;
    pause
        .into_iter()
        .for_each(|pause| work.requeue_after(pause));
    done
}

/// Sends a write if this process still leads. If the write is refused, also returns its backoff.
async fn attempt_write<F>(
    work: &PlanExecution<'_>,
    write: WriteRequest<F>,
) -> (Result<(), Halt>, Option<Duration>)
where
    F: Future<Output = Result<(), Halt>>,
{
    let done = match work.context.leadership.is_leading() {
        true => write.request.await,
        false => Err(Halt::Moved), // the present leader decides from newer caches
    };
    let memory = work.state;
    let pause = match &done {
        Ok(()) => {
            memory.clear_refusal(&write.key);
            None
        }
        Err(Halt::Failed(_, message)) => {
            Some(memory.record_refusal(write.key, message, Instant::now(), work.generation()))
        }
        Err(Halt::Moved | Halt::Collision) => None,
    };
    (done, pause)
}

/// The message of the refusal while the backoff of a key lasts. Requeues the set for the end of the backoff.
fn backoff_reason(work: &PlanExecution<'_>, key: &RefusalKey) -> Option<String> {
    let refused = work
        .state
        .active_refusal(key, Instant::now(), work.generation());
    let (left, message) = refused?;
    work.requeue_after(left);
    Some(message)
}
