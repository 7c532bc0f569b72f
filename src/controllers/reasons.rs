//! What the API server refuses of single Pods, which may last: the status of their CollaSets says it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kube::Error;
use parking_lot::Mutex;

use super::{Context, write};
use crate::cluster::events::about_pod;
use crate::cluster::failure;
use crate::cluster::queue::Outcome;
use crate::domain::pod::Pod;

/// Reason of the Event that tells of a step of a lifecycle that is refused.
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

/// The words of a refusal that may last; `None` for what a newer object or the next try mends.
pub fn lasting(error: &Error) -> Option<String> {
    let Error::Api(status) = error else {
        return None;
    };
    (!matches!(status.code, 404 | 409 | 429)).then(|| failure::text(error))
}

/// Writes a step of a Pod's lifecycle. A refusal may last, and the Pod be off traffic: the Pod says so, and its CollaSet.
pub async fn step<T>(
    context: &Context,
    pod: &Pod,
    what: &'static str,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, Outcome> {
    let uid = &pod.metadata.uid;
    let told = async {
        let done = request.await;
        match done.as_ref().map_err(lasting) {
            Ok(_) => context.unstepped.forget(uid),
            Err(Some(why)) => {
                let message = format!(
                    "The lifecycle of the Pod can't go on: its next step is refused, and tried again: {why}"
                );
                context.unstepped.note(uid, why);
                let about = about_pod(pod);
                context.events.record(&about, true, REFUSED, &message);
            }
            Err(None) => {}
        }
        done
    };
    write(what, told).await
}
