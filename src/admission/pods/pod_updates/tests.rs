#![allow(clippy::unwrap_used)]
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::api::keys::{self, Family};
use crate::cluster::owner_sizes::Workload;
use crate::domain::lifecycle::restarts;

/// A context whose API server never answers.
fn context() -> AdmissionContext {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        std::future::pending::<
            Result<http::Response<kube::client::Body>, std::convert::Infallible>,
        >()
        .await
    });
    AdmissionContext::at_epoch(kube::Client::new(service, "default"))
}

fn pod(image: &str, labels: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "web-1", "namespace": "shop", "labels": labels },
        "spec": { "containers": [{ "name": "app", "image": image }] },
        "status": status,
    }))
    .unwrap()
}

fn ready(ready: &str) -> Value {
    json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] })
}

fn on_traffic() -> Value {
    json!({ (keys::SERVICE_AVAILABLE): "1" })
}

fn in_operate() -> Value {
    let keys = [Family::Operating, Family::PreChecked, Family::Operate].map(|f| f.key("x"));
    keys.into_iter().map(|key| (key, json!("1"))).collect()
}

/// Whether an image change of a Pod in this state, together with these labels before and after, needs a claim.
fn claims(labels: [&Value; 2], status: &Value) -> bool {
    let [before, after] = labels;
    let (old, mut new) = (pod("a:1", before, status), pod("a:2", after, status));
    // The mutating webhook records the restarts in the same way.
    if let Some(value) =
        restarts::restarts_after_write(&old, &new, &old, false, 0).annotation_value()
    {
        let annotations = &mut new.metadata.annotations;
        annotations.insert(keys::AWAITS_RESTART.to_owned(), value);
    }
    in_place_restart(&context(), &old, &new).is_some()
}

#[tokio::test]
async fn image_change_of_serving_or_recovering_pod_needs_claim() {
    for is_ready in ["True", "False"] {
        for labels in [[&on_traffic(), &on_traffic()], [&json!({}), &json!({})]] {
            assert!(
                claims(labels, &ready(is_ready)),
                "{labels:?}, Ready {is_ready}"
            );
        }
    }
}

#[tokio::test]
async fn image_and_removed_label_in_one_write_need_a_claim() {
    assert!(claims([&on_traffic(), &json!({})], &ready("True")));
}

#[tokio::test]
async fn image_change_during_operate_passes() {
    assert!(!claims([&in_operate(), &in_operate()], &ready("False")));
}

#[tokio::test]
async fn image_change_during_operate_without_record_needs_claim() {
    let (old, new) = ["a:1", "a:2"]
        .map(|image| pod(image, &in_operate(), &ready("False")))
        .into();
    assert!(in_place_restart(&context(), &old, &new).is_some());
}

#[tokio::test]
async fn image_change_with_lifecycle_start_or_end_needs_claim() {
    assert!(claims([&on_traffic(), &in_operate()], &ready("True")));
    assert!(claims([&in_operate(), &json!({})], &ready("False")));
}

#[tokio::test]
async fn image_change_of_broken_pod_passes() {
    let mut status = ready("False");
    status["containerStatuses"] =
        json!([{ "name": "app", "state": { "waiting": { "reason": "CrashLoopBackOff" } } }]);
    assert!(!claims([&on_traffic(), &on_traffic()], &status));
    assert!(!claims([&json!({}), &json!({})], &status));
}

/// A Pod with this deadline and this owner.
fn pod_with(seconds: Option<i64>, owner: Option<&str>) -> Arc<Pod> {
    let mut pod = pod("a:1", &on_traffic(), &ready("True"));
    pod.spec.active_deadline_seconds = seconds;
    pod.metadata.owner_references = owner
        .map(|uid| crate::domain::pod::Owner {
            api_version: "apps/v1".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: uid.to_owned(),
            uid: uid.to_owned(),
            controller: true,
        })
        .into_iter()
        .collect();
    Arc::new(pod)
}

async fn found_disruptions(old: &Arc<Pod>, new: &Pod) -> Vec<(ClaimOperation, Option<String>)> {
    let soon = Instant::now() + std::time::Duration::from_secs(1);
    let found = update_disruptions(&context(), old, new, soon).await;
    found
        .into_iter()
        .map(|d| (d.operation, d.detail.target))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn deadline_set_or_lowered_needs_a_claim() {
    let deadline_disruption = vec![(ClaimOperation::Deadline, Some("1".to_owned()))];
    for earlier in [None, Some(2)] {
        assert_eq!(
            found_disruptions(&pod_with(earlier, None), &pod_with(Some(1), None)).await,
            deadline_disruption
        );
    }
    assert_eq!(
        found_disruptions(&pod_with(Some(1), None), &pod_with(Some(1), None)).await,
        []
    );
}

#[tokio::test(start_paused = true)]
async fn owner_that_cannot_be_read_needs_a_claim() {
    let new = pod_with(None, Some("new"));
    for earlier in [None, Some("old")] {
        let found = found_disruptions(&pod_with(None, earlier), &new).await;
        assert_eq!(found, [(ClaimOperation::Reown, Some("new".to_owned()))]);
    }
    assert_eq!(
        found_disruptions(&pod_with(None, Some("old")), &pod_with(None, None)).await,
        []
    );
}

#[tokio::test(start_paused = true)]
async fn only_adoption_by_known_workload_passes() {
    let context = context();
    let put = |name: &str| {
        let workload = Workload::replica_set(name, 1, 1);
        context
            .index
            .set_workload("shop", name.into(), Some(workload));
    };
    put("new");
    let soon = Instant::now() + std::time::Duration::from_secs(1);
    let new = pod_with(None, Some("new"));
    let adopted = update_disruptions(&context, &pod_with(None, None), &new, soon).await;
    assert!(adopted.is_empty());
    let old = pod_with(None, Some("old"));
    let unread = update_disruptions(&context, &old, &new, soon).await;
    assert_eq!(unread.len(), 1, "whether its owner is gone is not known");
    put("old");
    let moved = update_disruptions(&context, &old, &new, soon).await;
    assert_eq!(moved[0].operation, ClaimOperation::Reown);
    assert_eq!(moved[0].detail.target, None);
}

/// A context whose API server serves the kind `Thing`, has the objects named in `here`, and counts its requests.
fn counting_context(here: &'static [&'static str]) -> (AdmissionContext, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let path = request.uri().path();
        let name = path.rsplit('/').next().unwrap();
        let (code, answer) = match path {
            "/api" | "/apis" => {
                let thing = json!({
                    "resource": "things", "responseKind": { "kind": "Thing" }, "scope": "Namespaced", "verbs": ["get"],
                });
                let versions = json!([{ "version": "v1", "resources": [thing] }]);
                let group = json!({ "metadata": { "name": "example.com" }, "versions": versions });
                let items = if path == "/apis" {
                    json!([group])
                } else {
                    json!([])
                };
                let kind = "APIGroupDiscoveryList";
                let list = json!({ "kind": kind, "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items });
                (200, list)
            }
            _ if here.contains(&name) => {
                let metadata = json!({ "name": name, "namespace": "shop", "uid": name });
                let kind = "PartialObjectMetadata";
                (
                    200,
                    json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1", "metadata": metadata }),
                )
            }
            _ => {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": "no", "details": { "name": name, "group": "example.com", "kind": "things" },
                });
                (404, status)
            }
        };
        let body = Body::from(answer.to_string().into_bytes());
        let response = http::Response::builder().status(code).body(body);
        async move { Ok::<_, std::convert::Infallible>(response.unwrap()) }
    });
    let client = kube::Client::new(service, "default");
    (AdmissionContext::at_epoch(client), calls)
}

/// A Pod with owners of these names. The first owner is the controller, and each has its name as its UID.
fn pod_with_owners(kind: &str, names: impl IntoIterator<Item = String>) -> Arc<Pod> {
    let mut pod = pod("a:1", &on_traffic(), &ready("True"));
    let owners = names.into_iter().enumerate();
    pod.metadata.owner_references = owners
        .map(|(n, name)| crate::domain::pod::Owner {
            api_version: "example.com/v1".to_owned(),
            kind: kind.to_owned(),
            uid: name.clone(),
            name,
            controller: n == 0,
        })
        .collect();
    Arc::new(pod)
}

/// The number of requests that an UPDATE sends, and the target of the claim that it needs.
async fn update_cost(
    here: &'static [&'static str],
    old: &Arc<Pod>,
    new: &Pod,
) -> (usize, Option<Option<String>>) {
    let (context, calls) = counting_context(here);
    let soon = Instant::now() + std::time::Duration::from_secs(1);
    let found = update_disruptions(&context, old, new, soon).await;
    let target = found.into_iter().next().map(|d| d.detail.target);
    (calls.load(Ordering::Relaxed), target)
}

fn names(of: &str, count: usize) -> impl Iterator<Item = String> {
    (0..count).map(move |n| format!("{of}-{n}"))
}

#[tokio::test(start_paused = true)]
async fn thousands_of_owners_cost_few_calls() {
    let bare = pod_with_owners("Thing", []);
    let most = 10;
    let replaced = Some(Some("new-0".to_owned()));
    for kind in ["Thing", "Invented"] {
        let new = pod_with_owners(kind, names("new", 4_000));
        let (calls, target) = update_cost(&[], &bare, &new).await;
        assert!(calls <= most, "{kind}: {calls}");
        assert_eq!(target, replaced, "{kind}");
    }
    let (old, new) = (names("old", 4_000), names("new", 4_000));
    let (old, new) = (pod_with_owners("Thing", old), pod_with_owners("Thing", new));
    let (calls, target) = update_cost(&["new-3"], &old, &new).await;
    assert!(calls <= most, "{calls}");
    assert_eq!(
        target,
        Some(None),
        "an old owner that is not looked up exists"
    );
    let (_, target) = update_cost(&["new-8"], &old, &new).await;
    assert_eq!(
        target, replaced,
        "a new owner that is not looked up does not exist"
    );
}

#[tokio::test(start_paused = true)]
async fn owner_that_was_looked_up_decides() {
    let [bare, old, new] =
        [("", 0), ("old", 1), ("new", 1)].map(|(of, n)| pod_with_owners("Thing", names(of, n)));
    assert_eq!(update_cost(&["new-0"], &bare, &new).await, (3, None));
    assert_eq!(update_cost(&["new-0"], &old, &new).await, (4, None));
    assert_eq!(
        update_cost(&["new-0", "old-0"], &old, &new).await,
        (4, Some(None))
    );
}

#[tokio::test(start_paused = true)]
async fn owner_is_gone_if_group_unserved_not_version_unserved() {
    let new = pod_with_owners("Thing", names("new", 1));
    for (api_version, target) in [
        ("none.test/v1", None),
        ("example.com/v0", Some(None)),
        ("v0", Some(None)),
    ] {
        let mut old = Pod::clone(&pod_with_owners("Thing", names("old", 1)));
        old.metadata.owner_references[0].api_version = api_version.to_owned();
        let (_, found) = update_cost(&["new-0"], &Arc::new(old), &new).await;
        assert_eq!(found, target, "{api_version}");
    }
}
