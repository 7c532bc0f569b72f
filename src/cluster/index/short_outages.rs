//! Remembers which Pods are down for a moment, as this replica has seen it.
//!
//! A Pod that is down for a moment will serve again by itself. An operation on such a Pod would make the outage longer.
//! Therefore a disruption of such a Pod is not exempt, and needs headroom in the budget. The same holds for a Pod that
//! is Ready again and only lacks the label `service-available`, because the leader will write the label soon.
//!
//! The time is measured by this replica's own monotonic clock. The `lastTransitionTime` of the condition Ready is not
//! used, because the clock of another machine has written it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::IndexState;
use crate::domain::lifecycle::is_held_offline;
use crate::domain::pod::{BRIEFLY_DOWN, Pod};
use crate::ledger::store::Uid;

/// When each Pod last became unavailable, or changed between Ready and not Ready while it was unavailable. It has no
/// entry for a Pod that is available, terminating, finished or gone, that an operation keeps off traffic, or that has
/// never been Ready.
#[derive(Debug, Default)]
pub(super) struct ShortOutages(HashMap<Uid, Instant>);

impl ShortOutages {
    /// Records a change of a Pod. `old` is `None` for a Pod that this replica did not know, and `new` is `None` for a
    /// Pod that is gone.
    ///
    /// The time when an unknown Pod became unavailable cannot be known. Such a Pod counts as down from now on, unless
    /// it has never run. After a restart of this replica, this holds for every unavailable Pod.
    pub fn observe_pod_change(&mut self, uid: &Uid, old: Option<&Pod>, new: Option<&Pod>) {
        let Some(new) = new.filter(|pod| !pod.is_available() && may_recover(pod)) else {
            self.0.remove(uid);
            return;
        };
        if old.map_or_else(|| has_started(new), |old| is_readiness_change(old, new)) {
            self.0.insert(uid.clone(), Instant::now());
        }
    }
}

impl IndexState {
    /// Whether a Pod is not available, and this replica has seen it serve, or change between Ready and not Ready, less
    /// than [`BRIEFLY_DOWN`] ago. False for a Pod that cannot run as it is ([`Pod::is_broken`]), that is terminating or
    /// finished, or that an operation keeps off traffic.
    ///
    /// `pod` may be newer than the cache. A change that the cache has not seen counts as new.
    pub fn is_briefly_down(&self, pod: &Pod) -> bool {
        self.remaining_brief_outage(pod).is_some()
    }

    /// How much longer [`IndexState::is_briefly_down`] stays true if nothing changes. `None` if it is false now.
    ///
    /// While the watch of Pods is not trusted, a Pod that has run may have served a moment ago, whatever the cache has.
    pub fn remaining_brief_outage(&self, pod: &Pod) -> Option<Duration> {
        if pod.is_available() || pod.is_broken() || !may_recover(pod) {
            return None;
        }
        if !self.following.pods.is_trusted_now() && has_started(pod) {
            return Some(BRIEFLY_DOWN);
        }
        let uid = pod.metadata.uid.as_str();
        let namespace = self.namespace(&pod.metadata.namespace);
        let known = namespace.and_then(|n| n.pods.get(uid));
        if known.map_or_else(|| has_started(pod), |known| is_readiness_change(known, pod)) {
            return Some(BRIEFLY_DOWN);
        }
        let since = namespace?.short_outages.0.get(uid)?;
        let remaining = BRIEFLY_DOWN.saturating_sub(since.elapsed());
        (!remaining.is_zero()).then_some(remaining)
    }
}

/// Whether a Pod that does not serve now served before, or has changed between Ready and not Ready.
fn is_readiness_change(before: &Pod, now: &Pod) -> bool {
    before.is_available() || before.is_ready() != now.is_ready()
}

fn may_recover(pod: &Pod) -> bool {
    !pod.is_terminating() && !pod.is_finished() && !is_held_offline(pod)
}

/// Whether the containers of a Pod have run. Before that, the Pod cannot have been Ready.
fn has_started(pod: &Pod) -> bool {
    !matches!(pod.status.phase.as_str(), "" | "Pending")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::super::Index;
    use super::*;
    use crate::api::keys;

    fn pod(ready: bool, patch: Value) -> Pod {
        let mut pod = json!({
            "metadata": {
                "namespace": "n", "name": "web-1", "uid": "u1",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): "1" },
            },
            "spec": { "containers": [{ "name": "app" }] },
            "status": {
                "phase": "Running",
                "conditions": [{ "type": "Ready", "status": if ready { "True" } else { "False" } }],
            },
        });
        json_patch::merge(&mut pod, &patch);
        serde_json::from_value(pod).unwrap()
    }

    /// A Pod from which the leader has removed the label `service-available`.
    fn unlabelled(ready: bool) -> Pod {
        let labels = json!({ (keys::SERVICE_AVAILABLE): null });
        pod(ready, json!({ "metadata": { "labels": labels } }))
    }

    fn operated() -> Pod {
        let labels = json!({
            (keys::SERVICE_AVAILABLE): null,
            "operating.podopslifecycle.kusionstack.io/id": "1",
            "preparing.podopslifecycle.kusionstack.io/id": "1",
        });
        pod(false, json!({ "metadata": { "labels": labels } }))
    }

    fn index_after_versions(versions: impl IntoIterator<Item = Pod>) -> Index {
        let index = Index::default();
        index.decision_watches.trust_for_a_year();
        for version in versions {
            index.apply_pod(version);
        }
        index
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_lost_readiness_is_down_for_a_moment_only() {
        let down = pod(false, json!({}));
        let index = index_after_versions([pod(true, json!({})), down.clone()]);
        assert!(index.read_state().is_briefly_down(&down));
        index.apply_pod(unlabelled(false));
        tokio::time::advance(BRIEFLY_DOWN / 2).await;
        assert!(index.read_state().is_briefly_down(&unlabelled(false)));
        assert!(
            index.read_state().is_briefly_down(&unlabelled(true)),
            "on its way back"
        );
        assert_eq!(
            index.read_state().remaining_brief_outage(&down),
            Some(BRIEFLY_DOWN / 2)
        );
        tokio::time::advance(BRIEFLY_DOWN / 2).await;
        assert!(!index.read_state().is_briefly_down(&down));
        // The Pod is Ready for an instant, so the time starts anew.
        index.apply_pod(unlabelled(true));
        index.apply_pod(unlabelled(false));
        assert!(index.read_state().is_briefly_down(&down));
        index.apply_pod(pod(true, json!({})));
        let removed = unlabelled(true);
        assert!(
            index.read_state().is_briefly_down(&removed),
            "the leader puts the label back"
        );
        index.apply_pod(removed.clone());
        tokio::time::advance(BRIEFLY_DOWN).await;
        assert!(
            !index.read_state().is_briefly_down(&removed),
            "nobody puts the label back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn pod_found_down_after_a_restart_counts_as_lost_then() {
        let down = unlabelled(false);
        let index = Index::default();
        index.decision_watches.trust_for_a_year();
        index.replace_pods(vec![down.clone()], 7);
        assert!(index.read_state().is_briefly_down(&down));
        tokio::time::advance(BRIEFLY_DOWN).await;
        index.replace_pods(vec![down.clone()], 8);
        assert!(!index.read_state().is_briefly_down(&down));
    }

    #[tokio::test]
    async fn pod_that_was_never_ready_is_not_lost() {
        let pending = pod(false, json!({ "status": { "phase": "Pending" } }));
        let index = index_after_versions([pending.clone()]);
        assert!(!index.read_state().is_briefly_down(&pending));
        index.apply_pod(unlabelled(false));
        assert!(!index.read_state().is_briefly_down(&unlabelled(false)));
        assert!(
            index.read_state().is_briefly_down(&unlabelled(true)),
            "about to serve"
        );
    }

    #[tokio::test]
    async fn failed_terminating_or_operated_pod_is_not_briefly_down() {
        let index = index_after_versions([pod(true, json!({})), pod(false, json!({}))]);
        let crashed = json!({ "status": { "containerStatuses": [
            { "name": "app", "state": { "waiting": { "reason": "CrashLoopBackOff" } } },
        ] } });
        let deleted = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let failed = json!({ "status": { "phase": "Failed" } });
        for not_lost in [crashed, deleted, failed] {
            let pod = pod(false, not_lost);
            assert!(!index.read_state().is_briefly_down(&pod), "{pod:?}");
        }
        assert!(!index.read_state().is_briefly_down(&operated()));
        index.apply_pod(operated());
        assert!(
            !index.read_state().is_briefly_down(&unlabelled(false)),
            "forgotten"
        );
    }

    #[tokio::test]
    async fn loss_that_the_cache_has_not_seen_counts() {
        let index = index_after_versions([pod(true, json!({}))]);
        assert!(index.read_state().is_briefly_down(&pod(false, json!({}))));
        assert!(
            Index::default()
                .read_state()
                .is_briefly_down(&pod(false, json!({})))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn untrusted_watch_counts_every_outage_as_brief() {
        let down = unlabelled(false);
        let index = index_after_versions([pod(true, json!({})), down.clone()]);
        tokio::time::advance(BRIEFLY_DOWN).await;
        assert!(!index.read_state().is_briefly_down(&down));
        index.decision_watches.pods.end_trust();
        assert_eq!(
            index.read_state().remaining_brief_outage(&down),
            Some(BRIEFLY_DOWN)
        );
        let pending = pod(false, json!({ "status": { "phase": "Pending" } }));
        assert!(!index.read_state().is_briefly_down(&pending));
    }

    #[tokio::test]
    async fn nothing_is_kept_of_pods_that_serve_or_are_gone() {
        let kept = |index: &Index| {
            index
                .read_state()
                .namespace("n")
                .map_or(0, |n| n.short_outages.0.len())
        };
        let index = index_after_versions([pod(true, json!({})), pod(false, json!({}))]);
        assert_eq!(kept(&index), 1);
        index.delete_pod(&pod(false, json!({})));
        assert_eq!(kept(&index), 0);
        let index = index_after_versions([
            pod(true, json!({})),
            pod(false, json!({})),
            pod(true, json!({})),
        ]);
        assert_eq!(kept(&index), 0);
    }
}
