//! Replaced Pods whose end the watch has proved. The watch of managed Pods also delivers a deletion when a Pod is taken out
//! of management, so a Pod that has left the index need not be gone.

use std::collections::{HashSet, VecDeque};

use parking_lot::Mutex;

use crate::api::keys;
use crate::domain::pod::Pod;
use crate::ledger::store::Uid;

/// How many Pods are remembered. A reader who does not find a Pod here reads it from the API server.
const MAX_PODS: usize = 2_000;

/// The UIDs of the Pods that have ended last.
#[derive(Debug, Default)]
pub struct EndedPods(Mutex<RecentUids>);

#[derive(Debug, Default)]
struct RecentUids {
    uids: HashSet<Uid>,
    order: VecDeque<Uid>,
}

impl EndedPods {
    /// Records the last state of a Pod that the watch has delivered as deleted. Only the end of a Pod that was to be
    /// replaced is of interest. It is proved if the grace period was over and no finalizer was left: in this state the API
    /// server removes the Pod.
    pub(super) fn record(&self, last: &Pod) {
        let metadata = &last.metadata;
        let has_ended = last.is_terminating()
            && metadata.deletion_grace_period_seconds == Some(0)
            && metadata.finalizers.is_empty();
        let labels = [keys::TO_REPLACE, keys::REPLACE_PAIR_NEW_ID];
        if !has_ended || labels.iter().all(|key| last.label(key).is_none()) {
            return;
        }
        let uid = Uid::from(metadata.uid.as_str());
        let mut recent = self.0.lock();
        if recent.uids.insert(uid.clone()) {
            recent.order.push_back(uid);
        }
        if recent.order.len() > MAX_PODS
            && let Some(oldest) = recent.order.pop_front()
        {
            recent.uids.remove(&oldest);
        }
    }

    /// Whether the Pod with this UID is known to be gone.
    pub fn contains(&self, uid: &str) -> bool {
        self.0.lock().uids.contains(uid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn last_state(uid: &str, change: Value) -> Pod {
        let mut metadata = json!({
            "uid": uid, "labels": { (keys::TO_REPLACE): "true" },
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 0,
        });
        json_patch::merge(&mut metadata, &change);
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn only_pod_that_nothing_holds_has_ended() {
        let ended = EndedPods::default();
        for (uid, change, expected) in [
            ("ended", json!({}), true),
            (
                "lives",
                json!({ "deletionTimestamp": null, "deletionGracePeriodSeconds": null }),
                false,
            ),
            (
                "terminates",
                json!({ "deletionGracePeriodSeconds": 30 }),
                false,
            ),
            ("held", json!({ "finalizers": ["a/b"] }), false),
            ("not-replaced", json!({ "labels": null }), false),
        ] {
            ended.record(&last_state(uid, change));
            assert_eq!(ended.contains(uid), expected, "{uid}");
        }
    }

    #[test]
    fn oldest_pods_are_forgotten() {
        let ended = EndedPods::default();
        for n in 0..=MAX_PODS {
            ended.record(&last_state(&n.to_string(), json!({})));
            ended.record(&last_state(&n.to_string(), json!({})));
        }
        assert!(!ended.contains("0") && ended.contains("1"));
        assert!(ended.contains(&MAX_PODS.to_string()));
    }
}
