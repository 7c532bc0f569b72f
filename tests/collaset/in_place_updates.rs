//! An in-place update ends when the kubelet has made the change. It is used only where its result equals that of a new
//! Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use testbed::pods::{condition, is_available, may_operate};
use testbed::{Bed, Scope};

use crate::admission_policies::Policy;
use crate::fixtures::{Set, image, is_operating, uids};
use crate::refused_writes::memory;

/// ID of the container that runs.
fn run(pod: &Pod) -> String {
    let statuses = pod.status.as_ref().unwrap().container_statuses.clone();
    statuses.unwrap()[0].container_id.clone().unwrap()
}

/// A spec whose updates wait for some seconds with the Pod off traffic, so that the test can make its kubelet slow in
/// this time.
fn delayed(mut spec: Value) -> Value {
    spec["updateStrategy"] = json!({ "operationDelaySeconds": 6 });
    spec
}

/// Makes the kubelet of a Pod slow as soon as the Pod may be operated on.
async fn slow_down(scope: &Scope, pod: &str) {
    let may_operate = |pod: &Pod| may_operate(pod, "collaset");
    scope.until_pod(pod, "its turn", may_operate).await;
    scope.pause_kubelet(pod).await;
}

/// Waits several times as long as a controller needs that does not wait for the kubelet.
async fn pause() {
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
}

/// Checks that no Pod is left of those before.
fn assert_all_recreated(before: &BTreeMap<i64, String>, after: &BTreeMap<i64, String>) {
    let is_new = |uid: &String| before.values().all(|old| old != uid);
    assert!(after.values().all(is_new), "{before:?} {after:?}");
}

#[tokio::test]
async fn resize_ends_when_container_has_its_new_resources() {
    let scope = Bed::shared().await.scope("slow-resize").await;
    let set = Set::new(&scope, "web", 1, delayed(memory("1Mi"))).await;
    let before = set.pod(0).await;
    let name = before.name_any();
    set.edit(memory("2Mi")).await;
    slow_down(&scope, &name).await;
    let is_resized =
        |pod: &Pod| json!(pod.spec)["containers"][0]["resources"]["requests"]["memory"] == "2Mi";
    scope.until_pod(&name, "the new memory", is_resized).await;
    pause().await;
    let waiting = scope.get(&name).await;
    assert!(is_operating(&waiting) && !is_available(&waiting));
    scope.resume_kubelet(&name).await;
    set.settled().await;
    let after = set.pod(0).await;
    assert_eq!(after.uid(), before.uid());
    assert_ne!(run(&after), run(&before));
}

/// The same as [`memory`], with an amount that no node can provide.
fn infeasible(amount: &str) -> Value {
    let mut spec = memory(amount);
    spec["template"]["metadata"] = json!({ "annotations": { "plane.test/resize": "Infeasible" } });
    spec
}

#[tokio::test]
async fn pods_with_infeasible_resize_are_recreated() {
    let scope = Bed::shared().await.scope("infeasible").await;
    let set = Set::new(&scope, "web", 2, infeasible("1Mi")).await;
    let before = uids(&set.pods().await);
    set.edit(infeasible("2Mi")).await;
    set.settled().await;
    assert_all_recreated(&before, &uids(&set.pods().await));
}

#[tokio::test]
async fn pod_with_infeasible_resize_is_recreated_after_spec_change() {
    let scope = Bed::shared().await.scope("former").await;
    let set = Set::new(&scope, "web", 1, infeasible("1Mi")).await;
    let before = set.pod(0).await;
    let policy = Policy::new(&scope, ("DELETE", "pods"), "false", "Forbidden").await;
    set.edit(infeasible("2Mi")).await;
    let name = before.name_any();
    scope
        .until_pod(&name, "what its node says", |pod| {
            condition(pod, "PodResizePending") == Some(true)
        })
        .await;
    // The kubelet observes the new spec without another attempt to resize.
    let patch = Patch::Merge(json!({ "spec": { "activeDeadlineSeconds": 100_000 } }));
    let written = scope
        .pods()
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    scope
        .until_pod(&name, "the kubelet to see it", |pod| {
            let observed = pod.status.as_ref().unwrap().observed_generation;
            observed.is_none() || observed >= written.metadata.generation
        })
        .await;
    policy.lift().await;
    set.settled().await;
    assert_ne!(set.pod(0).await.uid(), before.uid());
}

#[tokio::test]
async fn update_waits_for_image_rewritten_by_another_webhook() {
    let scope = Bed::shared().await.scope("rewritten").await;
    let set = Set::new(&scope, "web", 1, delayed(json!({}))).await;
    let before = set.pod(0).await;
    let name = before.name_any();
    set.image("app:2").await;
    slow_down(&scope, &name).await;
    scope
        .until_pod(&name, "the new image", |p| image(p) == "app:2")
        .await;
    // Rewrites images like a webhook that pins them to a digest.
    let pinned = json!({ "spec": { "containers": [{ "name": "app", "image": "app:2-pinned" }] } });
    let patch = Patch::Strategic(pinned);
    scope
        .pods()
        .patch(&name, &PatchParams::default(), &patch)
        .await
        .unwrap();
    pause().await;
    let waiting = scope.get(&name).await;
    assert!(is_operating(&waiting) && !is_available(&waiting));
    scope.resume_kubelet(&name).await;
    set.settled().await;
    let after = set.pod(0).await;
    assert_eq!(
        (after.uid(), image(&after)),
        (before.uid(), "app:2-pinned".to_owned())
    );
    assert_ne!(run(&after), run(&before));
}

#[tokio::test]
async fn metadata_that_feeds_the_environment_reaches_it() {
    let scope = Bed::shared().await.scope("fieldref").await;
    let spec = |tier: &str, note: &str| {
        json!({ "template": {
            "metadata": { "labels": { "tier": tier }, "annotations": { "note": note } },
            "spec": { "containers": [{ "name": "app", "image": "app:1", "env": [
                { "name": "TIER", "valueFrom": { "fieldRef": { "fieldPath": "metadata.labels['tier']" } } },
            ] }] },
        } })
    };
    let set = Set::new(&scope, "web", 2, spec("a", "1")).await;
    let before = uids(&set.pods().await);
    set.edit(spec("a", "2")).await;
    set.settled().await;
    assert_eq!(
        uids(&set.pods().await),
        before,
        "no container reads the note"
    );
    set.edit(spec("b", "2")).await;
    set.settled().await;
    assert_all_recreated(&before, &uids(&set.pods().await));
}

#[tokio::test]
async fn defaults_that_are_spelt_out_change_nothing() {
    let scope = Bed::shared().await.scope("defaults").await;
    let spec = |more: Value| {
        let mut container =
            json!({ "name": "app", "image": "app:1", "ports": [{ "containerPort": 80 }] });
        json_patch::merge(&mut container, &more);
        json!({ "template": { "spec": { "containers": [container] } } })
    };
    let set = Set::new(&scope, "web", 2, spec(json!({}))).await;
    let before = set.get().await.status.unwrap();
    let pods = uids(&set.pods().await);
    let spelt = json!({
        "ports": [{ "containerPort": 80, "protocol": "TCP" }], "imagePullPolicy": "IfNotPresent",
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    });
    let mut full = spec(spelt);
    json_patch::merge(
        &mut full,
        &json!({ "template": { "spec": {
        "restartPolicy": "Always", "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30,
    } } }),
    );
    set.edit(full).await;
    let after = set.settled().await.status.unwrap();
    assert_eq!(after.updated_revision, before.updated_revision);
    assert_eq!(uids(&set.pods().await), pods);
}

#[tokio::test]
async fn restart_that_is_asked_for_makes_pods_again() {
    let scope = Bed::shared().await.scope("restart").await;
    let at = |time: &str| {
        let annotation = json!({ "kubectl.kubernetes.io/restartedAt": time });
        json!({ "template": { "metadata": { "annotations": annotation } } })
    };
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = uids(&set.pods().await);
    set.edit(at("2026-01-01T00:00:00Z")).await;
    set.settled().await;
    assert_all_recreated(&before, &uids(&set.pods().await));
}
