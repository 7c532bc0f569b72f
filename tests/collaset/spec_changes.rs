//! What admission answers to changes of a set that would lose data or Pods, or that a dry run cannot test.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::collaset::CollaSet;
use operating::domain::collaset::headroom::max_replicas;
use serde_json::json;
use testbed::{Bed, Scope, wait};

use crate::admission;
use crate::fixtures::{Set, condition, uids};

/// A webhook for Pods of the namespace that no server answers.
pub struct Dead<'a> {
    scope: &'a Scope,
    all: Api<MutatingWebhookConfiguration>,
    name: String,
}

impl<'a> Dead<'a> {
    async fn new(scope: &'a Scope) -> Dead<'a> {
        Dead::for_updates(scope, "false").await
    }

    /// Its rules match creations of Pods, and changes of Pods for which the CEL expression holds.
    pub async fn for_updates(scope: &'a Scope, of: &str) -> Dead<'a> {
        let condition = format!("request.operation == 'CREATE' || ({of})");
        let all: Api<MutatingWebhookConfiguration> = Api::all(scope.client.clone());
        let name = format!("dead.{}.test", scope.namespace);
        let configuration = json!({
            "metadata": { "name": name },
            "webhooks": [{
                "name": format!("pods.{name}"), "failurePolicy": "Fail", "sideEffects": "None",
                "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
                "clientConfig": { "url": "https://127.0.0.1:1/" },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": scope.namespace } },
                "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE", "UPDATE"] }],
                "matchConditions": [{ "name": "of", "expression": condition }],
            }],
        });
        let configuration = serde_json::from_value(configuration).unwrap();
        all.create(&PostParams::default(), &configuration)
            .await
            .unwrap();
        let dead = Dead { scope, all, name };
        let pod = json!({ "metadata": { "generateName": "probe-" }, "spec": { "containers": [{ "name": "a", "image": "a:1" }] } });
        let pod = serde_json::from_value(pod).unwrap();
        let dry = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        wait::until("the webhook to be called", async || {
            dead.scope.pods().create(&dry, &pod).await.is_err()
        })
        .await;
        dead
    }

    pub async fn lift(self) {
        let delete = DeleteParams::default();
        self.all.delete(&self.name, &delete).await.unwrap();
    }
}

#[tokio::test]
async fn rollback_is_admitted_while_somebody_elses_webhook_is_down() {
    let scope = Bed::shared().await.scope("webhook-down").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = uids(&set.pods().await);
    set.image("app:2").await;
    set.settled().await;
    let dead = Dead::new(&scope).await;
    set.image("app:1").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:1"; 2]);
    assert_eq!(uids(&set.pods().await), before);
    dead.lift().await;
}

#[tokio::test]
async fn omitted_replicas_keep_stored_value() {
    let scope = Bed::shared().await.scope("no-replicas").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = uids(&set.pods().await);
    let stored = set.edit(json!({ "replicas": null })).await;
    assert_eq!(stored.spec.replicas, Some(3));
    // The field is removed, as when server-side apply hands it over to another manager.
    let apply = |spec: serde_json::Value| {
        let set = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": "web" }, "spec": spec,
        });
        Patch::Apply(set)
    };
    let template = json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
    });
    let selector = json!({ "matchLabels": { "app": "web" } });
    let force = PatchParams::apply("gitops").force();
    let with = json!({ "replicas": 3, "selector": selector, "template": template });
    set.api.patch("web", &force, &apply(with)).await.unwrap();
    let without = json!({ "selector": selector, "template": template });
    let stored: CollaSet = set.api.patch("web", &force, &apply(without)).await.unwrap();
    assert_eq!(stored.spec.replicas, Some(3));
    let settled = set.settled().await;
    assert_eq!(condition(&settled, "Scale").unwrap().status, "True");
    assert_eq!(uids(&set.pods().await), before);
}

#[tokio::test]
async fn replicas_beyond_the_room_of_the_pool_are_refused() {
    let scope = Bed::shared().await.scope("pool-room").await;
    let tried = async |replicas: usize, policy: &str| {
        let mut set = admission::set("web", json!({}));
        set["spec"]["replicas"] = replicas.into();
        set["spec"]["updateStrategy"] = json!({ "podUpgradePolicy": policy });
        let apply = ["apply", "--dry-run=server"];
        let output = admission::kubectl(&scope, &apply, &set).await;
        (output.succeeded(), output.text())
    };
    let most = max_replicas("web");
    let (passes, output) = tried(most + 1, "Recreate").await;
    assert!(!passes, "{output}");
    for text in [
        &*format!(
            "spec.replicas: {}: is more than the {most} instance IDs",
            most + 1
        ),
        "use several CollaSets, or a shorter name",
    ] {
        assert!(output.contains(text), "{text} in {output}");
    }
    let (passes, output) = tried(most, "Recreate").await;
    assert!(passes && !output.contains("instance ID"), "{output}");
    let (passes, output) = tried(15_000, "Replace").await;
    assert!(
        passes && output.contains("of the 15000 Pods are replaced at a time"),
        "{output}"
    );
    let (passes, output) = tried(1_000, "Replace").await;
    assert!(passes && !output.contains("at a time"), "{output}");
}
