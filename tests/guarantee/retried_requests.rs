//! Requests that this server admits and another component refuses, and that their client repeats: they do not keep their
//! claim.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::Api;
use kube::api::{DeleteParams, EvictParams, PostParams};
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope, wait};

/// Request timeout of the API server: after this long the leader closes a claim that is renewed.
const TIMEOUT: Duration = Duration::from_secs(5);

/// No controller deletes Pods with this label.
const KEPT: &str = "plane.test/kept";

/// Registers a second webhook, which refuses the requests of this rule in the namespace because no server answers it.
/// The API server calls all validating webhooks concurrently, so ours admits a request that this one refuses.
async fn refuse_behind(bed: &Bed, scope: &Scope, rule: Value, selector: Value) {
    let configuration: ValidatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": scope.namespace},
        "webhooks": [{
            "name": "refuses.plane.test",
            "clientConfig": {"url": "https://127.0.0.1:1/refuse"},
            "rules": [rule],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scope.namespace}},
            "objectSelector": selector,
        }],
    }))
    .unwrap();
    let all: Api<ValidatingWebhookConfiguration> = Api::all(bed.admin());
    all.create(&PostParams::default(), &configuration)
        .await
        .unwrap();
}

/// Two Pods, one of which may be unavailable.
async fn web(bed: &Bed) -> (Scope, Vec<String>) {
    let scope = bed.scope("retries").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    (scope, pods)
}

/// Whether a claim admits nothing more.
fn is_closing(status: &RuleStatus) -> bool {
    let ledger = status.ledger.as_ref();
    ledger.is_some_and(|l| l.claims.iter().any(|c| c.closing))
}

/// Sends a request once a second, which is refused each time, until its claim is released and another Pod gets a claim.
async fn place_is_given_back(scope: &Scope, other: &str, ask: impl AsyncFn() -> kube::Result<()>) {
    let again = async {
        loop {
            refusal(ask().await);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let watch = async {
        scope
            .until_status("web", "the claim", |s: &RuleStatus| claims(s) == 1)
            .await;
        let status = refusal(scope.delete(other).await);
        assert!(
            status.message.contains("the limit is 1"),
            "{}",
            status.message
        );
        scope
            .until_status("web", "the claim to be closing", is_closing)
            .await;
        // From here on both webhooks refuse, and the API server returns the answer of one of them.
        wait::until("the place for the other Pod", async || {
            scope.delete(other).await.is_ok()
        })
        .await;
    };
    tokio::select! {
        () = again => {}
        () = watch => {}
    }
}

#[tokio::test]
async fn endlessly_refused_eviction_releases_its_claim() {
    let bed = Bed::with_request_timeout(TIMEOUT).await;
    let (scope, pods) = web(&bed).await;
    let evictions = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/eviction"], "operations": ["CREATE"],
    });
    refuse_behind(&bed, &scope, evictions, json!({})).await;
    let dry = EvictParams {
        delete_options: Some(DeleteParams::default().dry_run()),
        post_options: PostParams {
            dry_run: true,
            field_manager: None,
        },
    };
    wait::until("evictions to be refused", async || {
        scope.pods().evict(&pods[0], &dry).await.is_err()
    })
    .await;
    place_is_given_back(&scope, &pods[1], async || scope.evict(&pods[0]).await).await;
}

/// Lets a policy refuse the deletion of a Pod that this server has admitted.
async fn refuse_deletion(bed: &Bed, scope: &Scope, pod: &str) {
    scope.label(pod, json!({KEPT: "true"})).await.unwrap();
    let deletions = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"],
    });
    let selector = json!({"matchLabels": {KEPT: "true"}});
    refuse_behind(bed, scope, deletions, selector).await;
    let dry = DeleteParams::default().dry_run();
    wait::until("the deletion to be refused", async || {
        scope.pods().delete(pod, &dry).await.is_err()
    })
    .await;
}

#[tokio::test]
async fn endlessly_refused_deletion_releases_its_claim() {
    let bed = Bed::with_request_timeout(TIMEOUT).await;
    let (scope, pods) = web(&bed).await;
    refuse_deletion(&bed, &scope, &pods[0]).await;
    place_is_given_back(&scope, &pods[1], async || scope.delete(&pods[0]).await).await;
}

#[tokio::test]
async fn deletion_with_lapsed_claim_cannot_claim_again_at_once() {
    let bed = Bed::with_request_timeout(TIMEOUT).await;
    let (scope, pods) = web(&bed).await;
    refuse_deletion(&bed, &scope, &pods[0]).await;
    let mut was_closing = false;
    wait::until("the claim to be removed", async || {
        refusal(scope.delete(&pods[0]).await);
        let status = scope.status::<RuleStatus>("web").await;
        was_closing |= is_closing(&status);
        was_closing && claims(&status) == 0
    })
    .await;
    for _ in 0..10 {
        refusal(scope.delete(&pods[0]).await);
        assert_eq!(scope.claims("web").await, 0);
    }
    scope.delete(&pods[1]).await.unwrap();
}

#[tokio::test]
async fn endlessly_refused_begin_releases_its_claim() {
    let bed = Bed::with_request_timeout(TIMEOUT).await;
    let (scope, pods) = web(&bed).await;
    scope.label(&pods[0], json!({KEPT: "true"})).await.unwrap();
    let updates = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["UPDATE"],
    });
    let selector = json!({"matchLabels": {KEPT: "true"}});
    refuse_behind(&bed, &scope, updates, selector).await;
    wait::until("updates to be refused", async || {
        scope
            .label(&pods[0], json!({"plane.test/probe": "true"}))
            .await
            .is_err()
    })
    .await;
    place_is_given_back(&scope, &pods[1], async || {
        scope.begin(&pods[0], "x").await.map(drop)
    })
    .await;
    assert!(
        !scope
            .get(&pods[0])
            .await
            .metadata
            .labels
            .unwrap()
            .keys()
            .any(|key| key.contains(keys::LIFECYCLE_DOMAIN))
    );
}
