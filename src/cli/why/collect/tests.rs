#![allow(clippy::unwrap_used)]
use std::convert::Infallible;

use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::api::keys;
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
    let observed = observe_pod(&reads, "web-0")
        .await
        .unwrap()
        .unwrap();
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
