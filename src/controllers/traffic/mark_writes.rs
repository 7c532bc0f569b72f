//! Writes the marks of Pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::{FutureExt, StreamExt, stream};
use jiff::Timestamp;
use tracing::debug;
use traffic::plan::{Mark, Memory, View};

use super::super::ControllerContext;
use super::super::requests::{RequestError, request_with_deadline};
use crate::cluster::pod_requests;
use crate::domain::pod::Pod;
use crate::domain::traffic::names::EmployerName;
use crate::domain::traffic::pod_marks::{self, PodMarks};

/// Writes that are under way at the same time, for one employer.
const AT_ONCE: usize = 8;

/// What became of the writes.
#[derive(Default)]
pub struct MarkResult {
    /// Whether a write failed that must be tried again.
    pub failed: bool,
    /// The last failure, for the report.
    pub error: Option<String>,
    /// How long each Pod waited until traffic was off, in order of the writes.
    pub drained: Vec<std::time::Duration>,
    /// How long each Pod waited until traffic was on.
    pub served: Vec<std::time::Duration>,
}

/// Writes the marks that the plan permits.
pub async fn write_marks(
    context: &ControllerContext,
    employer: &EmployerName,
    pods: &BTreeMap<String, Arc<Pod>>,
    (view, memory, marks): (&View, &Memory, &BTreeMap<String, Mark>),
    now: Timestamp,
) -> MarkResult {
    let mut result = MarkResult::default();
    let mut changes = Vec::new();
    for (uid, pod) in pods {
        let Some(mark) = marks.get(uid) else { continue };
        if let Some(other) = pod_marks::sharing_employer(employer, pod) {
            result.error = Some(format!(
                "Pod {} is marked by {other}, which has the same name and so the same finalizer; give one of them another \
                 name",
                pod.metadata.name
            ));
            continue;
        }
        let wanted = wanted_marks(view, employer, pod, mark);
        changes
            .extend(pod_marks::change(employer, pod, wanted).map(|change| (pod, change, wanted)));
    }
    let mut writes = Vec::new();
    for (pod, change, wanted) in changes {
        let write = async move {
            let request = pod_requests::patch_metadata(&context.client, pod, change);
            (
                pod,
                wanted,
                request_with_deadline(&pod.metadata.name, request).await,
            )
        };
        writes.push(write.boxed());
    }
    let mut writes = stream::iter(writes).buffer_unordered(AT_ONCE);
    while let Some((pod, wanted, written)) = writes.next().await {
        let had = PodMarks::of(employer, pod);
        match written {
            // The write has begun an operation, which protects the Pod until the next look.
            Ok(stored)
                if !had.protected
                    && !wanted.protected
                    && PodMarks::of(employer, &stored).protected => {}
            // A webhook has changed the marks in the same write.
            Ok(stored) if pod_marks::change(employer, &stored, wanted).is_some() => {
                result.failed = true;
                result.error = Some(error_text(RequestError::not_as_written(&pod.metadata.name)));
            }
            Ok(_) => {
                let turned = memory.turned_at(&pod.metadata.uid);
                let took = turned.map(|turned| now.duration_since(turned).unsigned_abs());
                match (had.protected, wanted.protected) {
                    (true, false) => result.drained.extend(took),
                    (false, true) => result.served.extend(took),
                    _ => {}
                }
            }
            Err(RequestError::Moved) => debug!(pod = pod.metadata.name, "the Pod has changed"),
            Err(error) => {
                result.failed = true;
                result.error = Some(error_text(error));
            }
        }
    }
    result
}

/// The marks that a Pod should have.
fn wanted_marks(view: &View, employer: &EmployerName, pod: &Pod, mark: &Mark) -> PodMarks {
    let present = PodMarks::of(employer, pod);
    let uid = &pod.metadata.uid;
    let selected = view.pods.get(uid).is_some_and(|input| input.selected);
    let stays = selected && !view.deleting;
    let refused = view.refused.is_some();
    let protected = match mark {
        Mark::Protect => true,
        Mark::Release => false,
        Mark::Keep(_) => present.protected,
    };
    let expected = match (stays && !refused, protected) {
        // A Pod that serves already would lose its availability until it has the finalizer.
        (true, false) => present.expected || !pod.is_available(),
        (true, true) => true,
        (false, protected) => protected && present.expected,
    };
    PodMarks {
        expected,
        protected,
    }
}

/// Removes all marks of an employer from Pods. Returns whether every write was made.
pub async fn release_all(
    context: &ControllerContext,
    employer: &EmployerName,
    pods: &[Arc<Pod>],
) -> bool {
    let none = PodMarks {
        expected: false,
        protected: false,
    };
    let mut writes = Vec::new();
    for pod in pods {
        let Some(change) = pod_marks::change(employer, pod, none) else {
            continue;
        };
        let write = async move {
            let request = pod_requests::patch_metadata(&context.client, pod, change);
            request_with_deadline(&pod.metadata.name, request)
                .await
                .is_ok()
        };
        writes.push(write.boxed());
    }
    let written: Vec<bool> = stream::iter(writes)
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    written.into_iter().all(|written| written)
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
