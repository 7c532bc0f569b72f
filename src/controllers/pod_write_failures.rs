//! Remembers the writes of single Pods that the API server refuses, possibly for a long time. The status of their
//! CollaSets reports these refusals.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::api_request::ApiFailure;
use crate::domain::pod::Pod;

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
