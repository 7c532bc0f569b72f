//! Decides which requests are exempt from all rules. Each reason is also the value of the audit annotation `free`.

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

/// Whether the Pod's controller is deleted or being deleted, and no Deployment behind it wants the Pod. For a kind that
/// is not watched, the Kubernetes garbage collector is trusted: it deletes only objects that have no owner left.
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
    // The cache has not seen the namespace, or has seen it terminating. The namespace may have been deleted or created
    // again since, so a live read decides.
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::Response;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::index::NamespaceFacts;
    use crate::cluster::owner_sizes::parse_workload;

    const GROUPS: &str = "/apis";
    const THING: &str = "/apis/example.com/v1/namespaces/shop/things/web";
    const NAMESPACES: &str = "/api/v1/namespaces";

    fn status(code: u16) -> (u16, Value) {
        let reason = if code == 404 { "NotFound" } else { "Other" };
        let body = json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": reason, "code": code,
            "details": { "name": "web", "group": "example.com", "kind": "things" },
        });
        (code, body)
    }

    /// A 404 for a path that names no object.
    fn not_found_without_name() -> (u16, Value) {
        let (code, mut body) = status(404);
        body["details"] = json!({});
        (code, body)
    }

    /// The discovery document of these groups.
    fn groups(items: Value) -> (u16, Value) {
        let list = json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
        });
        (200, list)
    }

    fn things() -> (u16, Value) {
        let thing = json!({
            "resource": "things", "responseKind": { "group": "example.com", "version": "v1", "kind": "Thing" },
            "scope": "Namespaced", "singularResource": "thing", "verbs": ["get"],
        });
        let versions = json!([{ "version": "v1", "resources": [thing] }]);
        groups(json!([{ "metadata": { "name": "example.com" }, "versions": versions }]))
    }

    fn metadata(metadata: Value) -> Value {
        json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata })
    }

    fn thing_metadata(uid: &str, going: bool) -> (u16, Value) {
        let at = going.then_some("2026-01-01T00:00:00Z");
        let about =
            json!({ "name": "web", "namespace": "shop", "uid": uid, "deletionTimestamp": at });
        (200, metadata(about))
    }

    /// The reason why a DELETE by `user` is exempt, if the API server answers only these paths.
    async fn exemption_of_delete(
        user: &str,
        owners: &[&str],
        answers: &[(&'static str, (u16, Value))],
    ) -> Option<&'static str> {
        let context = AdmissionContext::at_epoch(api_server(answers));
        exemption_for_controller_manager(&context, &review(user), &pod(owners)).await
    }

    /// An API server that answers these paths, and 403 to all others.
    fn api_server(answers: &[(&'static str, (u16, Value))]) -> Client {
        counting(answers).0
    }

    /// The same as [`api_server`], with the number of requests that it has received.
    fn counting(answers: &[(&'static str, (u16, Value))]) -> (Client, Arc<AtomicUsize>) {
        let calls = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&calls);
        let mut answers = answers.to_vec();
        answers.push(("/api", groups(json!([]))));
        let service = tower::service_fn(move |request: http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let path = request.uri().path().to_owned();
            let found = answers.iter().find(|(p, _)| *p == path);
            let (code, body) = found.map_or_else(|| status(403), |(_, answer)| answer.clone());
            let body = Body::from(body.to_string().into_bytes());
            async move { Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap()) }
        });
        (Client::new(service, "default"), calls)
    }

    /// A DELETE by this user.
    fn review(user: &str) -> Request {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "DELETE", "namespace": "shop", "name": "web-1",
                "kind": {"group": "", "version": "v1", "kind": "Pod"},
                "resource": {"group": "", "version": "v1", "resource": "pods"},
                "userInfo": { "username": user },
            },
        });
        Request::parse(review.to_string().as_bytes()).unwrap()
    }

    /// The Pod that is deleted.
    fn pod(owners: &[&str]) -> Pod {
        let owners: Vec<_> = owners
            .iter()
            .map(|uid| json!({ "apiVersion": "example.com/v1", "kind": "Thing", "name": "web", "uid": uid }))
            .collect();
        let pod = json!({ "metadata": {
            "name": "web-1", "namespace": "shop", "ownerReferences": owners,
            "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
        } });
        serde_json::from_value(pod).unwrap()
    }

    /// The namespace `shop`, which the watch has shown as terminating.
    fn terminating() -> NamespaceFacts {
        NamespaceFacts {
            name: "shop".to_owned(),
            uid: "first".to_owned(),
            terminating_since: NamespaceFacts::parse_deletion_time(Some("2026-01-01T00:00:10Z")),
            ..NamespaceFacts::default()
        }
    }

    /// The answer to a list of the namespace `shop`.
    fn listed(going: bool) -> (u16, Value) {
        let at = going.then_some("2026-01-01T00:00:10Z");
        let item = metadata(json!({ "name": "shop", "deletionTimestamp": at }));
        let list = json!({
            "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": [item],
        });
        (200, list)
    }

    #[test]
    fn terminating_namespace_frees_only_the_pods_that_it_had() {
        let index = Index::default();
        index.apply_namespace(terminating());
        for (created, user, expected) in [
            (9, "alice", Some("namespace-terminating")),
            (10, "alice", None),
            (11, "alice", None),
        ] {
            let mut pod = pod(&["a"]);
            pod.metadata.creation_timestamp = Some(format!("2026-01-01T00:00:{created:02}Z"));
            let found = exemption_by_cache(&review(user), &pod, &index);
            assert_eq!(found, expected, "{created} {user}");
        }
    }

    #[test]
    fn namespace_controller_is_free_by_its_name() {
        let found = exemption_by_request(&review(NAMESPACE_CONTROLLER), &pod(&["a"]));
        assert_eq!(found, Some("namespace-terminating"));
        assert_eq!(exemption_by_request(&review("alice"), &pod(&["a"])), None);
    }

    #[tokio::test]
    async fn namespace_that_was_terminating_before_a_restore_frees_nothing() {
        let context = AdmissionContext::at_epoch(api_server(&[]));
        context.index.apply_namespace(terminating());
        let mut pod = pod(&["a"]);
        pod.metadata.creation_timestamp = Some("2026-01-01T00:00:09Z".to_owned());
        let asked = async || {
            let deadline = Instant::now() + Duration::from_secs(5);
            find_exemption(&context, &review("alice"), &pod, deadline).await
        };
        context.index.decision_watches.trust_for_a_year();
        assert_eq!(asked().await, Some("namespace-terminating"));
        context.index.decision_watches.pods.end_trust(); // and the API server answers no list
        assert_eq!(asked().await, None);
        context.index.decision_watches.trust_for_a_year();
        context.index.etcd_history.mark_lost("Pods", 9, 4);
        assert_eq!(asked().await, None);
    }

    #[tokio::test]
    async fn shared_account_is_exempt_if_live_read_shows_terminating_namespace() {
        for (going, expected) in [(true, Some("namespace-terminating")), (false, None)] {
            let context = AdmissionContext::at_epoch(api_server(&[(NAMESPACES, listed(going))]));
            context.index.apply_namespace(terminating());
            let found =
                exemption_for_controller_manager(&context, &review(CONTROLLER_MANAGER), &pod(&[]))
                    .await;
            assert_eq!(found, expected);
        }
    }

    /// A CollaSet that is deleted with `--cascade=orphan`.
    fn orphaning_collaset() -> (u16, Value) {
        let (code, mut thing) = thing_metadata("a", true);
        thing["metadata"]["finalizers"] = json!(["orphan"]);
        (code, thing)
    }

    #[tokio::test]
    async fn shared_account_is_free_once_all_owners_are_gone() {
        for (answer, expected) in [
            (orphaning_collaset(), None),
            (status(404), Some("owner-gone")),
            (thing_metadata("other", false), Some("owner-gone")),
            (thing_metadata("a", true), Some("owner-gone")),
            (thing_metadata("a", false), None),
            (status(403), None),
            (status(500), None),
            (not_found_without_name(), None),
        ] {
            let text = format!("{answer:?}");
            let found = exemption_of_delete(
                CONTROLLER_MANAGER,
                &["a"],
                &[(GROUPS, things()), (THING, answer)],
            )
            .await;
            assert_eq!(found, expected, "{text}");
        }
    }

    #[tokio::test]
    async fn shared_account_is_held_for_ownerless_or_unknown_kind_pods() {
        let owner_gone = [(GROUPS, things()), (THING, status(404))];
        assert_eq!(
            exemption_of_delete(CONTROLLER_MANAGER, &[], &owner_gone).await,
            None
        );
        assert_eq!(
            exemption_of_delete(CONTROLLER_MANAGER, &["a"], &[(GROUPS, groups(json!([])))]).await,
            None
        );
    }

    #[tokio::test]
    async fn pod_of_too_many_owners_is_held_without_look_ups() {
        for (owners, expected) in [(8, Some("owner-gone")), (9, None), (4_000, None)] {
            let (client, calls) = counting(&[(GROUPS, things()), (THING, status(404))]);
            let context = AdmissionContext::at_epoch(client);
            let pod = pod(&vec!["a"; owners]);
            let found = has_no_live_owner(&context, &pod).await;
            assert_eq!(found.then_some("owner-gone"), expected, "{owners}");
            let most = if found { 10 } else { 0 };
            assert_eq!(calls.load(Ordering::Relaxed), most, "{owners}");
        }
    }

    #[tokio::test]
    async fn shared_account_is_free_in_a_terminating_namespace() {
        for (going, expected) in [(true, Some("namespace-terminating")), (false, None)] {
            let found =
                exemption_of_delete(CONTROLLER_MANAGER, &[], &[(NAMESPACES, listed(going))]).await;
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn job_controller_deletes_only_pods_created_by_jobs() {
        let index = Index::default();
        let job = json!({ "metadata": {
            "name": "web", "namespace": "shop", "uid": "o", "creationTimestamp": "2026-01-01T00:01:00Z",
        } });
        let (namespace, uid, job) = parse_workload(WatchedKind::Job, job).unwrap();
        index.set_workload(&namespace, uid, Some(job));
        let why = |user: &str, kind: &str, restarts: &str, created: &str| {
            let api = if kind == "Job" { "batch/v1" } else { "apps/v1" };
            let mut pod = pod(&[]);
            pod.metadata.owner_references = serde_json::from_value(json!([{
                "apiVersion": api, "kind": kind, "name": "web", "uid": "o", "controller": true,
            }]))
            .unwrap();
            pod.metadata.creation_timestamp = Some(format!("2026-01-01T00:{created}Z"));
            pod.spec.restart_policy = restarts.to_owned();
            exemption_by_cache(&review(user), &pod, &index)
        };
        for restarts in ["Never", "OnFailure"] {
            let why = why(JOB_CONTROLLER, "Job", restarts, "01:00");
            assert_eq!(why, Some("job-ends"));
        }
        assert_eq!(why(JOB_CONTROLLER, "Job", "Always", "01:00"), None);
        assert_eq!(
            why(JOB_CONTROLLER, "Job", "Never", "00:50"),
            None,
            "adopted"
        );
        assert_eq!(why(JOB_CONTROLLER, "ReplicaSet", "Never", "01:00"), None);
        assert_eq!(why("jane", "Job", "Never", "01:00"), None);
        index.set_workload("shop", "o".into(), None);
        assert_eq!(
            why(JOB_CONTROLLER, "Job", "Never", "01:00"),
            None,
            "unknown"
        );
    }

    #[tokio::test]
    async fn other_accounts_are_not_exempt() {
        let owner_gone = [(GROUPS, things()), (THING, status(404))];
        assert_eq!(
            exemption_of_delete("alice", &["a"], &owner_gone).await,
            None
        );
    }
}
