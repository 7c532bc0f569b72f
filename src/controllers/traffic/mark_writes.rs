//! Writes the marks of Pods.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;
use traffic::plan::{Mark, Memory, View};

use super::super::ControllerContext;
use super::super::requests::{RequestError, request_with_deadline};
use super::write_history::{Pause, WriteHistory};
use crate::cluster::pod_requests;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::{self, PodMarks};

/// Writes that are under way at the same time, for one employer.
const AT_ONCE: usize = 8;

/// The last writes of the marks of Pods, by UID.
#[derive(Default)]
pub struct MarkWrites(HashMap<String, PodWrites>);

#[derive(Default)]
struct PodWrites {
    history: WriteHistory<PodMarks>,
    /// The version that the last write stored. The cache may be older.
    version: u64,
    /// When the plan permitted the last write.
    permitted: Timestamp,
}

impl MarkWrites {
    /// Whether nothing has to be remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Forgets the writes that are over. Returns the time until all others are, if there are any.
    pub fn forget_old(&mut self, now: Instant) -> Option<Duration> {
        self.0.retain(|_, writes| !writes.history.is_over(now));
        let left = self.0.values().map(|writes| writes.history.over_in(now));
        left.max().flatten()
    }

    fn pause(&self, pod: &Pod, wanted: PodMarks, now: Instant) -> Option<Pause> {
        let last = self.0.get(&pod.metadata.uid)?;
        let is_news = pod.metadata.resource_version > last.version;
        let pause = last.history.pause(&wanted, now)?;
        (is_news || pause.refusal.is_some()).then_some(pause)
    }

    /// Forgets a write that was stored before the Pod turned: it belongs to another operation. Whoever undoes an operation
    /// takes the mark back, which is no fault.
    fn forget_before(&mut self, uid: &str, turned: Timestamp) {
        let is_former = |writes: &PodWrites| {
            let stored = !writes.history.is_refused();
            stored && writes.permitted < turned
        };
        if self.0.get(uid).is_some_and(is_former) {
            self.0.remove(uid);
        }
    }

    fn add(&mut self, pod: &Pod, wanted: PodMarks, version: u64, refusal: Option<String>) {
        let writes = self.0.entry(pod.metadata.uid.clone()).or_default();
        writes.history.add(wanted, refusal, Instant::now());
        writes.version = version;
    }
}

/// What became of the writes.
#[derive(Default)]
pub struct MarkResult {
    /// When writes that had no effect are repeated, if there are any.
    pub again: Option<Duration>,
    /// Whether a Pod has changed before it was written.
    pub moved: bool,
    /// A failure, for the report. Of several, always the same one.
    pub error: Option<String>,
    /// How many Pods have changed.
    pub written: usize,
    /// How long each Pod waited until traffic was off, in order of the writes.
    pub drained: Vec<Duration>,
    /// How long each Pod waited until traffic was on.
    pub served: Vec<Duration>,
}

impl MarkResult {
    fn add_error(&mut self, error: String) {
        let first = self.error.take().into_iter().chain([error]).min();
        self.error = first;
    }

    fn add_pause(&mut self, pod: &Pod, pause: Pause) {
        self.again = self.again.into_iter().chain([pause.left]).min();
        self.add_error(pause.refusal.unwrap_or_else(|| {
            format!(
                "another program takes back the marks of Pod {}; find the program that replaces its finalizers or \
                 annotations, and make it keep those that it does not know",
                pod.metadata.name
            )
        }));
    }
}

/// A change of a Pod's marks, and the marks that it has then.
type Planned<'a> = (&'a Arc<Pod>, Value, PodMarks);

/// Writes the marks that the plan permits.
pub async fn write_marks(
    context: &ControllerContext,
    employer: &EmployerName,
    pods: &BTreeMap<String, Arc<Pod>>,
    (view, memory, marks): (&View, &Memory, &BTreeMap<String, Mark>),
    moves: bool,
    now: Timestamp,
    writes: &mut MarkWrites,
) -> MarkResult {
    let mut result = MarkResult::default();
    let mut changes = Vec::new();
    for (uid, pod) in pods {
        let Some(mark) = marks.get(uid) else { continue };
        if let Some(other) = pod_marks::sharing_employer(employer, pod) {
            result.add_error(format!(
                "Pod {} is marked by {other}, which has the same name and so the same finalizer; give one of them another \
                 name",
                pod.metadata.name
            ));
            continue;
        }
        if let Some(operated) = memory.operated_at(uid) {
            writes.forget_before(uid, operated);
        }
        let wanted = wanted_marks(view, employer, pod, mark, moves);
        changes
            .extend(pod_marks::change(employer, pod, wanted).map(|change| (pod, change, wanted)));
    }
    for (pod, wanted) in write_all(context, employer, changes, writes, &mut result).await {
        result.written += 1;
        if let Some(written) = writes.0.get_mut(&pod.metadata.uid) {
            written.permitted = now;
        }
        let had = PodMarks::of(employer, pod);
        let turned = memory.turned_at(&pod.metadata.uid);
        let took = turned.map(|turned| now.duration_since(turned).unsigned_abs());
        match (had.protected, wanted.protected) {
            (true, false) => result.drained.extend(took),
            (false, true) if marks.get(&pod.metadata.uid) == Some(&Mark::Protect) => {
                result.served.extend(took);
            }
            _ => {}
        }
    }
    result
}

/// Writes the marks of Pods whose last write is not to be waited for. Returns the Pods that have their marks then.
async fn write_all<'a>(
    context: &ControllerContext,
    employer: &EmployerName,
    changes: Vec<Planned<'a>>,
    memory: &mut MarkWrites,
    result: &mut MarkResult,
) -> Vec<(&'a Arc<Pod>, PodMarks)> {
    let now = Instant::now();
    memory.forget_old(now);
    let mut writes = Vec::new();
    for (pod, change, wanted) in changes {
        if let Some(pause) = memory.pause(pod, wanted, now) {
            result.add_pause(pod, pause);
            continue;
        }
        let write = async move {
            let request = pod_requests::patch_metadata(&context.client, pod, change);
            let written = request_with_deadline(&pod.metadata.name, request).await;
            (pod, wanted, written)
        };
        writes.push(write.boxed());
    }
    let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
    let mut done = Vec::new();
    while let Some((pod, wanted, written)) = writes.next().await {
        let had = PodMarks::of(employer, pod);
        let refusal = match written {
            // The write has begun an operation, which protects the Pod until the next look.
            Ok(stored)
                if !had.protected
                    && !wanted.protected
                    && PodMarks::of(employer, &stored).protected =>
            {
                continue;
            }
            // A webhook has changed the marks in the same write.
            Ok(stored) if pod_marks::change(employer, &stored, wanted).is_some() => {
                RequestError::not_as_written(&pod.metadata.name)
            }
            Ok(stored) => {
                memory.add(pod, wanted, stored.metadata.resource_version, None);
                done.push((pod, wanted));
                continue;
            }
            Err(RequestError::Moved) => {
                debug!(pod = pod.metadata.name, "the Pod has changed");
                result.moved = true;
                continue;
            }
            Err(error) => error,
        };
        memory.add(pod, wanted, 0, Some(error_text(refusal)));
        if let Some(pause) = memory.pause(pod, wanted, Instant::now()) {
            result.add_pause(pod, pause);
        }
    }
    done
}

/// The marks that a Pod should have. `moves` says that another adapter may go on if the present one refuses the employer.
fn wanted_marks(
    view: &View,
    employer: &EmployerName,
    pod: &Pod,
    mark: &Mark,
    moves: bool,
) -> PodMarks {
    let present = PodMarks::of(employer, pod);
    let uid = &pod.metadata.uid;
    let selected = view.pods.get(uid).is_some_and(|input| input.selected);
    let stays = selected && !view.deleting;
    let refused = view.refused.is_some() && !moves;
    let waits = stays && !refused;
    let protected = match mark {
        Mark::Protect => true,
        Mark::Release => false,
        // A Pod that is available already gets both marks at once, or it would lose its availability. It gets them before it
        // is registered: an operation must not begin unseen when it leaves the selection again.
        Mark::Keep(_) if waits && !present.expected && pod.is_available() => true,
        Mark::Keep(_) => present.protected,
    };
    let expected = match (waits, protected) {
        (true, false) => present.expected || !pod.is_available(),
        (true, true) => true,
        // While the employer is refused, a Pod that waits for it does not become available without traffic. A Pod that has
        // left the selection may still get requests: by the expectation, the next operation protects it.
        (false, protected) => {
            let may_be_on = matches!(mark, Mark::Keep(_)) && !view.deleting;
            present.expected && (protected || stays || may_be_on)
        }
    };
    PodMarks {
        expected,
        protected,
    }
}

/// Removes all marks of an employer from Pods.
pub async fn release_all(
    context: &ControllerContext,
    employer: &EmployerName,
    pods: &[Arc<Pod>],
    writes: &mut MarkWrites,
) -> MarkResult {
    let none = PodMarks {
        expected: false,
        protected: false,
    };
    let changes = pods.iter().filter_map(|pod| {
        let change = pod_marks::change(employer, pod, none)?;
        Some((pod, change, none))
    });
    let changes = changes.collect();
    let mut result = MarkResult::default();
    write_all(context, employer, changes, writes, &mut result).await;
    result
}

fn error_text(error: RequestError) -> String {
    match error {
        RequestError::Held(text)
        | RequestError::Failed(text)
        | RequestError::Denied(text)
        | RequestError::Refused(text) => format!("a Pod can't be marked: {text}"),
        RequestError::Moved | RequestError::Exists => "a Pod has changed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_write_of_a_former_turn_is_no_reason_to_wait() {
        let pod = |version| {
            let mut pod = Pod::default();
            (pod.metadata.uid, pod.metadata.resource_version) = ("u".to_owned(), version);
            pod
        };
        let marks = PodMarks {
            expected: true,
            protected: true,
        };
        let at = |second| Timestamp::from_second(second).unwrap_or_default();
        let paused = |refusal: Option<&str>, turned| {
            let mut writes = MarkWrites::default();
            writes.add(&pod(1), marks, 2, refusal.map(str::to_owned));
            writes
                .0
                .values_mut()
                .for_each(|writes| writes.permitted = at(10));
            writes.forget_before("u", at(turned));
            writes.pause(&pod(3), marks, Instant::now()).is_some()
        };
        assert!(paused(None, 10), "another program took it back");
        assert!(!paused(None, 11), "an operation was undone");
        assert!(paused(Some("denied"), 11), "the policy is still there");
    }
}
