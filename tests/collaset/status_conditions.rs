//! The conditions of a set are true, and name the reason when something is missing.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::json;
use testbed::pods::{is_available, may_operate};
use testbed::scope::PAUSED;
use testbed::{Bed, wait};

use crate::fixtures::{Set, condition, image, is_operating, label, uids};
use crate::membership::until_event;

/// Waits until the condition Ready is False with this reason and a message that contains all texts.
async fn until_not_ready(set: &Set<'_>, reason: &str, texts: &[&str]) {
    let matches = |set: &CollaSet| {
        condition(set, "Ready").is_some_and(|c| {
            let all = texts.iter().all(|text| c.message.contains(text));
            c.status == "False" && c.reason == reason && all
        })
    };
    set.until(&format!("Ready False {reason} {texts:?}"), matches)
        .await;
}

#[tokio::test]
async fn paused_set_without_enough_pods_is_not_ready() {
    let scope = Bed::shared().await.scope("paused").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.edit(json!({ "paused": true, "replicas": 5 })).await;
    until_not_ready(&set, "Paused", &["3 Pods to create"]).await;
    let now = set.get().await;
    let scale = condition(&now, "Scale").unwrap();
    assert_eq!((&*scale.status, &*scale.reason), ("False", "Paused"));
    set.edit(json!({ "replicas": 2 })).await;
    set.image("app:2").await;
    until_not_ready(&set, "Paused", &["2 Pods to update"]).await;
    let now = set.get().await;
    let update = condition(&now, "Update").unwrap();
    assert_eq!((&*update.status, &*update.reason), ("False", "Paused"));
    set.edit(json!({ "paused": false })).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 2]);
}

#[tokio::test]
async fn pause_returns_pod_that_scale_in_took_off_traffic() {
    let scope = Bed::shared().await.scope("pause-scale-in").await;
    let delay = json!({ "scaleStrategy": { "operationDelaySeconds": 3600 } });
    let set = Set::new(&scope, "web", 2, delay).await;
    let before = uids(&set.pods().await);
    set.edit(json!({ "replicas": 1 })).await;
    set.until_pods("one off traffic", |pods| {
        pods.values().any(|p| may_operate(p, "collaset"))
    })
    .await;
    set.edit(json!({ "paused": true })).await;
    set.until_pods("both back", |pods| {
        pods.len() == 2 && pods.values().all(|p| is_available(p) && !is_operating(p))
    })
    .await;
    set.edit(json!({ "paused": false, "replicas": 2 })).await;
    set.settled().await;
    assert_eq!(uids(&set.pods().await), before);
}

#[tokio::test]
async fn scale_out_under_partition_restarts_no_pod() {
    let scope = Bed::shared().await.scope("grow-canary").await;
    let canary =
        json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } });
    let set = Set::new(&scope, "web", 4, canary).await;
    set.image("app:2").await;
    set.settled().await;
    let before = set.pods().await;
    set.edit(json!({ "replicas": 6 })).await;
    set.settled().await;
    let after = set.pods().await;
    for (id, pod) in &before {
        assert_eq!(
            (after[id].uid(), image(&after[id])),
            (pod.uid(), image(pod)),
            "ID {id}"
        );
    }
    let new = after.values().filter(|p| image(p) == "app:2").count();
    assert_eq!((after.len(), new), (6, 3));
    set.edit(json!({ "replicas": 4 })).await;
    set.settled().await;
    let remaining = set.pods().await;
    for (id, pod) in &remaining {
        assert_eq!(
            (pod.uid(), image(pod)),
            (after[id].uid(), image(&after[id])),
            "ID {id}"
        );
    }
}

#[tokio::test]
async fn by_label_update_removes_its_label_from_updated_pod() {
    let scope = Bed::shared().await.scope("stale-label").await;
    let by_label = json!({ "updateStrategy": { "rollingUpdate": { "byLabel": {} } } });
    let set = Set::new(&scope, "web", 2, by_label).await;
    let name = set.pod(0).await.name_any();
    for round in ["first", "again"] {
        let included = json!({ keys::UPDATE_INCLUDED: round });
        scope.label(&name, included).await.unwrap();
        set.image("app:2").await;
        let done = |pod: &Pod| image(pod) == "app:2" && label(pod, keys::UPDATE_INCLUDED).is_none();
        scope
            .until_pod(&name, "the label to be removed", done)
            .await;
    }
    assert_eq!(set.images().await, ["app:2", "app:1"]);
}

#[tokio::test]
async fn replacement_is_update_and_no_scaling() {
    let scope = Bed::shared().await.scope("replace-told").await;
    let replace = json!({ "updateStrategy": { "podUpgradePolicy": "Replace" } });
    let set = Set::new(&scope, "web", 2, replace).await;
    // Its new Pods never become available.
    set.image("app:non-exist").await;
    set.until("both pairs", |set| {
        set.status.as_ref().is_some_and(|s| s.replicas == 4)
    })
    .await;
    let now = set.get().await;
    let ready = condition(&now, "Ready").unwrap();
    assert_ne!(ready.reason, "Scaling", "{}", ready.message);
    let scale = condition(&now, "Scale").unwrap();
    assert_eq!(scale.status, "True");
}

#[tokio::test]
async fn immediately_failing_pods_are_recreated_with_backoff() {
    let scope = Bed::shared().await.scope("backoff").await;
    // The simulated kubelet would set some of these Pods back to Running.
    let alone = json!({ "template": { "metadata": { "annotations": { PAUSED: "true" } } } });
    let set = Set::unsettled(&scope, "web", 1, alone).await;
    let mut uids = std::collections::BTreeSet::new();
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed", "reason": "Evicted" } }));
    let stop = tokio::time::Instant::now() + std::time::Duration::from_secs(12);
    while tokio::time::Instant::now() < stop {
        let api: Api<Pod> = scope.pods();
        for pod in scope.list("app=web").await {
            let ended = pod.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Failed");
            if pod.metadata.deletion_timestamp.is_none() && !ended {
                uids.insert(pod.uid().unwrap());
                let name = pod.name_any();
                // The Pod may be deleted by now.
                let _ = api
                    .patch_status(&name, &PatchParams::default(), &failed)
                    .await;
            }
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // The delays are 1, 2, 4 and 8 s.
    assert!((2..=5).contains(&uids.len()), "{uids:?}");
    until_not_ready(&set, "Scaling", &["is Failed and is recreated at 2"]).await;
}

#[tokio::test]
async fn stuck_rollout_names_the_rule_and_the_pod() {
    let scope = Bed::shared().await.scope("stuck-rule").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.hold().await;
    set.image("app:2").await;
    let name = set.pod(0).await.name_any();
    let texts = [
        "0 under way, 2 wait",
        &name,
        "waits for rule hold of PodTransitionRule hold: block by label check policy",
    ];
    until_not_ready(&set, "Updating", &texts).await;
    set.release().await;
    set.settled().await;
    until_event(&scope, "RolloutStarted", "is rolled out").await;
    until_event(&scope, "RolloutCompleted", "has reached all 2 Pods").await;
    until_event(&scope, "SuccessfulCreate", &name).await;
}

#[tokio::test]
async fn pod_without_node_is_named_with_reason() {
    let scope = Bed::shared().await.scope("no-node").await;
    let nowhere = json!({ "template": { "spec": { "nodeSelector": { "no": "such" } } } });
    let set = Set::unsettled(&scope, "web", 1, nowhere).await;
    let words = [
        "has no node: Unschedulable: 0/",
        "didn't match Pod's node affinity/selector",
    ];
    until_not_ready(&set, "Unavailable", &words).await;
}

#[tokio::test]
async fn unknown_pod_names_are_reported() {
    let scope = Bed::shared().await.scope("no-names").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let names = json!({ "podToDelete": ["web-none"], "podToInclude": ["web-other"] });
    set.edit(json!({ "scaleStrategy": names })).await;
    until_event(&scope, "DeleteNotAllowed", "web-none").await;
    until_event(&scope, "IncludeNotAllowed", "web-other").await;
}

#[tokio::test]
async fn cheapest_pod_is_scaled_in_first() {
    let scope = Bed::shared().await.scope("cost").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    let name = before[&0].name_any();
    let cheap = json!({ "metadata": { "annotations": { keys::DELETION_COST: "-1" } } });
    scope.patch(&name, cheap).await.unwrap();
    // The Pod and the set arrive by different watches. The pause lets the controller see the annotation before the set.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    set.edit(json!({ "replicas": 2 })).await;
    set.settled().await;
    wait::until("the Pod to be gone", async || {
        scope
            .list("app=web")
            .await
            .iter()
            .all(|p| p.name_any() != name)
    })
    .await;
    assert_eq!(set.pods().await.into_keys().collect::<Vec<_>>(), [1, 2]);
}
