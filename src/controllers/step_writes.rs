//! Writes the lifecycle steps of Pods, and reports the steps that the API server refuses.

use kube::Error;

use super::ControllerContext;
use super::api_calls::{call_outcome, with_api_deadline};
use super::pod_write_failures::lasting_failure;
use crate::cluster::events::pod_reference;
use crate::cluster::work_queue::ReconcileOutcome;
use crate::domain::pod::Pod;

/// Reason of the Event about a lifecycle step that is refused or never answered.
const STEP_REFUSED_REASON: &str = "LifecycleStepRefused";

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
    use std::sync::Arc;

    use testbed::api::FakeApi;

    use super::*;

    /// A webhook may be slower than the deadline of the request.
    #[tokio::test(start_paused = true)]
    async fn step_that_is_never_answered_has_a_reason() {
        let api = FakeApi::default();
        api.0.lock().is_hanging = true;
        let context = ControllerContext::at_epoch(api.client());
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
