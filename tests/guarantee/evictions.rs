//! Evictions of both versions: held within the budget, judged alike, and bound to the Pod that was judged.

use futures::future::join;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use kube::{Client, Config, ResourceExt};
use operating::admission::routes::Route;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::names;
use testbed::scope::{budget_refusal, refusal};
use testbed::{Bed, Scope, wait};

const VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Three available Pods under a rule that allows one disruption. Returns their names.
async fn three(bed: &Bed) -> (Scope, Vec<String>) {
    let scope = bed.scope("evict").await;
    scope.deploy("web", 3, json!({})).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    (scope, pods)
}

fn eviction(scope: &Scope, pod: &str, version: &str) -> Value {
    json!({
        "apiVersion": format!("policy/{version}"), "kind": "Eviction",
        "metadata": {"name": pod, "namespace": scope.namespace},
    })
}

/// Evicts through the API server.
async fn evict(scope: &Scope, pod: &str, version: &str) -> kube::Result<Value> {
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scope.namespace);
    let request = http::Request::post(path).header("content-type", "application/json");
    let body = eviction(scope, pod, version).to_string().into_bytes();
    scope.client.request(request.body(body).unwrap()).await
}

/// The verdict of a replica on the review of an Eviction, as the API server would send it.
async fn review(bed: &Bed, scope: &Scope, pod: &str, version: &str, dry_run: bool) -> Value {
    let mut config = Config::new(bed.url().parse().unwrap());
    config.accept_invalid_certs = true; // other tests cover the certificate
    let client = Client::try_from(config).unwrap();
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "asked-by-hand", "operation": "CREATE", "dryRun": dry_run,
            "kind": {"group": "policy", "version": version, "kind": "Eviction"},
            "resource": {"group": "", "version": "v1", "resource": "pods"}, "subResource": "eviction",
            "namespace": scope.namespace, "name": pod,
            "userInfo": {"username": "someone"},
            "object": eviction(scope, pod, version),
        },
    });
    let path = format!("{}?timeout=10s", Route::MutateEvictions.path());
    let request = http::Request::post(path).header("content-type", "application/json");
    let body = review.to_string().into_bytes();
    let mut answer: Value = client.request(request.body(body).unwrap()).await.unwrap();
    answer["response"].take()
}

/// Removes the age from the denial, because it differs between two requests.
fn timeless(mut response: Value) -> Value {
    if let Some(message) = response["status"]["message"].as_str() {
        response["status"]["message"] = json!(message.split(" (used by").next());
    }
    response
}

/// The API server no longer serves policy/v1beta1, but accepts Evictions of this version.
#[tokio::test]
async fn evictions_of_both_versions_are_held() {
    let bed = Bed::shared().await;
    for version in VERSIONS {
        let (scope, pods) = three(bed).await;
        evict(&scope, &pods[0], version).await.unwrap();
        let outcome = evict(&scope, &pods[1], version).await;
        budget_refusal(outcome, "1 of 3 Pods are unavailable, the limit is 1");
        scope.until_at_rest("web", 3).await;
    }
}

#[tokio::test]
async fn review_of_either_version_gets_same_verdict() {
    let bed = Bed::shared().await;
    let (scope, pods) = three(bed).await;
    let both = async |pod: &str, dry_run: bool| {
        let mut verdicts = Vec::new();
        for version in VERSIONS {
            verdicts.push(timeless(review(bed, &scope, pod, version, dry_run).await));
        }
        assert_eq!(verdicts[0], verdicts[1]);
        verdicts.remove(0)
    };
    let shown = both(&pods[0], true).await;
    assert_eq!(shown["allowed"], true);
    assert_eq!(scope.claims("web").await, 0);

    // More Pods are lost than the rule allows: an available Pod is held, and an unavailable Pod may be evicted.
    for pod in &pods[..2] {
        scope.crash(pod).await;
        scope
            .until_pod(pod, "out of service", |p| {
                !p.labels().contains_key(keys::SERVICE_AVAILABLE)
            })
            .await;
    }
    // Each replica learns of these losses when its watch delivers them.
    wait::until("all replicas to know of both", async || {
        let asked = (0..6).map(|_| review(bed, &scope, &pods[2], "v1", true));
        let verdicts = futures::future::join_all(asked).await;
        verdicts.into_iter().all(|s| {
            let message = timeless(s)["status"]["message"].take();
            message.as_str().is_some_and(|m| m.contains("2 of 3 Pods"))
        })
    })
    .await;
    let denied = both(&pods[2], false).await;
    assert_eq!(denied["allowed"], false);
    assert_eq!(denied["status"]["code"], 429);
    let message = denied["status"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("2 of 3 Pods are unavailable, the limit is 1"),
        "{message}"
    );
    let conditional = both(&pods[0], false).await;
    assert_eq!(conditional["allowed"], true);
    assert!(conditional["patch"].is_string(), "{conditional}");

    // The admitted eviction of version v1beta1 has a claim.
    for pod in &pods[..2] {
        scope.resume_kubelet(pod).await;
    }
    wait::until("the place to be free again", async || {
        let verdicts = review(bed, &scope, &pods[2], "v1beta1", false).await;
        verdicts["allowed"] == true
    })
    .await;
    let ledger = scope.status::<RuleStatus>("web").await.ledger.unwrap();
    let claimed: Vec<_> = ledger
        .claims
        .iter()
        .map(|c| (c.pod_name.as_str(), c.operation.as_str()))
        .collect();
    assert_eq!(claimed, [(pods[2].as_str(), "Evict")]);
}

#[tokio::test]
async fn allowed_eviction_is_bound_to_the_uid_of_the_pod() {
    let bed = Bed::shared().await;
    let (scope, pods) = three(bed).await;
    let uid = scope.get(&pods[0]).await.uid().unwrap();
    let verdict = review(bed, &scope, &pods[0], "v1", true).await;
    assert_eq!(verdict["allowed"], true);
    let patch: ByteString = serde_json::from_value(verdict["patch"].clone()).unwrap();
    let patch: Value = serde_json::from_slice(&patch.0).unwrap();
    let wanted =
        json!([{"op": "add", "path": "/deleteOptions", "value": {"preconditions": {"uid": uid}}}]);
    assert_eq!(patch, wanted);
}

#[tokio::test]
async fn eviction_with_former_pods_uid_conflicts_without_a_claim() {
    let bed = Bed::shared().await;
    let (scope, pods) = three(bed).await;
    let path = format!(
        "/api/v1/namespaces/{}/pods/{}/eviction",
        scope.namespace, pods[0]
    );
    let mut body = eviction(&scope, &pods[0], "v1");
    body["deleteOptions"] = json!({"preconditions": {"uid": "of-an-earlier-pod"}});
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let status = refusal(scope.client.request::<Value>(request).await);
    assert_eq!((status.code, status.reason.as_str()), (409, "Conflict"));
    assert_eq!(scope.claims("web").await, 0);
}

/// `kubectl drain` retries after a 429, and ends with an error after a 409. The test writes the Pod continuously, like
/// a kubelet that starts the Pod.
#[tokio::test]
async fn starting_pod_eviction_beyond_budget_is_429_never_409() {
    let bed = Bed::shared().await;
    let scope = bed.scope("starting").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    for pod in &pods[..2] {
        scope.lose_readiness(pod).await;
    }
    scope
        .until_status("web", "both counted", |s: &RuleStatus| {
            s.available_pods == 1
        })
        .await;
    // The simulated kubelet ignores a Pod with this annotation, so the Pod keeps its state.
    let paused = json!({"metadata": {"labels": {"app": "web"}, "annotations": {"plane.test/paused": "true"}}});
    scope.pod("new", paused).await;
    let status = async |note: usize| {
        let running = json!({
            "phase": "Running", "message": note.to_string(),
            "conditions": [{"type": "Ready", "status": "False"}],
        });
        let patch = Patch::Strategic(json!({"status": running}));
        let params = PatchParams::default();
        scope
            .pods()
            .patch_status("new", &params, &patch)
            .await
            .unwrap()
    };
    status(0).await;
    for round in 1..=5 {
        let (outcome, _) = join(scope.evict("new"), status(round)).await;
        let status = refusal(outcome);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests"),
            "{status:?}"
        );
    }
}
