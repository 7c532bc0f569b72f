//! Which requests no rule ever holds, each with the reason that goes into the audit annotation.

use super::review::Request;
use super::routes::EXCLUDED_NAMESPACES;
use crate::api::keys;
use crate::cluster::index::{Index, State};
use crate::domain::pod::Pod;

/// The garbage collector's identity.
const GARBAGE_COLLECTOR: &str = "system:serviceaccount:kube-system:generic-garbage-collector";
/// The namespace controller's identity; it deletes only in namespaces that are terminating.
const NAMESPACE_CONTROLLER: &str = "system:serviceaccount:kube-system:namespace-controller";
/// Owner kinds that are watched, so that the index tells whether the owner is there.
const WATCHED_KINDS: [&str; 7] = [
    "ReplicaSet",
    "StatefulSet",
    "ReplicationController",
    "CollaSet",
    "Deployment",
    "DaemonSet",
    "Job",
];

/// Why the deletion, eviction or change of a Pod is never held; `None` when a rule may hold it.
///
/// An unavailable Pod is *not* named here: for a DELETE or an UPDATE it is free as well, for an eviction it is not.
pub fn never(request: &Request, pod: &Pod, index: &Index) -> Option<&'static str> {
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
    if EXCLUDED_NAMESPACES.contains(&request.namespace.as_str()) {
        return Some("excluded-namespace");
    }
    let state = index.read();
    if let Some(namespace) = state.namespace(&request.namespace) {
        if namespace
            .labels
            .as_ref()
            .is_some_and(|l| l.contains_key(keys::NAMESPACE_EXCLUDED))
        {
            return Some("excluded-namespace");
        }
        if namespace.terminating {
            return Some("namespace-terminating");
        }
    }
    match request.user_info.username.as_str() {
        NAMESPACE_CONTROLLER => Some("namespace-terminating"),
        GARBAGE_COLLECTOR if owner_is_gone(&state, pod) => Some("owner-gone"),
        _ => None,
    }
}

/// Whether the Pod's controller is gone or going. Of a kind that is not watched the garbage collector itself is
/// believed: it deletes only what it has found to have no owner left.
fn owner_is_gone(state: &State, pod: &Pod) -> bool {
    pod.controller().is_none_or(|owner| {
        !WATCHED_KINDS.contains(&owner.kind.as_str())
            || state
                .namespace(&pod.metadata.namespace)
                .is_none_or(|n| !n.has_workload(&owner.uid))
    })
}
