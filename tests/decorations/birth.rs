//! Pods that are created with their decorations.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use serde_json::{Value, json};
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{
    Decoration, SIDE, begins, by_partition, containers, image_of, reference, revision, side_images,
};
use crate::sets::Set;

/// Fails unless a Pod carries all marks of a decoration.
fn assert_marked(pod: &Pod, decoration: &PodDecoration, wanted: &str) {
    let name = decoration.name_any();
    assert_eq!(revision(pod, &name), Some(wanted));
    let annotation: Value = serde_json::from_str(&pod.annotations()[keys::DECORATIONS]).unwrap();
    assert_eq!(annotation, json!([{ "name": name, "revision": wanted }]));
    let reference = json!(reference(pod, &name));
    let wanted = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
        "name": name, "uid": decoration.uid(),
    });
    assert_eq!(reference, wanted, "the reference is not a controller");
}

#[tokio::test]
async fn pods_are_born_decorated_without_lifecycle() {
    let scope = Bed::shared().await.scope("born").await;
    // No set exists, so the partition keeps nobody back.
    let part = json!({ "template": { "metadata": [
        { "patchPolicy": "Retain", "labels": { "team": "log" }, "annotations": { "note": "x" } },
    ] } });
    let log = Decoration::new(&scope, "log", part).await;
    log.partition(100).await;
    let stored = log.settled().await;
    let status = stored.status.as_ref().unwrap();
    assert_eq!(status.current_revision, status.updated_revision);

    let observer = Observer::start(&scope).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let pods = set.pods().await;
    assert_eq!(pods.len(), 3);
    for pod in pods.values() {
        assert_marked(pod, &stored, &status.updated_revision);
        assert_eq!(pod.labels()["team"], "log");
        assert_eq!(pod.annotations()["note"], "x");
        let names: Vec<_> = containers(pod).iter().map(|c| &*c.name).collect();
        assert_eq!(names, [SIDE, "app"]);
        let owner = pod.metadata.owner_references.as_ref().unwrap();
        let controllers: Vec<_> = owner
            .iter()
            .filter(|o| o.controller == Some(true))
            .collect();
        assert_eq!(controllers.len(), 1);
        assert_eq!(controllers[0].kind, "CollaSet");
    }
    for version in observer.versions().await {
        assert_eq!(image_of(&version, SIDE), Some("side:1"));
    }
    assert_eq!(begins(&observer).await.len(), 0);
    let figures = |object: &PodDecoration| {
        let s = object.status.as_ref().unwrap();
        let updated = [
            s.updated_pods,
            s.updated_ready_pods,
            s.updated_available_pods,
        ];
        [s.matched_pods, s.injected_pods] == [3; 2] && updated == [3; 3]
    };
    let stored = log.until("its figures", figures).await;
    let details = stored.status.unwrap().details;
    assert_eq!(
        (&*details[0].colla_set, details[0].affected_replicas),
        ("web", 3)
    );
    assert!(details[0].pods.iter().all(|pod| !pod.escaped));
}

#[tokio::test]
async fn scaled_out_pods_get_updated_revision_despite_partition() {
    let scope = Bed::shared().await.scope("born-later").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let log = Decoration::new(&scope, "log", by_partition(5)).await;
    log.settled().await;
    let before = set.pods().await;
    assert_eq!(side_images(&before), [None; 2]);
    let observer = Observer::start(&scope).await;
    set.edit(json!({ "replicas": 3 })).await;
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(side_images(&after), [None, None, Some("side:1")]);
    assert_eq!(
        begins(&observer).await.len(),
        0,
        "no running Pod is disturbed"
    );
}

#[tokio::test]
async fn pods_of_other_owners_are_not_decorated() {
    let scope = Bed::shared().await.scope("others").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    scope.deploy("web", 2, json!({})).await;
    let pods = scope.all_available("app=web", 2).await;
    log.settled().await;
    for pod in &pods {
        assert_eq!((revision(pod, "log"), image_of(pod, SIDE)), (None, None));
    }
    let status = log.status().await;
    assert_eq!((status.matched_pods, status.injected_pods), (0, 0));
}
