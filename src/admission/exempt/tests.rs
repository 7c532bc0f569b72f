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
    let about = json!({ "name": "web", "namespace": "shop", "uid": uid, "deletionTimestamp": at });
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
