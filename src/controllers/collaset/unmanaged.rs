//! Pods that `podToInclude` names and that are not managed. The caches hold managed Pods only, so the API server is asked for the
//! names that they do not know: a user who forgot the control label would wait in vain.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tokio::time::Instant;

use super::super::Context;
use super::reconcile_state::ReconcileState;
use crate::api::collaset::CollaSet;
use crate::apirequest;
use crate::cluster::request_path::ResourcePath;
use crate::domain::pod::Pod;

/// What is not answered by then is asked for again later.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The Pods in `podToInclude` that are there and not managed, in the order of their names.
pub async fn find_unmanaged_pods(
    context: &Context,
    set: &CollaSet,
    memory: &ReconcileState,
) -> Vec<Arc<Pod>> {
    let scale = set.spec.scale_strategy.as_ref();
    let included = scale.map_or(&[][..], |scale| &scale.pod_to_include);
    let goes = set.metadata.deletion_timestamp.is_some();
    let mut unknown: BTreeSet<String> = match goes {
        true => BTreeSet::new(),
        false => included.iter().cloned().collect(),
    };
    let namespace = set.metadata.namespace.as_deref().unwrap_or_default();
    if !unknown.is_empty()
        && let Some(home) = context.index.read_state().namespace(namespace)
    {
        for pod in home.pods.values() {
            unknown.remove(&pod.metadata.name);
        }
    }
    let (now, generation) = (Instant::now(), set.metadata.generation.unwrap_or(0));
    let due = memory.names_to_look_up(&unknown, now, generation);
    let answers = join_all(due.into_iter().map(|name| async {
        let pod = read_unmanaged_pod(context, namespace, &name, memory).await;
        (name, pod)
    }));
    memory.record_lookups(answers.await, now)
}

/// A Pod that is there and not managed. One that can't be read is asked for again as one that is not there. One that is managed is on its way
/// to the cache, which has to come there first: another would be made in its place.
async fn read_unmanaged_pod(
    context: &Context,
    namespace: &str,
    name: &str,
    memory: &ReconcileState,
) -> Option<Arc<Pod>> {
    let request = async {
        let request = ResourcePath::from_parts("/api/v1", namespace, "pods")?.get(name)?;
        context.client.request::<Pod>(request).await
    };
    let mut pod = apirequest::within(LOOKUP_TIMEOUT, request).await.ok()?;
    if pod.is_managed() {
        memory.record_pod_write(pod.metadata.resource_version);
    }
    if pod.is_managed() || pod.is_terminating() {
        return None;
    }
    pod.metadata = pod.metadata.reduced(); // it is kept as long as one of a cache
    Some(Arc::new(pod))
}
