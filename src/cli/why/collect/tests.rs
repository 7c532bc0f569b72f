#![allow(clippy::unwrap_used)]
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::api::keys;
use crate::cli::args::WhyKind;
use crate::domain::diagnosis::diagnose;

fn pod(name: &str, available: bool) -> Value {
    let mut labels = json!({ (keys::CONTROL): keys::CONTROL_VALUE, (keys::REVISION): "web-1" });
    if available {
        labels[keys::SERVICE_AVAILABLE] = json!("1");
    }
    let status = if available { "True" } else { "False" };
    let owner = json!({ "kind": "CollaSet", "name": "web", "uid": "set", "controller": true });
    json!({
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": "1", "labels": labels, "ownerReferences": [owner],
        },
        "spec": { "readinessGates": [{ "conditionType": keys::SERVICE_READY }] },
        "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": status }, { "type": keys::SERVICE_READY, "status": "True" },
        ] },
    })
}

/// A path that the command never reads.
const NOTHING: &str = "/nothing";

/// The remark and the notes about a Pod without rules, whose CollaSet has `maxUnavailable: 1` of 2 Pods. The user may not
/// list `forbidden`.
async fn observed_remark(
    other_is_available: bool,
    forbidden: &'static str,
) -> (Option<String>, Vec<String>) {
    let service = tower::service_fn(move |request: Request<Body>| {
        let pods = "/api/v1/namespaces/shop/pods";
        let (code, answer) = match request.uri().path() {
            path if path.ends_with(forbidden) => (
                403,
                json!({
                    "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403,
                }),
            ),
            path if path == pods => {
                let items = [pod("web-0", true), pod("web-1", other_is_available)];
                (200, json!({ "metadata": {}, "items": items }))
            }
            path if path.starts_with(pods) => (200, pod("web-0", true)),
            path if path.ends_with("/collasets/web") => (
                200,
                json!({
                    "metadata": { "name": "web", "namespace": "shop", "uid": "set", "generation": 2 },
                    "spec": { "replicas": 2, "template": {}, "updateStrategy": { "maxUnavailable": 1 } },
                    "status": { "observedGeneration": 2, "updatedRevision": "web-2" },
                }),
            ),
            _ => (200, json!({ "metadata": {}, "items": [] })),
        };
        let answer = Body::from(answer.to_string().into_bytes());
        let answer = Response::builder().status(code).body(answer).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let client = Client::new(service, "shop");
    let reads = NamespaceReads::new(&client, "shop");
    let observed = observe_pod(&reads, "web-0").await.unwrap().unwrap();
    let explanation = diagnose(&observed);
    (explanation.owner.unwrap().remark, observed.notes)
}

#[tokio::test]
async fn max_unavailable_counts_pods_without_rules() {
    let (remark, _) = observed_remark(false, NOTHING).await;
    let remark = remark.unwrap();
    assert!(remark.contains("1 of 2 Pods are unavailable"), "{remark}");
    assert_eq!(observed_remark(true, NOTHING).await.0, None);
}

#[tokio::test]
async fn max_unavailable_is_omitted_if_pods_are_unlistable() {
    let (remark, notes) = observed_remark(false, "/pods").await;
    assert_eq!(remark, None);
    assert!(
        notes.iter().any(|note| note.contains("maxUnavailable")),
        "{notes:?}"
    );
}

#[tokio::test]
async fn forbidden_decorations_are_noted() {
    let (remark, notes) = observed_remark(false, "/poddecorations").await;
    assert!(remark.is_some());
    let note = "which PodDecorations the Pod should have: you may not list poddecorations in namespace shop";
    assert!(notes.iter().any(|n| n.starts_with(note)), "{notes:?}");
    assert!(observed_remark(false, NOTHING).await.1.is_empty());
}

#[tokio::test]
async fn forbidden_jobs_are_noted() {
    let (_, notes) = observed_remark(false, "/operationjobs").await;
    let note =
        "which OperationJobs operate on the Pod: you may not list operationjobs in namespace shop";
    assert!(notes.iter().any(|n| n.starts_with(note)), "{notes:?}");
}

/// What a read of job `restart` gives if the API server has this object, or answers with 404.
async fn observed_job(stored: Option<Value>) -> anyhow::Result<Option<String>> {
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = "/apis/apps.kusionstack.io/v1alpha1/namespaces/shop/operationjobs/restart";
        assert_eq!(request.uri().path(), path);
        let missing = json!({
            "kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404,
            "details": { "name": "restart" },
        });
        let code = if stored.is_some() { 200 } else { 404 };
        let answer = Body::from(stored.clone().unwrap_or(missing).to_string().into_bytes());
        let answer = Response::builder().status(code).body(answer).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    let client = Client::new(service, "shop");
    let job = jobs::observe_job(&client, "shop", "restart").await?;
    Ok(job.and_then(|job| job.metadata.name))
}

#[tokio::test]
async fn missing_job_is_told_from_unreadable_job() {
    let job = json!({
        "metadata": { "name": "restart", "namespace": "shop" }, "spec": { "action": "Restart" },
    });
    let name = observed_job(Some(job.clone())).await.unwrap();
    assert_eq!(name.as_deref(), Some("restart"));
    assert_eq!(observed_job(None).await.unwrap(), None);
    let mut broken = job;
    broken["status"] = json!({ "totalPodCount": "two" });
    let error = observed_job(Some(broken)).await.unwrap_err().to_string();
    assert!(
        error.starts_with("OperationJob restart can't be read"),
        "{error}"
    );
}

/// A client that answers reads of objects of namespace `shop`, and the paths that it was asked for. It may not list
/// `forbidden`.
fn recording_client(forbidden: &'static str) -> (Client, Arc<Mutex<Vec<String>>>) {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let asked = Arc::clone(&paths);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let owned = json!([{ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "deploy", "controller": true }]);
        let labels = json!({ (keys::POD_TEMPLATE_HASH): "abc" });
        let (code, answer) = match path.rsplit_once('/') {
            Some((_, last)) if last == forbidden => (
                403,
                json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403 }),
            ),
            Some((_, "pods")) => {
                let mut pod = pod("web-abc-1", true);
                pod["metadata"]["labels"][keys::POD_TEMPLATE_HASH] = json!("abc");
                let owner = json!({ "kind": "ReplicaSet", "name": "web-abc", "uid": "rs", "controller": true });
                pod["metadata"]["ownerReferences"] = json!([owner]);
                (
                    200,
                    json!({ "metadata": {}, "items": [pod, self::pod("other", true)] }),
                )
            }
            Some((_, "replicasets")) => {
                let set = json!({ "metadata": { "name": "web-abc", "uid": "rs", "labels": labels, "ownerReferences": owned } });
                (200, json!({ "metadata": {}, "items": [set] }))
            }
            Some((parent, name)) if parent.ends_with("/pods") => (200, pod(name, true)),
            Some((parent, name)) if parent.ends_with("/deployments") => (
                200,
                json!({ "metadata": { "name": name, "namespace": "shop", "uid": "deploy" }, "spec": { "replicas": 1, "selector": {}, "template": {} } }),
            ),
            Some((parent, name)) if parent.ends_with("/collasets") => (
                200,
                json!({ "metadata": { "name": name, "namespace": "shop", "uid": "set" }, "spec": { "replicas": 1, "template": {}, "updateStrategy": { "maxUnavailable": 1 } },
                        "status": { "updatedRevision": "web-2" } }),
            ),
            _ => (200, json!({ "metadata": {}, "items": [] })),
        };
        asked.lock().unwrap().push(path);
        let answer = Body::from(answer.to_string().into_bytes());
        let answer = Response::builder().status(code).body(answer).unwrap();
        std::future::ready(Ok::<_, Infallible>(answer))
    });
    (Client::new(service, "shop"), paths)
}

#[tokio::test]
async fn lists_are_read_once_for_several_objects() {
    let (client, paths) = recording_client("nothing");
    let reads = NamespaceReads::new(&client, "shop");
    for name in ["web-0", "web-1"] {
        assert!(observe_pod(&reads, name).await.unwrap().is_some());
    }
    let web = workloads::observe_workload(&reads, WhyKind::Deployment, "web").await;
    assert!(web.unwrap().is_some());
    let asked = paths.lock().unwrap();
    let count = |path: &str| asked.iter().filter(|asked| asked.ends_with(path)).count();
    for list in [
        "/podtransitionrules",
        "/operationjobs",
        "/poddecorations",
        "/poddisruptionbudgets",
    ] {
        assert_eq!(count(list), 1, "{list}: {asked:?}");
    }
    // Managed Pods for both Pods, and then all Pods for the workload.
    assert_eq!(count("/pods"), 2, "{asked:?}");
}

#[tokio::test]
async fn unreadable_parts_of_workload_are_noted() {
    let observed = async |forbidden| {
        let (client, _) = recording_client(forbidden);
        let reads = NamespaceReads::new(&client, "shop");
        let web = workloads::observe_workload(&reads, WhyKind::Deployment, "web").await;
        let observed = web.unwrap().unwrap();
        let names = observed.pods.map(|pods| {
            let pods = pods.into_iter();
            pods.map(|pod| pod.metadata.name.clone())
                .collect::<Vec<_>>()
        });
        (names, observed.notes)
    };
    let own = Some(vec!["web-abc-1".to_owned()]);
    assert_eq!(observed("nothing").await, (own.clone(), Vec::new()));
    let (names, notes) = observed("replicasets").await;
    assert_eq!(names, own);
    let note = "which Pods are of the present template: you may not list replicasets";
    assert!(notes[0].starts_with(note), "{notes:?}");
    let (names, notes) = observed("pods").await;
    assert_eq!(names, None);
    let note = "which Pods wait, and for what: you may not list pods in namespace shop";
    assert!(notes[0].starts_with(note), "{notes:?}");
}
