//! Writes of one kind. What was refused lately is left out, each for a time of its own.

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

/// Sends writes of one kind, see [`all`]. A write that is left alone counts as failed, with the words of its refusal.
pub async fn send<F>(
    work: &Work<'_>,
    kind: Kind,
    carefully: bool,
    writes: impl IntoIterator<Item = Write<F>>,
) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    let mut writes = writes.into_iter().peekable();
    let Some(first) = writes.peek() else {
        return Ok(());
    };
    let everything = Key::All(kind);
    if let Some(message) = left_alone(work, &everything) {
        return Err(Halt::Failed(first.step, message));
    }
    let mut refused = Ok(());
    let live: Vec<_> = writes
        .filter_map(|write| match left_alone(work, &write.key) {
            Some(message) => {
                let halt = Err(Halt::Failed(write.step, message));
                refused = worse(std::mem::replace(&mut refused, Ok(())), halt);
                None
            }
            None => Some(attempt(work, write)),
        })
        .collect();
    let outcome = all(carefully, live).await;
    match &outcome.result {
        Err(Halt::Failed(_, message)) if outcome.given_up => {
            if outcome.any {
                work.memory.accept(&everything);
            }
            note(work, everything, message);
        }
        _ if outcome.any => work.memory.accept(&everything),
        _ => {}
    }
    worse(refused, outcome.result)
}

/// Sends one write, unless it is left alone.
pub async fn one<F>(work: &Work<'_>, write: Write<F>) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    match left_alone(work, &write.key) {
        Some(message) => Err(Halt::Failed(write.step, message)),
        None => attempt(work, write).await,
    }
}

async fn attempt<F>(work: &Work<'_>, write: Write<F>) -> Result<(), Halt>
where
    F: Future<Output = Result<(), Halt>>,
{
    let done = write.request.await;
    match &done {
        Ok(()) => work.memory.accept(&write.key),
        Err(Halt::Failed(_, message)) => note(work, write.key, message),
        Err(Halt::Moved | Halt::Collision) => {}
    }
    done
}

/// Why something is left alone; the work goes on when that is over.
fn left_alone(work: &Work<'_>, key: &Key) -> Option<String> {
    let refused = work.memory.refused(key, Instant::now(), work.generation());
    let (left, message) = refused?;
    work.again(left);
    Some(message)
}

fn note(work: &Work<'_>, key: Key, message: &str) {
    let generation = work.generation();
    let pause = work.memory.refuse(key, message, Instant::now(), generation);
    work.again(pause);
}
