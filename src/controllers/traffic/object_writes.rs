//! Writes of the finalizer and the annotations of employers, with pauses if they are refused or taken back.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::write_history::{Pause, WriteHistory};
use crate::api::keys;
use crate::api_request::ApiFailure;
use crate::domain::traffic::names::EmployerName;

/// The last writes of all employers.
#[derive(Default)]
pub struct ObjectWrites(Mutex<HashMap<EmployerName, LastWrite>>);

#[derive(Default)]
struct LastWrite {
    history: WriteHistory<ObjectWrite>,
    /// Why the last look failed, until it is told.
    problem: Option<Problem>,
}

/// What is written: the UID of the employer, what the write is for, and the adapter that it records.
#[derive(Clone, PartialEq, Eq)]
pub struct ObjectWrite {
    pub uid: String,
    pub purpose: &'static str,
    pub adapter: String,
}

/// Why an employer is not as it should be, and when the write is repeated.
pub struct Problem {
    pub text: String,
    pub next: Instant,
}

impl ObjectWrites {
    /// Whether a write has to wait, and for how long.
    pub fn pause(&self, name: &EmployerName, write: &ObjectWrite) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.0.lock();
        let last = all.get_mut(name)?;
        let pause = last.history.pause(write, now)?;
        let left = pause.left;
        last.problem = Some(problem(pause, now));
        Some(left)
    }

    /// Remembers a write that was stored, or else why it was refused.
    pub fn add(&self, name: &EmployerName, write: ObjectWrite, refusal: Option<String>) {
        let now = Instant::now();
        let mut all = self.0.lock();
        all.retain(|_, last| !last.history.is_over(now));
        let last = all.entry(name.clone()).or_default();
        let refused = refusal.is_some();
        last.history.add(write.clone(), refusal, now);
        let pause = last.history.pause(&write, now).filter(|_| refused);
        last.problem = pause.map(|pause| problem(pause, now));
    }

    /// Remembers that the last write was stored as something else, and why. It is the problem from then on.
    pub fn refuse(&self, name: &EmployerName, refusal: String) {
        let now = Instant::now();
        let mut all = self.0.lock();
        let last = all.entry(name.clone()).or_default();
        last.history.refuse(refusal);
        let pause = last.history.last_pause(now);
        last.problem = pause.map(|pause| problem(pause, now));
    }

    /// Why the look that has just failed did, if a write was refused or taken back.
    pub fn take_problem(&self, name: &EmployerName) -> Option<Problem> {
        self.0.lock().get_mut(name)?.problem.take()
    }
}

fn problem(pause: Pause, now: Instant) -> Problem {
    let (finalizer, annotation) = (keys::CLEAN_FINALIZER, keys::CONSIST_ADAPTER_IN_USE);
    let text = match pause.refusal {
        // The report has room for little more than the text of the API server.
        Some(refusal) => format!("its metadata can't be written: {refusal}"),
        None => format!(
            "another program takes back the finalizer {finalizer} or the annotation {annotation}; find the program that \
             replaces this object, and make it keep them"
        ),
    };
    Problem {
        text,
        next: now + pause.left,
    }
}

/// The text of a failure that does not end by itself: the API server refuses the write, or can't ask a webhook about it.
pub fn refusal(failure: &ApiFailure) -> Option<String> {
    let code = failure.code()?;
    let refused = (400..500).contains(&code) && !matches!(code, 404 | 409 | 429);
    let text = failure.text();
    (refused || text.contains("failed calling webhook")).then_some(text)
}
