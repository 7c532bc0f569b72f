//! Server-side apply: the fields that the webhook and the controller write belong to no manifest and conflict with
//! none.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{has_label, is_available, is_idle, labels, may_operate};
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope};

const ID: &str = "upgrade";

/// `kubectl apply --server-side` of a manifest in the namespace.
async fn apply(bed: &Bed, scope: &Scope, manifest: &Value, more: &[&str]) {
    let args = ["-n", &scope.namespace, "apply", "--server-side"];
    let args = [&args[..], more].concat();
    let _ = bed.ask_kubectl_about(&args, manifest).await.success();
}

/// The manifest of a managed Pod of the site.
fn manifest(name: &str) -> Value {
    let mut labels = labels(name);
    labels["site"] = json!("web");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [{"name": "main", "image": "web:1"}],
            "terminationGracePeriodSeconds": 1,
        },
    })
}

/// The same, with an operation begun.
fn begun(name: &str) -> Value {
    let mut manifest = manifest(name);
    let labels = &mut manifest["metadata"]["labels"];
    labels[Family::Operating.key(ID)] = json!("1");
    labels[Family::OperationType.key(ID)] = json!(ID);
    manifest
}

async fn versions(scope: &Scope, pods: &[&str]) -> Vec<Option<String>> {
    let mut versions = vec![scope.rules().get("web").await.unwrap().resource_version()];
    for pod in pods {
        versions.push(scope.get(pod).await.resource_version());
    }
    versions
}

#[tokio::test]
async fn operation_labels_can_be_applied_from_a_manifest() {
    let bed = Bed::shared().await;
    let scope = bed.scope("apply").await;
    for name in ["a", "b"] {
        apply(bed, &scope, &manifest(name), &[]).await;
    }
    scope.all_available("site=web", 2).await;
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    scope.until_at_rest("web", 2).await;
    let observer = Observer::start(&scope).await;

    // A repeated apply of the same manifest removes nothing, and a dry run writes nothing.
    let before = versions(&scope, &["a", "b"]).await;
    apply(bed, &scope, &manifest("a"), &[]).await;
    apply(bed, &scope, &begun("a"), &["--dry-run=server"]).await;
    assert_eq!(versions(&scope, &["a", "b"]).await, before);

    apply(bed, &scope, &begun("a"), &[]).await;
    let granted = scope.get("a").await;
    assert!(
        has_label(&granted, &Family::PreChecked.key(ID)),
        "{:?}",
        granted.labels()
    );
    assert!(!granted.labels().contains_key(keys::SERVICE_AVAILABLE));
    apply(bed, &scope, &begun("b"), &[]).await;
    let waiting = scope.get("b").await;
    assert!(
        has_label(&waiting, &Family::PreCheck.key(ID)) && is_available(&waiting),
        "{:?}",
        waiting.labels()
    );
    scope
        .until_pod("a", "operate", |p| may_operate(p, ID))
        .await;
    scope
        .until_status("web", "one waiting", |s: &RuleStatus| {
            s.waiting_pods == 1 && s.available_pods == 1 && claims(s) == 0
        })
        .await;
    let before = versions(&scope, &["a", "b"]).await;
    for name in ["a", "b"] {
        apply(bed, &scope, &begun(name), &[]).await;
        apply(bed, &scope, &manifest(name), &["--dry-run=server"]).await;
    }
    assert_eq!(versions(&scope, &["a", "b"]).await, before);

    // The manifest no longer contains the operation, and this ends the operation.
    apply(bed, &scope, &manifest("a"), &[]).await;
    scope.until_pod("a", "online again", is_idle).await;
    scope
        .until_pod("b", "operate", |p| may_operate(p, ID))
        .await;
    apply(bed, &scope, &manifest("b"), &[]).await;
    scope.until_pod("b", "online again", is_idle).await;
    scope.until_at_rest("web", 2).await;
    observer.fewest_available(|_| true, 2).await.at_least(1);
}

#[tokio::test]
async fn manifest_applied_by_another_leaves_operation_alone() {
    let scope = Bed::shared().await.scope("apply").await;
    let site = json!({"metadata": {"labels": {"site": "web"}}});
    for name in ["a", "b"] {
        scope.pod(name, site.clone()).await;
    }
    scope.all_available("site=web", 2).await;
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    scope.until_at_rest("web", 2).await;
    // Without `--force`: a conflict with any field owner would be a 409.
    let apply = async |name: &str, dry_run: bool| {
        let mut params = PatchParams::apply("gitops");
        params.dry_run = dry_run;
        scope
            .pods()
            .patch(name, &params, &Patch::Apply(manifest(name)))
            .await
    };
    let lifecycle = |pod: &Pod| -> Vec<(String, String)> {
        let labels = pod.labels().clone().into_iter();
        labels
            .filter(|(k, _)| k.contains(keys::LIFECYCLE_DOMAIN) || k == keys::SERVICE_AVAILABLE)
            .collect()
    };
    for name in ["a", "b"] {
        scope.begin(name, ID).await.unwrap();
    }
    scope
        .until_pod("a", "operate", |p| may_operate(p, ID))
        .await;
    for name in ["a", "b"] {
        let before = scope.get(name).await;
        let shown = apply(name, true).await.unwrap();
        assert_eq!(lifecycle(&shown), lifecycle(&before));
        assert_eq!(
            scope.get(name).await.resource_version(),
            before.resource_version()
        );
        let applied = apply(name, false).await.unwrap();
        assert_eq!(lifecycle(&applied), lifecycle(&before));
        let gates = |p: &Pod| p.spec.as_ref().unwrap().readiness_gates.clone();
        assert!(gates(&applied).is_some() && gates(&applied) == gates(&before));
    }
    // An image in the manifest is an in-place change like any other: free in phase Operate, and held while the Pod
    // serves.
    let image = |name: &str| {
        let mut manifest = manifest(name);
        manifest["spec"]["containers"][0]["image"] = json!("web:2");
        manifest
    };
    let params = PatchParams::apply("gitops").force();
    let pods = scope.pods();
    let outcome = pods.patch("b", &params, &Patch::Apply(image("b"))).await;
    assert_eq!(refusal(outcome).code, 429);
    let free = pods.patch("a", &params, &Patch::Apply(image("a"))).await;
    free.unwrap();
    for name in ["a", "b"] {
        scope
            .until_pod(name, "operate", |p| may_operate(p, ID))
            .await;
        scope.finish(name, ID).await.unwrap();
    }
    for name in ["a", "b"] {
        scope.until_pod(name, "online again", is_idle).await;
    }
    scope.until_at_rest("web", 2).await;
}

#[tokio::test]
async fn rule_applied_twice_is_same_rule() {
    let bed = Bed::shared().await;
    let scope = bed.scope("apply").await;
    scope.deploy("web", 2, json!({})).await;
    scope.all_available("app=web", 2).await;
    let rule = |max: Value| {
        json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": {"name": "web"},
            "spec": {
                "selector": {"matchLabels": {"app": "web"}},
                "rules": [{"name": "availability", "availablePolicy": {"maxUnavailableValue": max}}],
            },
        })
    };
    apply(bed, &scope, &rule(json!("50%")), &[]).await;
    scope.until_at_rest("web", 2).await;
    let before = versions(&scope, &[]).await;
    apply(bed, &scope, &rule(json!("50%")), &[]).await;
    apply(bed, &scope, &rule(json!(0)), &["--dry-run=server"]).await;
    assert_eq!(versions(&scope, &[]).await, before);
    let stored = scope.rules().get("web").await.unwrap();
    assert_eq!(stored.metadata.generation, Some(1));

    // The fields that the server writes conflict with no manifest.
    apply(bed, &scope, &rule(json!(0)), &[]).await;
    let pod = scope.list("app=web").await[0].name_any();
    let status = refusal(scope.delete(&pod).await);
    assert!(
        status.code == 429 && status.message.contains("the limit is 0"),
        "{status:?}"
    );
    apply(bed, &scope, &rule(json!("50%")), &[]).await;
    testbed::wait::until("the wider limit", async || scope.delete(&pod).await.is_ok()).await;
}
