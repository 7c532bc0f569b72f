//! Which Pods a rule counts and holds (contract 10.1 to contract 10.3).

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::Bed;
use testbed::pods::{is_available, names};
use testbed::scope::refusal;

#[tokio::test]
async fn fields_of_newer_kubernetes_survive() {
    let scope = Bed::shared().await.scope("fields").await;
    let spec = json!({"spec": {
        "initContainers": [{"name": "sidecar", "image": "proxy:1", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "image": "web:1", "resizePolicy": [
            {"resourceName": "cpu", "restartPolicy": "NotRequired"},
        ]}],
    }});
    scope.pod("web", spec).await;
    let check = async || {
        let pod = scope.get("web").await;
        let spec = pod.spec.as_ref().unwrap();
        assert_eq!(
            spec.init_containers.as_ref().unwrap()[0]
                .restart_policy
                .as_deref(),
            Some("Always")
        );
        assert_eq!(spec.containers[0].resize_policy.as_ref().unwrap().len(), 1);
        assert_eq!(spec.readiness_gates.as_ref().unwrap().len(), 1);
        pod
    };
    scope.until_pod("web", "available", is_available).await;
    check().await;
    scope.begin("web", "x").await.unwrap();
    scope
        .until_pod("web", "operate", |p| {
            p.labels().contains_key(&Family::Operate.key("x"))
        })
        .await;
    scope.finish("web", "x").await.unwrap();
    scope.until_pod("web", "available", is_available).await;
    check().await;
}

#[tokio::test]
async fn pod_without_readiness_gate_is_counted_held_and_operated() {
    let scope = Bed::shared().await.scope("gateless").await;
    // Like Pods from before the installation, these Pods become managed only after their creation.
    for name in ["a", "b"] {
        scope
            .pod(
                name,
                json!({"metadata": {"labels": {"app": "web", keys::CONTROL: null}}}),
            )
            .await;
        scope
            .label(name, json!({keys::CONTROL: keys::CONTROL_VALUE}))
            .await
            .unwrap();
    }
    let pods = scope.all_available("app=web", 2).await;
    assert!(
        pods.iter()
            .all(|p| p.spec.as_ref().unwrap().readiness_gates.is_none())
    );
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 2).await;
    scope.begin("a", "x").await.unwrap();
    let operate = |p: &_| ResourceExt::labels(p).contains_key(&Family::Operate.key("x"));
    scope.until_pod("a", "operate", operate).await;
    assert_eq!(refusal(scope.delete("b").await).code, 429);
    scope.finish("a", "x").await.unwrap();
    scope.until_pod("a", "available", is_available).await;
    scope.until_at_rest("web", 2).await;
    scope.delete("b").await.unwrap();
}

#[tokio::test]
async fn equal_names_in_two_namespaces_are_independent() {
    let bed = Bed::shared().await;
    let (held, free) = (bed.scope("held").await, bed.scope("free").await);
    for scope in [&held, &free] {
        scope
            .pod("web-0", json!({"metadata": {"labels": {"app": "web"}}}))
            .await;
        scope.all_available("app=web", 1).await;
    }
    held.rule("web", json!({"app": "web"}), json!(0)).await;
    free.rule("web", json!({"app": "web"}), json!(1)).await;
    held.until_at_rest("web", 1).await;
    free.until_at_rest("web", 1).await;
    let status = refusal(held.delete("web-0").await);
    assert!(
        status
            .message
            .ends_with("no disruption is allowed: raise the limit or disable the rule"),
        "{}",
        status.message
    );
    free.delete("web-0").await.unwrap();
    let waiting = held.begin("web-0", "x").await.unwrap();
    assert!(waiting.labels().contains_key(&Family::PreCheck.key("x")));
}

#[tokio::test]
async fn disruptions_of_terminating_completed_and_unmanaged_pods_need_no_claim() {
    let scope = Bed::shared().await.scope("budget").await;
    let site = json!({"metadata": {"labels": {"site": "web"}}});
    scope.deploy("web", 3, site.clone()).await;
    scope.pod("completed", site.clone()).await;
    scope
        .pod(
            "unmanaged",
            json!({"metadata": {"labels": {"site": "web", keys::CONTROL: null}}}),
        )
        .await;
    let managed = format!("site=web,{}=true", keys::CONTROL);
    scope.all_available(&managed, 4).await;
    // Its Pod is replaced, and a finalizer keeps it terminating until the test removes the finalizer.
    let terminating = scope.list("app=web").await[0].name_any();
    let finalizer = json!({"metadata": {"finalizers": ["example.com/stuck"]}});
    scope.patch(&terminating, finalizer).await.unwrap();
    scope.delete(&terminating).await.unwrap();
    let done = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
    scope
        .pods()
        .patch_status("completed", &PatchParams::default(), &done)
        .await
        .unwrap();
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;

    // None of these disruptions needs a claim.
    scope.delete("unmanaged").await.unwrap();
    scope.delete(&terminating).await.unwrap();
    scope.evict("completed").await.unwrap();
    scope.until_at_rest("web", 3).await;
    // The budget allows exactly one disruption.
    let pods = scope.list("app=web").await;
    let serving: Vec<_> = pods
        .iter()
        .filter(|p| is_available(p))
        .map(ResourceExt::name_any)
        .collect();
    scope.begin(&serving[0], "x").await.unwrap();
    assert_eq!(refusal(scope.delete(&serving[1]).await).code, 429);
    scope
        .patch(&terminating, json!({"metadata": {"finalizers": null}}))
        .await
        .unwrap();
}

#[tokio::test]
async fn labels_cannot_be_edited_to_dodge_a_rule() {
    let scope = Bed::shared().await.scope("dodge").await;
    scope
        .deploy("web", 3, json!({"metadata": {"labels": {"site": "web"}}}))
        .await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    scope.begin(&pods[0], "x").await.unwrap();
    for edit in [
        json!({keys::CONTROL: null}),
        json!({keys::CONTROL: "false"}),
        json!({"site": "other"}),
    ] {
        // A Pod with an operation in flight can't leave the rule at all.
        let status = refusal(scope.label(&pods[0], edit.clone()).await);
        assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
        assert!(
            status
                .message
                .contains("finish or undo the operation first"),
            "{}",
            status.message
        );
        // An available Pod can leave the rule only within the budget.
        let status = refusal(scope.label(&pods[1], edit).await);
        assert_eq!(
            (status.code, status.reason.as_str()),
            (429, "TooManyRequests")
        );
        assert!(
            status.message.contains("the limit is 1"),
            "{}",
            status.message
        );
    }
    // Users can neither remove the label `service-available` nor forge the labels of a phase.
    let status = refusal(
        scope
            .label(&pods[1], json!({keys::SERVICE_AVAILABLE: null}))
            .await,
    );
    assert_eq!(status.code, 429, "{}", status.message);
    let status = refusal(
        scope
            .label(&pods[1], json!({Family::PreChecked.key("y"): "1"}))
            .await,
    );
    assert!(
        status.message.contains(&Family::PreChecked.key("y")),
        "{}",
        status.message
    );
}
