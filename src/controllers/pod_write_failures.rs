//! Remembers the writes of single Pods that the API server refuses, possibly for a long time. The status of their
//! CollaSets reports these refusals.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::Error;
use parking_lot::Mutex;

use super::ControllerContext;
use super::api_calls::{call_outcome, with_api_deadline};
use crate::api_request::ApiFailure;
use crate::cluster::events::pod_reference;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;

/// Reason of the Event about a lifecycle step that is refused or never answered.
const STEP_REFUSED_REASON: &str = "LifecycleStepRefused";

/// By UID of the Pod, why it can't be written. The reasons are kept in memory only; the next try after a restart finds
/// them again.
#[derive(Debug, Default)]
pub struct PodWriteFailures(Mutex<HashMap<String, String>>);

impl PodWriteFailures {
    /// Records that a Pod can't be written for now.
    pub fn record_write_failure(&self, uid: &str, reason: String) {
        self.0.lock().insert(uid.to_owned(), reason);
    }

    /// Records that a Pod was written, or does not need a write.
    pub fn clear_write_failure(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Forgets all failures, because another leader may have met others or seen them end.
    pub fn clear_all_failures(&self) {
        self.0.lock().clear();
    }

    /// The failures of these Pods, by UID.
    pub fn failures_of_pods(&self, pods: &[Arc<Pod>]) -> BTreeMap<String, String> {
        let failures = self.0.lock();
        if failures.is_empty() {
            return BTreeMap::new();
        }
        let failure_of_pod = |pod: &Arc<Pod>| {
            let uid = &pod.metadata.uid;
            Some((uid.clone(), failures.get(uid)?.clone()))
        };
        pods.iter().filter_map(failure_of_pod).collect()
    }
}

/// The text of a refusal that may last, or of a request without an answer; `None` if a newer object or the next try may
/// succeed.
pub fn lasting_failure(failure: &ApiFailure) -> Option<String> {
    match failure {
        ApiFailure::Answered(status) => {
            (!matches!(status.code, 404 | 409 | 429)).then(|| failure.text())
        }
        ApiFailure::NoAnswer(limit) => Some(format!(
            "the API server has not answered within {} s; a webhook that it calls may be slow",
            limit.as_secs()
        )),
        ApiFailure::Broken(_) => None,
    }
}

/// Writes a lifecycle step of a Pod. A refusal may last while the Pod is off traffic. Therefore an Event on the Pod and
/// the status of its CollaSet report it.
pub async fn write_lifecycle_step<T>(
    context: &ControllerContext,
    pod: &Pod,
    description: &'static str,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, ReconcileOutcome> {
    let uid = &pod.metadata.uid;
    let result = with_api_deadline(request).await;
    match result.as_ref().map_err(lasting_failure) {
        Ok(_) => context.blocked_lifecycles.clear_write_failure(uid),
        Err(Some(reason)) => {
            let message = format!(
                "The lifecycle of the Pod can't continue: its next step can't be written and will be tried again: {reason}"
            );
            context.blocked_lifecycles.record_write_failure(uid, reason);
            let reference = pod_reference(pod);
            context
                .events
                .record_event(&reference, true, STEP_REFUSED_REASON, &message);
        }
        Err(None) => {}
    }
    call_outcome(description, false, result)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// A webhook may be slower than the deadline of the request.
    #[tokio::test(start_paused = true)]
    async fn step_that_is_never_answered_has_a_reason() {
        let service = tower::service_fn(|_: http::Request<Body>| {
            pending::<Result<http::Response<Body>, std::convert::Infallible>>()
        });
        let context = ControllerContext::at_epoch(Client::new(service, "default"));
        let mut pod = Pod::default();
        pod.metadata.uid = "u".to_owned();
        let request = pending::<Result<(), Error>>();
        let result = write_lifecycle_step(&context, &pod, "step a Pod", request).await;
        assert_eq!(result, Err(ReconcileOutcome::Retry));
        let failures = context
            .blocked_lifecycles
            .failures_of_pods(&[Arc::new(pod)]);
        assert!(failures["u"].contains("has not answered within 15 s"));
    }
}
