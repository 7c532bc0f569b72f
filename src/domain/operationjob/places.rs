//! How many targets of a job may be in progress at a time. What the status keeps of a target in progress is several times
//! as large as what it keeps of others, and the status must fit into etcd.

use std::collections::BTreeMap;

use super::job_status;
use super::names::extra_info;
use crate::api::operationjob::{OperationJob, Progress, TargetDetail};

/// Most targets of a job that are in progress at a time. The others follow as these end.
const MAX_IN_PROGRESS: usize = 300;
/// Most bytes of the notes of containers in one status.
const MAX_NOTES: usize = 256 << 10;
/// Most bytes of the note of the containers of one Pod.
pub const MAX_NOTE: usize = 32 << 10;

/// Why no other target may start.
#[derive(Clone, Copy, Debug)]
pub enum StartHold<'a> {
    /// The job is over.
    JobOver,
    /// What a target waits for.
    Full(&'a str),
}

/// The places that are left for targets.
#[derive(Debug)]
pub struct Places {
    is_over: bool,
    in_progress: usize,
    note_bytes: usize,
    /// What a target waits for if no place is left.
    wait: String,
}

impl Places {
    /// The places that the stored targets leave.
    pub fn of(job: &OperationJob, stored: &BTreeMap<&str, &TargetDetail>) -> Places {
        let progress = job.status.as_ref().and_then(|s| s.progress.as_ref());
        let details = || stored.values().filter(|detail| takes_place(detail));
        let unreleased = details().filter(|detail| detail.progress == Some(Progress::Failed));
        let unreleased = unreleased.count();
        let mut wait = format!("a place among the {MAX_IN_PROGRESS} targets in progress");
        if unreleased > 0 {
            wait += &format!("; {unreleased} of them have failed and are not released");
        }
        Places {
            is_over: job_status::is_finished(progress),
            in_progress: details().count(),
            note_bytes: stored.values().map(|detail| note_bytes(detail)).sum(),
            wait,
        }
    }

    /// Why no other target may start now.
    pub fn hold(&self) -> Option<StartHold<'_>> {
        match self.in_progress < MAX_IN_PROGRESS {
            _ if self.is_over => Some(StartHold::JobOver),
            true => None,
            false => Some(StartHold::Full(&self.wait)),
        }
    }

    /// Bytes that a new note of containers may have.
    pub fn note_room(&self) -> usize {
        MAX_NOTES.saturating_sub(self.note_bytes)
    }

    /// Counts what a target has taken in this plan. What it gives back is free once that is stored.
    pub fn take(&mut self, stored: Option<&TargetDetail>, planned: &TargetDetail) {
        let took_place = stored.is_some_and(takes_place);
        self.in_progress += usize::from(takes_place(planned) && !took_place);
        let had = stored.map_or(0, note_bytes);
        self.note_bytes += note_bytes(planned).saturating_sub(had);
    }
}

/// Whether a target counts among those in progress: it is operated on, or has failed and is not released.
fn takes_place(detail: &TargetDetail) -> bool {
    let is_released = detail.extra_info.contains_key(extra_info::RELEASED);
    match detail.progress {
        Some(Progress::Processing) => true,
        Some(Progress::Failed) => !is_released,
        _ => false,
    }
}

fn note_bytes(detail: &TargetDetail) -> usize {
    detail
        .extra_info
        .get(extra_info::BEFORE)
        .map_or(0, String::len)
}
