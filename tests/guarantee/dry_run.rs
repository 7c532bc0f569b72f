//! Dry run: the verdict is the same, and nothing is written.

use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, EvictParams, PostParams};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::pods::names;
use testbed::scope::{budget_refusal, claims, refusal};
use testbed::{Bed, Scope, wait};

/// Three available Pods under a rule that allows one disruption. Returns their names.
async fn three(bed: &Bed) -> (Scope, Vec<String>) {
    let scope = bed.scope("dry").await;
    scope.deploy("web", 3, json!({})).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    (scope, pods)
}

async fn version(scope: &Scope) -> String {
    scope
        .rules()
        .get("web")
        .await
        .unwrap()
        .resource_version()
        .unwrap()
}

/// `kubectl delete pod --dry-run=server`: success and output.
async fn kubectl_delete(bed: &Bed, scope: &Scope, pod: &str) -> (bool, String) {
    let args = [
        "-n",
        &scope.namespace,
        "delete",
        "pod",
        pod,
        "--dry-run=server",
    ];
    let output = bed.ask_kubectl(&args).await;
    (output.succeeded(), output.text())
}

/// An eviction that says in its body that it is a dry-run, as `kubectl drain --dry-run=server` does.
async fn evict_dry_in_body(scope: &Scope, pod: &str) -> kube::Result<()> {
    let eviction = json!({
        "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod},
        "deleteOptions": {"dryRun": ["All"]},
    });
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", scope.namespace);
    let request = http::Request::post(path).header("content-type", "application/json");
    let request = request.body(eviction.to_string().into_bytes()).unwrap();
    scope
        .client
        .request::<serde_json::Value>(request)
        .await
        .map(drop)
}

#[tokio::test]
async fn dry_run_writes_nothing_and_gives_real_verdict() {
    let bed = Bed::shared().await;
    let (scope, pods) = three(bed).await;
    let before = version(&scope).await;
    let in_query = EvictParams {
        post_options: PostParams {
            dry_run: true,
            ..PostParams::default()
        },
        ..EvictParams::default()
    };

    // Each dry run finds the budget free, because no dry run takes a claim.
    for pod in &pods {
        let (done, text) = kubectl_delete(bed, &scope, pod).await;
        assert!(done, "{text}");
        scope.pods().evict(pod, &in_query).await.unwrap();
        evict_dry_in_body(&scope, pod).await.unwrap();
        scope
            .pods()
            .delete(pod, &DeleteParams::default().dry_run())
            .await
            .unwrap();
    }
    let pods_now = names(&scope.all_available("app=web", 3).await);
    assert_eq!(pods_now, pods);
    assert_eq!(version(&scope).await, before, "a dry-run wrote to the rule");

    // While the budget stays used up, each dry run is refused like a real request. No node runs the image of the
    // replacement.
    scope.begin(&pods[0], "upgrade").await.unwrap();
    scope
        .until_status("web", "one unavailable, no claim", |s: &RuleStatus| {
            s.unavailable_pods == 1 && claims(s) == 0
        })
        .await;
    let before = version(&scope).await;
    let real = refusal(scope.delete(&pods[1]).await).message;
    let same = real.split(" (used by").next().unwrap();
    assert!(
        same.ends_with("1 of 3 Pods are unavailable, the limit is 1"),
        "{real}"
    );
    let (done, text) = kubectl_delete(bed, &scope, &pods[1]).await;
    assert!(!done && text.contains(same), "{text}");
    let in_query = scope.pods().evict(&pods[1], &in_query).await.map(drop);
    for outcome in [in_query, evict_dry_in_body(&scope, &pods[1]).await] {
        budget_refusal(outcome, "1 of 3 Pods are unavailable, the limit is 1");
    }
    assert_eq!(version(&scope).await, before, "a refusal wrote to the rule");
}

#[tokio::test]
async fn dry_run_begin_shows_its_grant_and_claims_nothing() {
    let (scope, pods) = three(Bed::shared().await).await;
    let before = version(&scope).await;
    use operating::api::keys::{self, Family};
    let patch = json!({"metadata": {"labels": {
        Family::Operating.key("upgrade"): "1", Family::OperationType.key("upgrade"): "upgrade",
    }}});
    let dry = kube::api::PatchParams {
        dry_run: true,
        ..Default::default()
    };
    for pod in &pods {
        let shown = scope
            .pods()
            .patch(pod, &dry, &kube::api::Patch::Merge(&patch))
            .await
            .unwrap();
        assert!(
            shown
                .labels()
                .contains_key(&Family::Preparing.key("upgrade")),
            "{:?}",
            shown.labels()
        );
        assert!(!shown.labels().contains_key(keys::SERVICE_AVAILABLE));
    }
    scope.all_available("app=web", 3).await;
    assert_eq!(version(&scope).await, before, "a dry-run wrote to the rule");
}

#[tokio::test]
async fn drain_in_dry_run_writes_nothing() {
    let bed = Bed::shared().await;
    let (scope, pods) = three(bed).await;
    let before = version(&scope).await;
    let own = json!({"drain": scope.namespace});
    for pod in &pods {
        scope.label(pod, own.clone()).await.unwrap();
    }
    for node in ["worker-0", "worker-1"] {
        let selector = format!("--pod-selector=drain={}", scope.namespace);
        let drain = ["drain", node, &selector, "--dry-run=server"];
        let _ = bed.ask_kubectl(&drain).await.success();
    }
    assert_eq!(names(&scope.all_available("app=web", 3).await), pods);
    assert_eq!(version(&scope).await, before, "a dry-run wrote to the rule");
}

/// The real request would be denied, since its claim could not be written.
#[tokio::test]
async fn dry_run_is_denied_while_server_cannot_write_ledgers() {
    let bed = Bed::own().await;
    let (scope, pods) = three(&bed).await;
    assert!(kubectl_delete(&bed, &scope, &pods[0]).await.0);
    let roles: Api<ClusterRole> = Api::all(bed.admin());
    let mut role = roles.get("operating").await.unwrap();
    let rights = role.rules.clone();
    for rule in role.rules.iter_mut().flatten() {
        let resources = rule.resources.iter_mut().flatten();
        resources
            .filter(|resource| *resource == "podtransitionrules/status")
            .for_each(|resource| "none".clone_into(resource));
    }
    let params = PostParams::default();
    role = roles.replace("operating", &params, &role).await.unwrap();
    let output = wait::value("the denial", async || {
        let (passes, output) = kubectl_delete(&bed, &scope, &pods[0]).await;
        (!passes).then_some(output)
    })
    .await;
    assert!(output.contains("cannot patch resource"), "{output}");
    let evicted = refusal(evict_dry_in_body(&scope, &pods[0]).await);
    assert!(
        evicted.message.contains("cannot patch resource"),
        "{evicted:?}"
    );
    let real = refusal(scope.delete(&pods[0]).await);
    assert!(real.message.contains("cannot patch resource"), "{real:?}");

    role.rules = rights;
    roles.replace("operating", &params, &role).await.unwrap();
    wait::until("the right to be back", async || {
        kubectl_delete(&bed, &scope, &pods[0]).await.0
    })
    .await;
}
