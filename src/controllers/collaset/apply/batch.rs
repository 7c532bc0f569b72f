//! Writes of one kind. What was refused lately is left out, each for a time of its own.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::super::call::{Halt, all, worse};
use super::super::refusals::{Key, Kind};
use super::Work;
use crate::domain::collaset::status::Step;

/// A write: what it is remembered by, what is being done, and the request.
pub struct Write<F> {
    /// By which a refusal is remembered.
    pub key: Key,
    /// Which step a failure belongs to.
    pub step: Step,
    /// The request.
    pub request: F,
}

/// A write that may be sent now.
struct Candidate<F> {
    /// When it was last refused; `None` sorts first.
    refused_at: Option<Instant>,
    /// Its place in the plan.
    place: usize,
    write: Write<F>,
}

/// What is to be told of the writes of one kind, by their places in the plan, and when to look again.
#[derive(Default)]
struct Told {
    failures: BTreeMap<usize, Halt>,
    again: Option<Duration>,
}

impl Told {
    fn again(&mut self, pause: Duration) {
        self.again = Some(self.again.map_or(pause, |known| known.min(pause)));
    }
}

/// Sends writes of one kind, see [`all`]. A write that is left alone counts as failed, with the words of its refusal. Writes that
/// were never refused come first, then those that were refused longest ago: each has its turn, however many others are refused
/// each time. What is told goes by the order of the plan, so that the words last as long as the refusal.
pub async fn send<F>(
    work: &Work<'_>,
    kind: Kind,
    carefully: bool,
    writes: impl IntoIterator<Item = Write<F>>,
) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    let mut told = Told::default();
    let mut candidates = Vec::new();
    let mut first = None;
    for (place, write) in writes.into_iter().enumerate() {
        first.get_or_insert(write.step);
        let now = Instant::now();
        let known = work.memory.known(&write.key, now, work.generation());
        let refused_at = known.as_ref().map(|known| known.at);
        if let Some(known) = known {
            if let Some(message) = known.message {
                let halt = Halt::Failed(write.step, message);
                told.failures.insert(place, halt);
            }
            if !known.left.is_zero() {
                told.again(known.left);
                continue;
            }
        }
        candidates.push(Candidate {
            refused_at,
            place,
            write,
        });
    }
    let Some(first) = first else {
        return Ok(());
    };
    let everything = Key::All(kind);
    if let Some(message) = left_alone(work, &everything) {
        return Err(Halt::Failed(first, message));
    }
    candidates.sort_by_key(|candidate| (candidate.refused_at, candidate.place));
    let known_from = candidates.partition_point(|candidate| candidate.refused_at.is_none());
    let told = Mutex::new(told);
    let requests = candidates.into_iter().map(|candidate| {
        let (place, told) = (candidate.place, &told);
        async move {
            let (done, pause) = attempt(work, candidate.write).await;
            let mut told = told.lock();
            if let Some(pause) = pause {
                told.again(pause);
            }
            match &done {
                Ok(()) => told.failures.remove(&place),
                Err(halt) => told.failures.insert(place, halt.clone()),
            };
            done
        }
    });
    let outcome = all(carefully, requests).await;
    let told = told.into_inner();
    let result = told.failures.into_values().map(Err).fold(Ok(()), worse);
    if outcome.any {
        work.memory.accept(&everything);
    }
    match &result {
        Err(Halt::Failed(_, message)) if outcome.given_up => {
            let never_tried = outcome.begun < known_from;
            let (now, generation) = (Instant::now(), work.generation());
            let memory = work.memory;
            work.again(memory.refuse_rest(everything, message, never_tried, now, generation));
        }
        _ => told.again.into_iter().for_each(|pause| work.again(pause)),
    }
    result
}

/// Sends one write, unless it is left alone.
pub async fn one<F>(work: &Work<'_>, write: Write<F>) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    if let Some(message) = left_alone(work, &write.key) {
        return Err(Halt::Failed(write.step, message));
    }
    let (done, pause) = attempt(work, write).await;
    pause.into_iter().for_each(|pause| work.again(pause));
    done
}

/// Sends a write, if this process still leads; if it is refused, also how long to leave it alone.
async fn attempt<F>(work: &Work<'_>, write: Write<F>) -> (Result<(), Halt>, Option<Duration>)
where
    F: Future<Output = Result<(), Halt>>,
{
    let done = match work.context.tenure.holds() {
        true => write.request.await,
        false => Err(Halt::Moved), // whoever leads by now decides from newer caches
    };
    let memory = work.memory;
    let pause = match &done {
        Ok(()) => {
            memory.accept(&write.key);
            None
        }
        Err(Halt::Failed(_, message)) => {
            Some(memory.refuse(write.key, message, Instant::now(), work.generation()))
        }
        Err(Halt::Moved | Halt::Collision) => None,
    };
    (done, pause)
}

/// Why something is left alone; the work goes on when that is over.
fn left_alone(work: &Work<'_>, key: &Key) -> Option<String> {
    let refused = work.memory.refused(key, Instant::now(), work.generation());
    let (left, message) = refused?;
    work.again(left);
    Some(message)
}
