//! Decides which requests are exempt from availability rules. Each reason is also the value of the audit annotation
//! `free`. With the reason [`COLLASET_DELETED`], the other rules still apply to the lifecycle of the Pod.

use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::ListParams;
use tokio::time::{Instant, timeout};

use super::cache_freshness;
use super::context::{AdmissionContext, MAX_OWNER_LOOKUPS};
use super::review::Request;
use crate::api::keys;
use crate::cluster::index::{Index, IndexState};
use crate::cluster::kind::WatchedKind;
use crate::cluster::presence::Presence;
use crate::domain::pod::{Owner, Pod};

/// User name of the Kubernetes garbage collector.
pub const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// User name of the namespace controller, which deletes objects only in namespaces that are terminating.
pub const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
/// User name of the Job controller. It deletes a Pod of a Job when the Job has failed, is complete, is suspended or has
/// a lower parallelism, and never to replace the Pod. The status of the Job shows a failure only after these deletions.
const JOB_CONTROLLER: &str = "system:serviceaccount:kube-system:job-controller";
/// User name of all controllers if kube-controller-manager runs without `--use-service-account-credentials`.
pub const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
/// Time limit of the live read of a namespace.
const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// Why the deletion, eviction or change of a Pod is exempt; `None` if a rule may hold it.
///
/// This function does not exempt a Pod that is not available. The handlers decide about such a Pod: its eviction, and
/// its deletion shortly before it becomes available, may need a claim.
pub async fn find_exemption(
    context: &AdmissionContext,
    request: &Request,
    pod: &Pod,
    deadline: Instant,
) -> Option<&'static str> {
    if let Some(reason) = exemption_by_request(request, pod) {
        return Some(reason);
    }
    let reason = exemption_by_cache(request, pod, &context.index)?;
    // After a restore of etcd, a namespace may no longer be terminating, and a deleted owner may exist again.
    let history = cache_freshness::ensure_etcd_history(context, &request.namespace, deadline).await;
    history.is_ok().then_some(reason)
}

/// Why a request is exempt, by the content of the request alone.
pub fn exemption_by_request(request: &Request, pod: &Pod) -> Option<&'static str> {
    if !pod.is_managed() {
        return Some("not-managed");
    }
    if pod.is_terminating() {
        return Some("already-terminating");
    }
    if pod.is_finished() {
        return Some("finished");
    }
    if pod.is_mirror() {
        return Some("mirror-pod");
    }
    if keys::EXCLUDED_NAMESPACES.contains(&request.namespace.as_str()) {
        return Some("excluded-namespace");
    }
    let is_emptied = request.user_info.username == NAMESPACE_CONTROLLER;
    is_emptied.then_some("namespace-terminating")
}

/// Why a request is exempt, by the namespace and the owners of the Pod in the caches. The exclusion label of the
/// namespace is not checked: the API server sends no request from an excluded namespace, so a label that the cache
/// still has was removed.
fn exemption_by_cache(request: &Request, pod: &Pod, index: &Index) -> Option<&'static str> {
    let state = index.read_state();
    let namespace_index = state.namespace(&request.namespace);
    if namespace_index.is_some_and(|namespace| namespace.is_deleted_with_namespace(pod)) {
        return Some("namespace-terminating");
    }
    match request.user_info.username.as_str() {
        GARBAGE_COLLECTOR if is_owner_gone(&state, pod) => Some("owner-gone"),
        JOB_CONTROLLER if is_created_by_job(&state, pod) => Some("job-ends"),
        _ => None,
    }
}

/// Whether the Job that controls the Pod has created it, and not adopted it. A Job can adopt Pods that match its
/// selector. But a Job never creates a Pod with restart policy `Always`, which Pods of Deployments and similar
/// workloads have and which cannot be changed. And a Job creates no Pod before the Job itself exists.
fn is_created_by_job(state: &IndexState, pod: &Pod) -> bool {
    if !matches!(pod.spec.restart_policy.as_str(), "Never" | "OnFailure") {
        return false;
    }
    let namespace_index = state.namespace(&pod.metadata.namespace);
    let job = pod
        .controller()
        .filter(|owner| WatchedKind::from_owner(owner) == Some(WatchedKind::Job))
        .and_then(|owner| namespace_index?.workload(&owner.uid));
    job.and_then(|job| job.created)
        .zip(pod.created_at())
        .is_some_and(|(job, pod)| job <= pod)
}

/// Whether the Pod's controller is deleted or being deleted, and no Deployment behind it wants the Pod. For a Pod
/// without a controller, and for a controller of a kind that is not watched, the Kubernetes garbage collector is
/// trusted: it deletes only objects whose owners are gone.
fn is_owner_gone(state: &IndexState, pod: &Pod) -> bool {
    pod.controller().is_none_or(|owner| {
        WatchedKind::from_owner(owner).is_none()
            || state
                .namespace(&pod.metadata.namespace)
                .is_none_or(|n| !n.has_living_owner(owner, pod))
    })
}

/// Why a DELETE of a Pod is exempt; `None` if a rule may hold it. `is_lifecycle_due` says that the lifecycle must take
/// the Pod off traffic first (contract 4.4): then the deletion of the CollaSet does not exempt the Pod yet.
pub async fn find_deletion_exemption(
    context: &AdmissionContext,
    request: &Request,
    pod: &Pod,
    is_lifecycle_due: bool,
    deadline: Instant,
) -> Option<&'static str> {
    if let Some(reason) = find_exemption(context, request, pod, deadline).await {
        return Some(reason);
    }
    if let Some(reason) = exemption_for_controller_manager(context, request, pod).await {
        return Some(reason);
    }
    let is_exempt = !is_lifecycle_due && is_deleted_with_collaset(context, pod, deadline).await;
    is_exempt.then_some(COLLASET_DELETED)
}

/// Why a DELETE by [`CONTROLLER_MANAGER`] is exempt; `None` if a rule may hold it.
///
/// This user name does not distinguish the garbage collector and the namespace controller from the controllers that
/// scale and roll out. So this function verifies the facts: the namespace is terminating, or no owner of the Pod is
/// left.
async fn exemption_for_controller_manager(
    context: &AdmissionContext,
    request: &Request,
    pod: &Pod,
) -> Option<&'static str> {
    if request.user_info.username != CONTROLLER_MANAGER {
        return None;
    }
    // In doubt: the cache has not seen the namespace, or has seen it terminating. The namespace may have been deleted
    // or created again since, so a live read decides.
    let in_doubt = {
        let state = context.index.read_state();
        let namespace = state.namespace(&request.namespace);
        namespace.is_none_or(|n| n.labels.is_none() || n.terminating_since.is_some())
    };
    if in_doubt && is_namespace_terminating(context, &request.namespace).await {
        return Some("namespace-terminating");
    }
    has_no_live_owner(context, pod)
        .await
        .then_some("owner-gone")
}

/// Whether a Pod is deleted together with its CollaSet: a live read shows that the set which controls the Pod is being
/// deleted, and its Pods with it. Budgets do not hold such a Pod, as they do not hold Pods that the garbage collector
/// deletes. Other rules still apply.
///
/// An owner reference alone does not make a Pod exempt: it must have the UID of this set, and a write that gives a Pod
/// another controller needs a claim.
pub async fn is_deleted_with_collaset(
    context: &AdmissionContext,
    pod: &Pod,
    deadline: Instant,
) -> bool {
    let Some(owner) = pod.controller() else {
        return false;
    };
    if !context.index.read_state().is_collaset_absent(pod) {
        return false;
    }
    let (sets, client) = (&context.deleted_collasets, &context.client);
    sets.is_deleted_owner(client, &pod.metadata.namespace, owner, deadline)
        .await
}

/// The exemption reason if [`is_deleted_with_collaset`] is true.
pub const COLLASET_DELETED: &str = "set-deleted";

/// Whether a namespace is terminating, by a live read; false if the read fails. The read is a list, because the server
/// has no right to `get` namespaces.
async fn is_namespace_terminating(context: &AdmissionContext, name: &str) -> bool {
    let namespaces: Api<Namespace> = Api::all(context.client.clone());
    let by_name = ListParams::default().fields(&format!("metadata.name={name}"));
    let Ok(Ok(list)) = timeout(READ_TIMEOUT, namespaces.list_metadata(&by_name)).await else {
        return false;
    };
    let mut found = list.items.iter();
    found.any(|n| n.metadata.deletion_timestamp.is_some())
}

/// Whether the Pod has owners, and all of them are proven to be deleted or being deleted. An owner that cannot be read
/// counts as deleted only if its kind is watched. If there are too many owners to look up, the result is false and the
/// deletion is held.
async fn has_no_live_owner(context: &AdmissionContext, pod: &Pod) -> bool {
    let namespace = &pod.metadata.namespace;
    let owners = &pod.metadata.owner_references;
    let is_known = |owner: &Owner| {
        let state = context.index.read_state();
        let namespace_index = state.namespace(namespace);
        namespace_index.is_some_and(|namespace| namespace.has_living_owner(owner, pod))
    };
    if owners.len() > MAX_OWNER_LOOKUPS || owners.iter().any(is_known) {
        return false;
    }
    for owner in owners {
        match context.object_lookup.look_up_owner(namespace, owner).await {
            Presence::Gone => {}
            Presence::Unknown(_)
                if WatchedKind::from_owner(owner).is_some()
                    && context.index.listed_kinds().has_decision_kinds() => {}
            Presence::Exists | Presence::Leaving | Presence::Unknown(_) => return false,
        }
    }
    !owners.is_empty()
}

#[cfg(test)]
mod tests;
