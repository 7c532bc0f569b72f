//! Finds Pods that `podToInclude` names and that are not managed. The caches contain managed Pods only. Therefore this
//! module reads the missing names from the API server: otherwise a user who forgot the control label would never learn
//! why the Pod is not included.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::super::ControllerContext;
use super::reconcile_state::ReconcileState;
use crate::api::collaset::CollaSet;
use crate::api_request;
use crate::cluster::request_path::ResourcePath;
use crate::domain::pod::Pod;

/// A lookup that takes longer is repeated later.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The Pods in `podToInclude` that exist and are not managed, in the order of their names.
pub async fn find_unmanaged_pods(
    context: &ControllerContext,
    set: &CollaSet,
    state: &ReconcileState,
) -> Vec<Arc<Pod>> {
    let scale = set.spec.scale_strategy.as_ref();
    let included = scale.map_or(&[][..], |scale| &scale.pod_to_include);
    let is_deleting = set.metadata.deletion_timestamp.is_some();
    let mut unknown: BTreeSet<String> = match is_deleting {
        true => BTreeSet::new(),
        false => included.iter().cloned().collect(),
    };
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    if !unknown.is_empty()
        && let Some(namespace_index) = context.index.read_state().namespace(namespace)
    {
        for pod in namespace_index.pods.values() {
            unknown.remove(&pod.metadata.name);
        }
    }
    let (now, generation) = (Instant::now(), set.metadata.generation.unwrap_or(0));
    let due = state.names_to_look_up(&unknown, now, generation);
    let answers = join_all(due.into_iter().map(|name| async {
        let pod = read_unmanaged_pod(context, namespace, &name, state).await;
        (name, pod)
    }));
    state.record_lookups(answers.await, now)
}

/// Reads a Pod; returns it if it exists and is not managed. A read that fails counts as if the Pod did not exist, and
/// is repeated after the same time. If the Pod is managed, the Pod cache does not contain it yet, and the next plan
/// waits for the cache. Otherwise the controller would create another Pod in its place.
async fn read_unmanaged_pod(
    context: &ControllerContext,
    namespace: &str,
    name: &str,
    state: &ReconcileState,
) -> Option<Arc<Pod>> {
    let request = async {
        let request = ResourcePath::from_parts("/api/v1", namespace, "pods")?.get(name)?;
        context.client.request::<Pod>(request).await
    };
    let mut pod = api_request::within(LOOKUP_TIMEOUT, request).await.ok()?;
    if pod.is_managed() {
        state.record_pod_write(pod.metadata.resource_version);
    }
    if pod.is_managed() || pod.is_terminating() {
        return None;
    }
    pod.metadata = pod.metadata.reduced(); // the state keeps this Pod in memory, as a cache does
    Some(Arc::new(pod))
}
