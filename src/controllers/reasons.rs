//! What the API server refuses of single Pods, which may last: the status of their CollaSets says it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::Error;
use parking_lot::Mutex;

use super::{Context, in_time, outcome};
use crate::apirequest::Failure;
use crate::cluster::events::about_pod;
use crate::cluster::queue::Outcome;
use crate::domain::pod::Pod;

/// Reason of the Event that tells of a step of a lifecycle that is refused, or never answered.
const REFUSED: &str = "LifecycleStepRefused";

/// By UID, why each can't be written. What is known goes with the process, and is learnt anew by the next try.
#[derive(Debug, Default)]
pub struct Reasons(Mutex<HashMap<String, String>>);

impl Reasons {
    /// A Pod can't be written for now.
    pub fn note(&self, uid: &str, why: String) {
        self.0.lock().insert(uid.to_owned(), why);
    }

    /// A Pod is written, or need not be.
    pub fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }

    /// Forgets all: what another leader has met, or mended, is not known.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Those of these Pods, and why.
    pub fn of(&self, pods: &[Arc<Pod>]) -> BTreeMap<String, String> {
        let known = self.0.lock();
        if known.is_empty() {
            return BTreeMap::new();
        }
        let why = |pod: &Arc<Pod>| {
            let uid = &pod.metadata.uid;
            Some((uid.clone(), known.get(uid)?.clone()))
        };
        pods.iter().filter_map(why).collect()
    }
}

/// The words of a refusal that may last, or of an answer that never comes; `None` for what a newer object or the next try mends.
pub fn lasting(failure: &Failure) -> Option<String> {
    match failure {
        Failure::Answered(status) => {
            (!matches!(status.code, 404 | 409 | 429)).then(|| failure.text())
        }
        Failure::NoAnswer(limit) => Some(format!(
            "the API server has not answered within {} s; a webhook that it calls may be slow",
            limit.as_secs()
        )),
        Failure::Broken(_) => None,
    }
}

/// Writes a step of a Pod's lifecycle. A refusal may last, and the Pod be off traffic: the Pod says so, and its CollaSet.
pub async fn step<T>(
    context: &Context,
    pod: &Pod,
    what: &'static str,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Outcome> {
    let uid = &pod.metadata.uid;
    let done = in_time(request).await;
    match done.as_ref().map_err(lasting) {
        Ok(_) => context.unstepped.forget(uid),
        Err(Some(why)) => {
            let message = format!(
                "The lifecycle of the Pod can't go on: its next step is not written, and tried again: {why}"
            );
            context.unstepped.note(uid, why);
            let about = about_pod(pod);
            context.events.record(&about, true, REFUSED, &message);
        }
        Err(None) => {}
    }
    outcome(what, false, done)
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use kube::Client;
    use kube::client::Body;

    use super::*;

    /// A webhook may be slower than anybody waits.
    #[tokio::test(start_paused = true)]
    async fn step_that_is_never_answered_has_a_reason() {
        let service = tower::service_fn(|_: http::Request<Body>| {
            pending::<Result<http::Response<Body>, std::convert::Infallible>>()
        });
        let context = Context::at_epoch(Client::new(service, "default"));
        let mut pod = Pod::default();
        pod.metadata.uid = "u".to_owned();
        let never = pending::<Result<(), Error>>();
        let done = step(&context, &pod, "step a Pod", never).await;
        assert_eq!(done, Err(Outcome::Retry));
        let known = context.unstepped.of(&[Arc::new(pod)]);
        assert!(known["u"].contains("has not answered within 15 s"));
    }
}
