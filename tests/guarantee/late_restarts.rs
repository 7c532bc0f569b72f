//! Restarts that come after the end of the operation that caused them: the kubelet writes the status before it ends the
//! containers, so an operator that looks at the status only ends its operation too early.

use std::time::Duration;

use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{condition, is_available, is_idle, may_operate, names, service_ready};
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope, wait};
use tokio_util::task::AbortOnDropHandle;

use crate::in_place::set_image;

const ID: &str = "upgrade";

/// A kubelet that reports the spec as observed and sets Ready according to the readiness gate, but does not restart
/// containers. It works until it is dropped.
async fn kubelet_that_only_reports(scope: &Scope, pod: &str) -> AbortOnDropHandle<()> {
    scope.pause_kubelet(pod).await;
    let (scope, name) = (scope.clone(), pod.to_owned());
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let pod = scope.get(&name).await;
            let open = service_ready(&pod) == Some(true);
            let observed = pod.status.as_ref().and_then(|s| s.observed_generation);
            if observed != pod.metadata.generation || condition(&pod, "Ready") != Some(open) {
                let ready = if open { "True" } else { "False" };
                let status = json!({"status": {
                    "observedGeneration": pod.metadata.generation,
                    "conditions": [{"type": "Ready", "status": ready}],
                }});
                let patch = Patch::Strategic(status);
                let params = PatchParams::default();
                let _ = scope.pods().patch_status(&name, &params, &patch).await;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }))
}

/// Waits until the kubelet has reported the spec as observed.
async fn until_observed(scope: &Scope, pod: &str) {
    let is_observed = |p: &k8s_openapi::api::core::v1::Pod| {
        p.status.as_ref().and_then(|s| s.observed_generation) == p.metadata.generation
    };
    scope
        .until_pod(pod, "seen by its kubelet", is_observed)
        .await;
}

async fn begin_and_operate(scope: &Scope, pod: &str) {
    scope.begin(pod, ID).await.unwrap();
    scope
        .until_pod(pod, "operate", |p| may_operate(p, ID))
        .await;
}

/// Begins and ends an operation without a change on a Pod, and waits until the Pod serves again.
async fn operate_on(scope: &Scope, pod: &str) {
    begin_and_operate(scope, pod).await;
    scope.finish(pod, ID).await.unwrap();
    scope.until_pod(pod, "online again", is_idle).await;
}

#[tokio::test]
async fn image_change_keeps_its_claim_after_early_operation_end() {
    let scope = Bed::shared().await.scope("awaits").await;
    let pods = scope.web_under_rule(4, json!(2)).await;
    let observer = Observer::start(&scope).await;
    let early = &pods[0];
    begin_and_operate(&scope, early).await;
    let kubelet = kubelet_that_only_reports(&scope, early).await;
    set_image(&scope, early, "web:2").await.unwrap();
    scope.finish(early, ID).await.unwrap();
    until_observed(&scope, early).await;

    // Neither an operation of another Pod nor a manual edit brings the Pod back.
    operate_on(&scope, &pods[1]).await;
    for by_hand in [Value::Null, json!("{}"), json!("nonsense")] {
        let edit = json!({"metadata": {"annotations": {keys::AWAITS_RESTART: by_hand}}});
        let pod = scope.patch(early, edit).await.unwrap();
        let value = &pod.annotations()[keys::AWAITS_RESTART];
        assert!(value.starts_with(r#"{"main":"#), "{value}");
    }
    let status =
        json!({"status": {"conditions": [{"type": keys::SERVICE_READY, "status": "True"}]}});
    scope
        .pods()
        .patch_status(early, &PatchParams::default(), &Patch::Strategic(status))
        .await
        .unwrap();
    let forged = json!({keys::SERVICE_AVAILABLE: "1"});
    match scope.label(early, forged).await {
        Ok(pod) => {
            let value = pod.labels().get(keys::SERVICE_AVAILABLE);
            assert_eq!(value, None, "not Ready");
        }
        // The kubelet has already set Ready according to the forged condition.
        refused => assert_eq!(refusal(refused).code, 422),
    }
    let leave = json!({"metadata": {"labels": {keys::CONTROL: null}, "annotations": {keys::AWAITS_RESTART: null}}});
    let leaves = refusal(scope.patch(early, leave).await);
    let why = "while it waits for container main to restart for its new image";
    assert!(
        leaves.code == 403 && leaves.message.contains(why),
        "{leaves:?}"
    );
    operate_on(&scope, &pods[1]).await;
    let pod = scope.get(early).await;
    assert!(!is_available(&pod), "{:?}", pod.labels());

    // The budget has room for one of two Pods.
    begin_and_operate(&scope, &pods[1]).await;
    let waiting = scope.begin(&pods[2], ID).await.unwrap();
    assert!(waiting.labels().contains_key(&Family::PreCheck.key(ID)));
    let status = refusal(scope.delete(&pods[3]).await);
    assert_eq!(status.code, 429, "{status:?}");

    drop(kubelet);
    scope.resume_kubelet(early).await;
    let back = scope.until_pod(early, "online again", is_idle).await;
    let main = &back
        .status
        .as_ref()
        .unwrap()
        .container_statuses
        .as_ref()
        .unwrap()[0];
    assert_eq!((main.image.as_str(), main.restart_count), ("web:2", 1));
    assert!(!back.annotations().contains_key(keys::AWAITS_RESTART));
    for pod in &pods[1..3] {
        scope
            .until_pod(pod, "operate", |p| may_operate(p, ID))
            .await;
        scope.finish(pod, ID).await.unwrap();
    }
    scope.until_at_rest("web", 4).await;
    observer.fewest_available(|_| true, 4).await.at_least(2);
}

#[tokio::test]
async fn image_changed_and_taken_back_in_an_operation_restarts_nothing() {
    let scope = Bed::shared().await.scope("taken-back").await;
    let pods = scope.web_under_rule(2, json!(1)).await;
    begin_and_operate(&scope, &pods[0]).await;
    scope.pause_kubelet(&pods[0]).await;
    set_image(&scope, &pods[0], "web:2").await.unwrap();
    set_image(&scope, &pods[0], "web:1").await.unwrap();
    scope.finish(&pods[0], ID).await.unwrap();
    scope.resume_kubelet(&pods[0]).await;
    let back = scope.until_pod(&pods[0], "online again", is_idle).await;
    let status = back.status.as_ref().unwrap();
    assert_eq!(
        status.container_statuses.as_ref().unwrap()[0].restart_count,
        0
    );
    assert!(!back.annotations().contains_key(keys::AWAITS_RESTART));
    scope.until_at_rest("web", 2).await;
}

/// The status of a container does not show a limit that the container inherits from its Pod.
#[tokio::test]
async fn resize_beside_an_inherited_limit_ends_with_the_operation() {
    let scope = Bed::shared().await.scope("inherits").await;
    let resized = |memory: &str| {
        let restarts = ["cpu", "memory"]
            .map(|name| json!({"resourceName": name, "restartPolicy": "RestartContainer"}));
        json!({
            "name": "main", "image": "web:1", "resizePolicy": restarts,
            "resources": {"requests": {"memory": memory}, "limits": {"memory": memory}},
        })
    };
    let limits =
        json!({"requests": {"cpu": "1", "memory": "8Mi"}, "limits": {"cpu": "1", "memory": "8Mi"}});
    let spec = json!({"spec": {"containers": [resized("1Mi")], "resources": limits}});
    scope.deploy("web", 2, spec).await;
    let pods = names(&scope.all_available("app=web", 2).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 2).await;
    begin_and_operate(&scope, &pods[0]).await;
    scope.pause_kubelet(&pods[0]).await;
    let patch = Patch::Strategic(json!({"spec": {"containers": [resized("2Mi")]}}));
    let params = PatchParams::default();
    let written = scope.pods().patch_resize(&pods[0], &params, &patch).await;
    written.unwrap();
    let image = refusal(set_image(&scope, &pods[0], "web:2").await);
    assert_eq!(image.code, 429, "{image:?}");
    scope.resume_kubelet(&pods[0]).await;
    wait::until("the image to be changed", async || {
        set_image(&scope, &pods[0], "web:2").await.is_ok()
    })
    .await;
    scope.finish(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "online again", is_idle).await;
    scope.until_at_rest("web", 2).await;
}

#[tokio::test]
async fn resize_keeps_its_claim_after_early_operation_end() {
    let scope = Bed::shared().await.scope("resized").await;
    let container = json!({
        "name": "main", "image": "web:1", "resources": {"requests": {"memory": "1Mi"}},
        "resizePolicy": [{"resourceName": "memory", "restartPolicy": "RestartContainer"}],
    });
    let spec = json!({"spec": {"containers": [container]}});
    scope.deploy("web", 3, spec).await;
    let pods = names(&scope.all_available("app=web", 3).await);
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    let early = &pods[0];
    begin_and_operate(&scope, early).await;
    let kubelet = kubelet_that_only_reports(&scope, early).await;
    // The rules have passed the operation, so the loss of another Pod does not stop its work.
    scope.lose_readiness(&pods[1]).await;
    scope
        .until_pod(&pods[1], "be lost", |p| !is_available(p))
        .await;
    let resize = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"memory": "2Mi"}}}]}});
    let patch = Patch::Strategic(resize);
    let params = PatchParams::default();
    scope
        .pods()
        .patch_resize(early, &params, &patch)
        .await
        .unwrap();
    scope.finish(early, ID).await.unwrap();
    scope.resume_kubelet(&pods[1]).await;
    scope.until_pod(&pods[1], "serve again", is_available).await;
    scope.until_pod(early, "online again", is_idle).await;
    wait::until("the status to count the place", async || {
        let status = scope.status::<RuleStatus>("web").await;
        status.available_pods == 2 || claims(&status) == 1
    })
    .await;
    let status = refusal(scope.delete(&pods[2]).await);
    assert_eq!(status.code, 429, "{status:?}");
    drop(kubelet);
    // kwok carries out a resize only if it has not reported the spec as observed.
    let unseen = Patch::Strategic(json!({"status": {"observedGeneration": 1}}));
    let written = scope.pods().patch_status(early, &params, &unseen).await;
    written.unwrap();
    scope.resume_kubelet(early).await;
    scope.until_at_rest("web", 3).await;
    let pod = scope.get(early).await;
    assert_eq!(
        pod.status.unwrap().container_statuses.unwrap()[0].restart_count,
        1
    );
    scope.delete(&pods[2]).await.unwrap();
}
