//! Loads the Pod of a review as it is stored.
//!
//! A client other than the API server may send a review. If the Pod in the review does not exist, does not have the
//! stated version, or is not selected by the rules, a claim for it would use the budget for nothing. So the
//! server verifies the Pod of a review by the cache or a live read before it writes anything for the Pod.

use std::cmp::Ordering;
use std::sync::Arc;

use tokio::time::Instant;

use super::context::AdmissionContext;
use crate::api_request;
use crate::cluster::pod_requests;
use crate::domain::pod::Pod;
use crate::ledger::commit::{Denied, DenyReason};

/// The stored Pod of a DELETE or an UPDATE, at the version that the review shows. `None` if the Pod is no longer stored
/// at this version: the API server's transaction requires this version and must fail, so there is nothing to hold, and
/// the API server sends a new review with the current version.
///
/// # Errors
/// [`DenyReason::Unconfirmed`] if the stored Pod differs from the Pod in the review or is older,
/// [`DenyReason::Unreachable`] if the Pod cannot be read.
pub async fn load_reviewed_pod(
    context: &AdmissionContext,
    shown: &Arc<Pod>,
    deadline: Instant,
) -> Result<Option<Arc<Pod>>, Denied> {
    let (namespace, uid) = (&shown.metadata.namespace, &shown.metadata.uid);
    let version = shown.metadata.resource_version;
    let cached = context.index.read_state().pod(namespace, uid).cloned();
    let cached_version = cached.as_ref().map_or(0, |c| c.metadata.resource_version);
    let is_whole = |cached: &Arc<Pod>| !cached.metadata.labels_dropped;
    if let Some(cached) = cached.filter(|cached| cached_version == version && is_whole(cached)) {
        return check_shown_pod(shown, cached).map(Some);
    }
    // A cache that is newer than the review is no proof: etcd may have been restored to an earlier state.
    let read = pod_requests::get_pod(&context.client, namespace, &shown.metadata.name);
    let live = api_request::by(deadline, read).await;
    let live = live.map_err(|failure| Denied::unreachable(failure.text()))?;
    let live = live.filter(|live| live.metadata.uid == *uid);
    let Some(live) = live else { return Ok(None) };
    let found = live.metadata.resource_version;
    if found < cached_version {
        context
            .index
            .etcd_history
            .mark_lost("Pods", cached_version, found);
    }
    if let Some(why) = context.index.etcd_history.lost_reason() {
        return Err(Denied::unreachable(why.as_ref()));
    }
    match found.cmp(&version) {
        Ordering::Greater => Ok(None),
        Ordering::Equal => check_shown_pod(shown, Arc::new(live)).map(Some),
        Ordering::Less => Err(Denied::without_rule(DenyReason::Unconfirmed)),
    }
}

/// The stored Pod, if the review shows the same name and labels.
fn check_shown_pod(shown: &Pod, stored: Arc<Pod>) -> Result<Arc<Pod>, Denied> {
    let (shown, found) = (&shown.metadata, &stored.metadata);
    match found.labels == shown.labels && found.name == shown.name {
        true => Ok(stored),
        false => Err(Denied::without_rule(DenyReason::Unconfirmed)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use std::convert::Infallible;
    use std::time::Duration;

    use http::Response;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    fn json_of(uid: &str, version: u64, app: &str) -> Value {
        json!({ "metadata": {
            "namespace": "shop", "name": "web-1", "uid": uid, "resourceVersion": version.to_string(),
            "labels": { "kusionstack.io/control": "true", "app": app },
        } })
    }

    fn pod(uid: &str, version: u64, app: &str) -> Arc<Pod> {
        Arc::new(serde_json::from_value(json_of(uid, version, app)).unwrap())
    }

    /// The result for the Pod that a review shows, with this Pod in the cache and this Pod in etcd.
    async fn load_outcome(
        shown: &Arc<Pod>,
        cached: Option<Arc<Pod>>,
        stored: Option<Value>,
    ) -> Result<Option<u64>, DenyReason> {
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let not_found = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
                "details": { "kind": "pods", "name": "web-1" } });
            let code = if stored.is_some() { 200 } else { 404 };
            let body = Body::from(stored.clone().unwrap_or(not_found).to_string().into_bytes());
            let response = Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(response))
        });
        let context = AdmissionContext::at_epoch(Client::new(service, "default"));
        if let Some(pod) = cached {
            let version = pod.metadata.resource_version;
            context
                .index
                .replace_pods(vec![Arc::unwrap_or_clone(pod)], version);
        }
        let deadline = Instant::now() + Duration::from_secs(5);
        let found = load_reviewed_pod(&context, shown, deadline).await;
        found
            .map(|pod| pod.map(|pod| pod.metadata.resource_version))
            .map_err(|denied| denied.why)
    }

    #[tokio::test]
    async fn pod_at_review_version_comes_from_cache_or_etcd() {
        let shown = pod("u", 7, "a");
        assert_eq!(
            load_outcome(&shown, Some(pod("u", 7, "a")), None).await,
            Ok(Some(7))
        );
        let stored = Some(json_of("u", 7, "a"));
        assert_eq!(
            load_outcome(&shown, None, stored.clone()).await,
            Ok(Some(7))
        );
        assert_eq!(
            load_outcome(&shown, Some(pod("u", 6, "b")), stored).await,
            Ok(Some(7))
        );
    }

    #[tokio::test]
    async fn pod_that_is_cached_without_some_labels_is_read() {
        let mut cached = pod("u", 7, "a");
        let metadata = &mut Arc::make_mut(&mut cached).metadata;
        metadata.labels.remove("app");
        metadata.labels_dropped = true;
        let stored = Some(json_of("u", 7, "a"));
        assert_eq!(
            load_outcome(&pod("u", 7, "a"), Some(cached), stored).await,
            Ok(Some(7))
        );
    }

    #[tokio::test]
    async fn outdated_or_gone_pod_version_needs_no_claim() {
        let shown = pod("u", 7, "a");
        let later = Some(json_of("u", 8, "a"));
        assert_eq!(
            load_outcome(&shown, Some(pod("u", 8, "a")), later).await,
            Ok(None)
        );
        assert_eq!(
            load_outcome(&shown, None, Some(json_of("u", 8, "a"))).await,
            Ok(None)
        );
        assert_eq!(
            load_outcome(&shown, None, Some(json_of("v", 8, "a"))).await,
            Ok(None)
        );
        assert_eq!(load_outcome(&shown, None, None).await, Ok(None));
    }

    #[tokio::test]
    async fn cache_newer_than_restored_etcd_admits_nothing() {
        let restored = Some(json_of("u", 7, "a"));
        let lost = load_outcome(&pod("u", 7, "a"), Some(pod("u", 9, "a")), restored).await;
        let Err(DenyReason::Unreachable(why)) = lost else {
            panic!("{lost:?}")
        };
        assert!(why.contains("restored"), "{why}");
    }

    #[tokio::test]
    async fn forged_version_and_forged_labels_are_denied() {
        let no = Err(DenyReason::Unconfirmed);
        let future = pod("u", u64::MAX, "a");
        let stored = Some(json_of("u", 8, "a"));
        assert_eq!(
            load_outcome(&future, Some(pod("u", 8, "a")), stored).await,
            no
        );
        let relabelled = pod("u", 7, "other");
        assert_eq!(
            load_outcome(&relabelled, Some(pod("u", 7, "a")), None).await,
            no
        );
        assert_eq!(
            load_outcome(&relabelled, None, Some(json_of("u", 7, "a"))).await,
            no
        );
    }
}
