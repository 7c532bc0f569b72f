//! Pods that leave a set alive (`podToExclude`), and Pods that a set takes in (`podToInclude`).

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Event, Pod};
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;
use testbed::pods::{in_flight, is_available, is_idle, may_operate};
use testbed::wait;

use crate::fixtures::{Set, condition, ids, image, is_paired, label};
use crate::pvcs;

fn is_owned(pod: &Pod) -> bool {
    pod.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|o| o.kind == "CollaSet")
}

#[tokio::test]
async fn pod_leaves_alive_and_enters_again() {
    let scope = Bed::shared().await.scope("exclude").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let leaver = set.pod(0).await;
    let name = leaver.name_any();
    set.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }))
        .await;
    let out = scope.until_pod(&name, "to be out", |p| !is_owned(p)).await;
    assert_eq!(label(&out, keys::ORPHANED), Some("true"));
    set.settled().await;
    assert_eq!(ids(&set.pods().await), [1]);
    set.edit(json!({
        "replicas": 2, "scaleStrategy": { "podToExclude": null, "podToInclude": [name] },
    }))
    .await;
    let back = scope.until_pod(&name, "to be in", is_owned).await;
    assert_eq!(label(&back, keys::ORPHANED), None);
    set.settled().await;
    assert_eq!(set.pod(0).await.uid(), leaver.uid());
    assert_eq!(set.pods().await.len(), 2);
}

/// No other controller would end an operation that the set has begun.
#[tokio::test]
async fn pods_excluded_during_update_serve_again() {
    let scope = Bed::shared().await.scope("leave-amid").await;
    let delay = json!({ "updateStrategy": { "operationDelaySeconds": 3600 } });
    let set = Set::new(&scope, "web", 3, delay).await;
    set.image("app:2").await;
    let waiting = set
        .until_pods("all off traffic", |pods| {
            pods.values().all(|p| may_operate(p, "collaset"))
        })
        .await;
    let orphan = json!({ "metadata": {
        "ownerReferences": null, "labels": { keys::ORPHANED: "true" },
    } });
    scope.patch(&waiting[&0].name_any(), orphan).await.unwrap();
    let stranger = json!({ "app": "other" });
    scope
        .label(&waiting[&1].name_any(), stranger)
        .await
        .unwrap();
    let excluded = json!({ keys::TO_EXCLUDE: "1" });
    scope
        .label(&waiting[&2].name_any(), excluded)
        .await
        .unwrap();
    for before in waiting.values() {
        let free = |pod: &Pod| !is_owned(pod) && is_idle(pod);
        let pod = scope
            .until_pod(&before.name_any(), "to be free", free)
            .await;
        assert_eq!(pod.uid(), before.uid());
        assert_eq!(image(&pod), "app:1");
    }
}

/// The Pod keeps its claim until it has restarted for the change of the set.
#[tokio::test]
async fn pod_excluded_after_its_change_serves_after_its_restart() {
    let scope = Bed::shared().await.scope("dropped").await;
    let delay = json!({ "updateStrategy": { "operationDelaySeconds": 5 } });
    let set = Set::new(&scope, "web", 2, delay).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    scope.until_at_rest("web", 2).await;
    set.image("app:2").await;
    let waiting = set
        .until_pods("one off traffic", |pods| {
            pods.values().any(|p| may_operate(p, "collaset"))
        })
        .await;
    let pod = waiting.values().find(|p| may_operate(p, "collaset"));
    let name = pod.unwrap().name_any();
    scope.pause_kubelet(&name).await;
    let changed = |pod: &Pod| image(pod) == "app:2";
    scope.until_pod(&name, "to be changed", changed).await;
    let orphan = json!({ "metadata": {
        "ownerReferences": null, "labels": { keys::ORPHANED: "true" },
    } });
    scope.patch(&name, orphan).await.unwrap();
    let ended = |pod: &Pod| in_flight(pod).is_empty();
    let waits = scope.until_pod(&name, "its operation to end", ended).await;
    assert!(!is_available(&waits), "its container runs the old image");
    assert_eq!(waits.annotations().get(keys::LAST_POD_STATUS), None);
    scope.resume_kubelet(&name).await;
    scope.until_pod(&name, "to serve", is_available).await;
    set.settled().await;
    scope.until_at_rest("web", 3).await;
    assert_eq!(set.images().await, ["app:2"; 2]);
}

#[tokio::test]
async fn pvcs_move_with_excluded_pods() {
    let scope = Bed::shared().await.scope("exclude-pvc").await;
    pvcs::volumes(&scope, 3).await;
    let set = Set::new(&scope, "web", 2, pvcs::template(&scope, "1Gi")).await;
    let name = set.pod(1).await.name_any();
    let its = pvcs::list_of_instance(&scope, 1).await.remove(0).name_any();
    // The label excludes the Pod without a change of the replicas: another Pod with a new PVC takes the ID.
    scope
        .label(&name, json!({ keys::TO_EXCLUDE: "1" }))
        .await
        .unwrap();
    let out = scope.until_pod(&name, "to be out", |p| !is_owned(p)).await;
    assert_eq!(
        label(&out, keys::TO_EXCLUDE),
        None,
        "or it could not enter again"
    );
    let pvc = pvcs::get(&scope, &its).await;
    assert_eq!(pvc.metadata.owner_references.unwrap_or_default(), []);
    assert_eq!(pvc.metadata.labels.unwrap()[keys::ORPHANED], "true");
    set.until_pods("a successor", |pods| ids(pods) == [0, 1])
        .await;
    set.settled().await;
    assert_ne!(pvcs::list_of_instance(&scope, 1).await[0].name_any(), its);

    set.edit(json!({ "replicas": 3, "scaleStrategy": { "podToInclude": [name] } }))
        .await;
    scope.until_pod(&name, "to be in", is_owned).await;
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(ids(&pods), [0, 1, 2]);
    assert_eq!(pods[&2].name_any(), name);
    let pvc = pvcs::get(&scope, &its).await;
    let labels = pvc.metadata.labels.unwrap();
    assert_eq!(labels[keys::INSTANCE_ID], "2");
    assert_eq!(labels.get(keys::ORPHANED), None);
    assert_eq!(pvc.metadata.owner_references.unwrap().len(), 1);
}

#[tokio::test]
async fn replaced_pair_is_excluded_alive_once_new_pod_serves() {
    let scope = Bed::shared().await.scope("exclude-half").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let observer = Observer::start(&scope).await;
    set.hold().await;
    let origin = set.pod(0).await.name_any();
    scope
        .label(&origin, json!({ keys::TO_REPLACE: "1" }))
        .await
        .unwrap();
    // The origin gets the label `to-delete`, and a rule holds its deletion.
    scope
        .until_pod(&origin, "to be told", |p| {
            label(p, keys::TO_DELETE).is_some()
        })
        .await;
    let new = set.pod(1).await.name_any();
    for half in [&origin, &new] {
        scope
            .label(half, json!({ keys::TO_EXCLUDE: "1" }))
            .await
            .unwrap();
    }
    set.edit(json!({ "replicas": 2 })).await;
    for half in [&origin, &new] {
        let out = scope.until_pod(half, "to be out", |p| !is_owned(p)).await;
        assert!(!is_paired(&out));
    }
    set.release().await;
    // The status may have been written before the new Pod left.
    set.until_pods("others in their place", |pods| {
        let is_half = |pod: &Pod| [&origin, &new].contains(&&pod.name_any());
        pods.len() == 2 && !pods.values().any(is_half)
    })
    .await;
    set.settled().await;
    for half in [&origin, &new] {
        let lives = |p: &Pod| is_available(p) && label(p, keys::TO_DELETE).is_none();
        scope.until_pod(half, "to live on", lives).await;
    }
    let mut deletion_marks = BTreeSet::new();
    for pod in observer.versions().await {
        if pod.name_any() == origin {
            deletion_marks.extend(label(&pod, keys::TO_DELETE).map(str::to_owned));
        }
        assert!(is_owned(&pod) || !is_paired(&pod), "{}", pod.name_any());
        assert!(
            is_owned(&pod) || [&origin, &new].contains(&&pod.name_any()),
            "{}",
            pod.name_any()
        );
    }
    assert_eq!(
        deletion_marks.len(),
        1,
        "values of the label to-delete: {deletion_marks:?}"
    );
}

#[tokio::test]
async fn included_pod_without_revision_is_updated_with_the_others() {
    let scope = Bed::shared().await.scope("include").await;
    let partition =
        |n| json!({ "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": n } } } });
    let set = Set::new(&scope, "web", 1, partition(2)).await;
    let stranger = scope
        .pod(
            "stranger",
            json!({ "metadata": { "labels": { "app": "web" } } }),
        )
        .await;
    let other = scope.pod("other", json!({})).await;
    set.edit(json!({
        "replicas": 2, "scaleStrategy": { "podToInclude": ["stranger", "other"] },
    }))
    .await;
    scope.until_pod("stranger", "to be in", is_owned).await;
    let refused = |set: &CollaSet| {
        let ready = condition(set, "Ready").filter(|c| c.reason == "IncludeNotAllowed");
        ready.is_some_and(|c| c.status == "False" && c.message.contains("Pod other can't be"))
    };
    set.until("the other to be refused", refused).await;
    assert_eq!(set.pod(1).await.uid(), stranger.uid());
    until_event(&scope, "IncludeNotAllowed", "other").await;
    assert!(!is_owned(&scope.get(&other.name_any()).await));
    set.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger"] } }))
        .await;
    set.settled().await;
    let ids: Vec<i64> = set.pods().await.into_keys().collect();
    assert_eq!(ids, [0, 1]);

    set.edit(partition(0)).await;
    scope.until_gone(&stranger).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:1"; 2]);
}

/// The controller watches only managed Pods.
#[tokio::test]
async fn pod_is_included_once_it_has_the_control_label() {
    let scope = Bed::shared().await.scope("include-unlabelled").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let unlabelled = json!({ "metadata": { "labels": { "app": "web", keys::CONTROL: null } } });
    let stranger = scope.pod("stranger", unlabelled).await;
    set.edit(json!({ "scaleStrategy": { "podToInclude": ["stranger", "nobody"] } }))
        .await;
    let remedy = format!(
        "kubectl label pod stranger -n {} kusionstack.io/control=true",
        scope.namespace
    );
    let refused = |set: &CollaSet| {
        let ready = condition(set, "Ready").filter(|c| c.reason == "IncludeNotAllowed");
        ready.is_some_and(|c| c.status == "False" && c.message.contains(&remedy))
    };
    set.until("the stranger to be refused", refused).await;
    until_event(&scope, "IncludeNotAllowed", &remedy).await;
    until_event(
        &scope,
        "IncludeNotAllowed",
        "podToInclude: nobody: no such Pod",
    )
    .await;
    // Without the pause, the set might scale in one of the two Pods before the test sees it.
    set.edit(json!({ "replicas": 2, "paused": true })).await;
    scope
        .label("stranger", json!({ keys::CONTROL: keys::CONTROL_VALUE }))
        .await
        .unwrap();
    let inside = scope.until_pod("stranger", "to be in", is_owned).await;
    assert_eq!(inside.uid(), stranger.uid());
    set.edit(json!({ "paused": false })).await;
    set.settled().await;
    assert_eq!(set.pods().await.len(), 2);
}

/// Waits for an Event with this reason whose message contains `word`.
pub async fn until_event(scope: &testbed::Scope, reason: &str, word: &str) {
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until(&format!("an Event {reason} about {word}"), async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.items.iter().any(|e| {
            e.reason.as_deref() == Some(reason)
                && e.message.as_deref().unwrap_or_default().contains(word)
        })
    })
    .await;
}
