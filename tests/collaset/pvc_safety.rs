//! No two Pods mount the same PVC, and no PVC is deleted while a Pod mounts it.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use operating::api::collaset::CollaSet;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::pods::may_operate;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Pods, Set, condition, ids, label, uids};
use crate::membership::until_event;
use crate::pvcs::{self, mounted};

/// Spec with a PVC template and one retention policy for both cases.
fn template(scope: &Scope, retention: &str) -> Value {
    let mut spec = pvcs::template(scope, "1Gi");
    spec["scaleStrategy"] = json!({ "persistentVolumeClaimRetentionPolicy": {
        "whenScaled": retention, "whenDeleted": retention,
    } });
    spec
}

pub async fn delete(set: &Set<'_>, propagation: PropagationPolicy) {
    let params = DeleteParams {
        propagation_policy: Some(propagation),
        ..DeleteParams::default()
    };
    set.api.delete(set.name, &params).await.unwrap();
    wait::until("the set to be deleted", async || {
        set.api.get_opt(set.name).await.unwrap().is_none()
    })
    .await;
}

/// Names of the mounted PVCs, by instance ID.
fn volumes(pods: &Pods) -> BTreeMap<i64, Vec<String>> {
    pods.iter().map(|(id, pod)| (*id, mounted(pod))).collect()
}

/// Waits until the condition Ready is False with a message that contains `text`.
async fn until_waiting(set: &Set<'_>, text: &str) {
    let matches = |set: &CollaSet| {
        condition(set, "Ready").is_some_and(|c| c.status == "False" && c.message.contains(text))
    };
    set.until(text, matches).await;
}

#[tokio::test]
async fn orphaned_pods_are_adopted_with_their_ids_and_pvcs() {
    let scope = Bed::shared().await.scope("data-orphans").await;
    pvcs::volumes(&scope, 6).await;
    let spec = template(&scope, "Delete");
    let set = Set::new(&scope, "web", 3, spec.clone()).await;
    let (before, names) = (set.pods().await, pvcs::names(&scope).await);
    delete(&set, PropagationPolicy::Orphan).await;
    scope.all_available("app=web", 3).await;

    let set = Set::new(&scope, "web", 3, spec).await;
    let after = set.pods().await;
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(scope.list("app=web").await.len(), 3);
    assert_eq!(pvcs::names(&scope).await, names);
    for (id, pod) in &after {
        assert_eq!(
            mounted(pod),
            [pvcs::list_of_instance(&scope, *id).await[0].name_any()]
        );
    }
}

#[tokio::test]
async fn orphans_keep_pvcs_when_set_returns_with_new_template() {
    let scope = Bed::shared().await.scope("data-orphans-grown").await;
    pvcs::volumes(&scope, 6).await;
    let set = Set::new(&scope, "web", 2, pvcs::template(&scope, "1Gi")).await;
    let mut before: BTreeSet<_> = pvcs::names(&scope).await.into_iter().collect();
    delete(&set, PropagationPolicy::Orphan).await;

    // The second round returns to the first template, whose revision already exists.
    for size in ["2Gi", "1Gi"] {
        let set = Set::new(&scope, "web", 2, pvcs::template(&scope, size)).await;
        until_event(
            &scope,
            "IncludeTarget",
            "is kept: the CollaSet never deletes it",
        )
        .await;
        // The set deletes PVCs that no Pod mounts any more.
        set.image("app:2").await;
        set.settled().await;
        for name in &before {
            let pvc = pvcs::get(&scope, name).await;
            assert_eq!(pvc.metadata.deletion_timestamp, None, "{name}");
        }
        before.extend(pvcs::names(&scope).await);
        delete(&set, PropagationPolicy::Orphan).await;
    }
    assert_eq!(before.len(), 4);
}

#[tokio::test]
async fn orphans_keep_pvcs_when_their_pool_ids_are_taken() {
    let scope = Bed::shared().await.scope("data-orphans-pool").await;
    pvcs::volumes(&scope, 4).await;
    let mut spec = pvcs::template(&scope, "1Gi");
    spec["scaleStrategy"] = json!({ "context": "shared" });
    let set = Set::new(&scope, "web", 2, spec.clone()).await;
    let (before, names) = (set.pods().await, pvcs::names(&scope).await);
    delete(&set, PropagationPolicy::Orphan).await;
    let context = json!({ "scaleStrategy": { "context": "shared" } });
    let other = Set::new(&scope, "api", 3, context).await;
    assert_eq!(ids(&other.pods().await), [0, 1, 2]);

    let set = Set::new(&scope, "web", 2, spec).await;
    let after = set.pods().await;
    assert!(after.keys().all(|id| *id > 2), "{:?}", ids(&after));
    let uids =
        |pods: &Pods| -> BTreeSet<_> { pods.values().filter_map(ResourceExt::uid).collect() };
    assert_eq!(uids(&after), uids(&before));
    assert_eq!(pvcs::names(&scope).await, names);
}

/// The same as `kubectl label pvc … --overwrite`.
#[tokio::test]
async fn pvcs_with_edited_labels_stay_with_their_pods() {
    let scope = Bed::shared().await.scope("data-relabelled").await;
    pvcs::volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, pvcs::template(&scope, "1Gi")).await;
    let before = set.pods().await;
    let api = pvcs::api(&scope);
    for (id, key, value) in [
        (0, keys::INSTANCE_ID, "1"),
        (1, keys::PVC_TEMPLATE_NAME, "logs"),
    ] {
        let pvc = &mounted(&before[&id])[0];
        let was = pvcs::get(&scope, pvc).await.labels()[key].clone();
        let edit = Patch::Merge(json!({ "metadata": { "labels": { key: value } } }));
        let edited = api.patch(pvc, &PatchParams::default(), &edit).await;
        edited.unwrap();
        wait::until("the label to be as it was", async || {
            pvcs::get(&scope, pvc).await.labels()[key] == was
        })
        .await;
    }
    assert_eq!(uids(&set.pods().await), uids(&before));
    set.edit(json!({ "template": { "spec": { "hostNetwork": true } } }))
        .await;
    set.settled().await;
    let after = set.pods().await;
    assert_ne!(uids(&after), uids(&before));
    assert_eq!(volumes(&after), volumes(&before));
    assert_eq!(pvcs::names(&scope).await.len(), 2);
}

#[tokio::test]
async fn mismatched_selector_in_excluded_namespace_creates_no_pod() {
    let scope = Bed::shared().await.scope("data-excluded").await;
    let namespaces: Api<Namespace> = Api::all(scope.client.clone());
    let exclude =
        Patch::Merge(json!({ "metadata": { "labels": { keys::NAMESPACE_EXCLUDED: "" } } }));
    let params = PatchParams::default();
    let excluded = namespaces.patch(&scope.namespace, &params, &exclude).await;
    excluded.unwrap();
    let set = Set::named(&scope, "web");
    // The API server learns of the label a moment later.
    wait::until("nobody to look", async || {
        let spec = json!({
            "replicas": 2, "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "other" } },
                "spec": { "containers": [{ "name": "app", "image": "app:1" }] },
            },
        });
        let object = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
            "metadata": { "name": "web" }, "spec": spec,
        }));
        set.api
            .create(&PostParams::default(), &object.unwrap())
            .await
            .is_ok()
    })
    .await;
    until_waiting(
        &set,
        "spec.template.metadata.labels: must match spec.selector",
    )
    .await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(scope.list("app=other").await.len(), 0);
}

#[tokio::test]
async fn included_pod_keeps_its_id_and_pvc() {
    let scope = Bed::shared().await.scope("data-include").await;
    pvcs::volumes(&scope, 6).await;
    let set = Set::new(&scope, "web", 3, template(&scope, "Retain")).await;
    let pods = set.pods().await;
    let leavers = [1, 2].map(|id| pods[&id].name_any());
    set.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": leavers } }))
        .await;
    set.settled().await;
    set.edit(json!({
        "replicas": 2,
        "scaleStrategy": { "podToExclude": null, "podToInclude": [leavers[1]] },
    }))
    .await;
    let after = set.until_pods("two", |pods| pods.len() == 2).await;
    assert_eq!(ids(&after), [0, 2]);
    assert_eq!(after[&2].uid(), pods[&2].uid());
    let its = pvcs::get(&scope, &mounted(&after[&2])[0]).await;
    assert_eq!(its.labels()[keys::INSTANCE_ID], "2");
    assert_eq!(its.owner_references().len(), 1);
}

#[tokio::test]
async fn orphans_keep_their_revision_beside_a_set_that_overlaps() {
    let scope = Bed::shared().await.scope("revision-overlap").await;
    let spec = json!({
        "historyLimit": 0,
        "selector": { "matchLabels": { "app": null, "team": "x" } },
        "template": { "metadata": { "labels": { "team": "x" } } },
    });
    let first = Set::new(&scope, "one", 2, spec.clone()).await;
    let second = Set::new(&scope, "two", 1, spec.clone()).await;
    let before = first.pods().await;
    delete(&first, PropagationPolicy::Orphan).await;
    second.edit(json!({ "replicas": 2 })).await; // the second set now looks at uncontrolled Pods
    second.settled().await;

    let first = Set::new(&scope, "one", 2, spec).await;
    let after = first.pods().await;
    assert_eq!(uids(&after), uids(&before));
    for (id, pod) in &after {
        let revision = label(pod, keys::REVISION);
        assert_eq!(revision, label(&before[id], keys::REVISION));
    }
}

/// The API server refuses every patch of a ControllerRevision if it encodes the data in other bytes than it received,
/// such as `&&` as `\u0026\u0026`.
#[tokio::test]
async fn revisions_with_go_escaped_characters_are_recorded_released_and_adopted() {
    let scope = Bed::shared().await.scope("revision-signs").await;
    let spec = |image: &str| {
        let args = ["a && b < c > d \u{2028}"];
        let containers = json!([{ "name": "app", "image": image, "args": args }]);
        json!({ "template": { "spec": { "containers": containers } } })
    };
    let set = Set::new(&scope, "web", 2, spec("app:1")).await;
    set.edit(spec("app:2")).await;
    let status = set.settled().await.status.unwrap();
    let revisions: Api<ControllerRevision> =
        Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until("the note of the stable revision", async || {
        let latest = revisions.get(&status.updated_revision).await.unwrap();
        latest.annotations().get(keys::STABLE_REVISION) == Some(&status.updated_revision)
    })
    .await;
    let before = set.pods().await;
    delete(&set, PropagationPolicy::Orphan).await;

    let set = Set::new(&scope, "web", 2, spec("app:2")).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    for revision in revisions.list(&ListParams::default()).await.unwrap() {
        assert_eq!(revision.owner_references().len(), 1);
    }
    set.edit(spec("app:1")).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:1"; 2]);
}

#[tokio::test]
async fn pvcs_of_another_set_stay_unchanged() {
    let scope = Bed::shared().await.scope("data-overlap").await;
    pvcs::volumes(&scope, 4).await;
    let mut spec = template(&scope, "Retain");
    spec["selector"] = json!({ "matchLabels": { "app": null, "team": "x" } });
    spec["template"]["metadata"] = json!({ "labels": { "team": "x" } });
    let first = Set::new(&scope, "first", 1, spec.clone()).await;
    delete(&first, PropagationPolicy::Background).await;
    let retained = pvcs::names(&scope).await;
    assert_eq!(retained.len(), 1);
    let second = Set::new(&scope, "second", 1, spec).await;
    assert_ne!(mounted(&second.pod(0).await), retained);
    let pvc = pvcs::get(&scope, &retained[0]).await;
    assert!(pvc.owner_references().is_empty());
}

#[tokio::test]
async fn pod_keeps_its_pvc_when_its_id_is_removed() {
    let scope = Bed::shared().await.scope("data-label").await;
    pvcs::volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "Delete")).await;
    let (before, names) = (set.pods().await, pvcs::names(&scope).await);
    for value in [Value::Null, json!("7")] {
        let pod = before[&1].name_any();
        scope
            .label(&pod, json!({ keys::INSTANCE_ID: value }))
            .await
            .unwrap();
        scope
            .until_pod(&pod, "to have its ID", |p| {
                label(p, keys::INSTANCE_ID) == Some("1")
            })
            .await;
        set.settled().await;
        assert_eq!(uids(&set.pods().await), uids(&before));
        assert_eq!(pvcs::names(&scope).await, names);
    }
}

#[tokio::test]
async fn recreated_pod_waits_for_the_end_of_the_old_one() {
    let scope = Bed::shared().await.scope("data-recreate").await;
    pvcs::volumes(&scope, 2).await;
    let mut spec = template(&scope, "Delete");
    spec["updateStrategy"] = json!({
        "podUpgradePolicy": "Recreate", "operationDelaySeconds": 3600,
    });
    let set = Set::new(&scope, "web", 1, spec).await;
    let before = set.pods().await;
    let name = before[&0].name_any();
    set.edit(json!({ "template": { "metadata": { "labels": { "app": "web", "new": "1" } } } }))
        .await;
    scope
        .until_pod(&name, "to be off traffic", |p| may_operate(p, "collaset"))
        .await;
    scope.pause_kubelet(&name).await; // so the Pod does not end
    set.edit(json!({ "updateStrategy": { "operationDelaySeconds": null } }))
        .await;
    let pvc = mounted(&before[&0]).remove(0);
    until_waiting(
        &set,
        &format!("waiting for Pod {name}, which still mounts PVC {pvc}, to end"),
    )
    .await;
    assert_eq!(scope.list("app=web").await.len(), 1);
    scope.resume_kubelet(&name).await;
    scope.until_gone(&before[&0]).await;
    set.settled().await;
    assert_eq!(volumes(&set.pods().await), volumes(&before));
}

#[tokio::test]
async fn pvc_mounted_by_unmanaged_pod_is_not_reused() {
    let scope = Bed::shared().await.scope("data-foreign").await;
    pvcs::volumes(&scope, 2).await;
    let set = Set::new(&scope, "web", 1, template(&scope, "Retain")).await;
    let names = pvcs::names(&scope).await;
    set.edit(json!({ "replicas": 0 })).await;
    set.settled().await;
    wait::until("no Pod", async || scope.list("app=web").await.is_empty()).await;
    let debug = json!({
        "metadata": { "name": "debug" },
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "a", "image": "a:1" }],
            "volumes": [{ "name": "d", "persistentVolumeClaim": { "claimName": names[0] } }],
        },
    });
    let debug = serde_json::from_value(debug).unwrap();
    let debug = scope.pods().create(&PostParams::default(), &debug).await;
    set.edit(json!({ "replicas": 1 })).await;
    until_waiting(&set, "Pod debug").await;
    assert_eq!(set.pods().await.len(), 0);
    scope.delete("debug").await.unwrap();
    scope.until_gone(&debug.unwrap()).await;
    set.settled().await;
    assert_eq!(mounted(&set.pod(0).await), names);
}

#[tokio::test]
async fn lost_control_label_of_pod_is_restored() {
    let scope = Bed::shared().await.scope("data-control").await;
    pvcs::volumes(&scope, 4).await;
    for (name, spec) in [("plain", json!({})), ("data", template(&scope, "Delete"))] {
        let set = Set::new(&scope, name, 2, spec).await;
        let before = set.pods().await;
        let lost = before[&1].name_any();
        // The PVCs of a Pod show its ID.
        let edit = match name {
            "plain" => json!({ keys::CONTROL: null }),
            _ => json!({ keys::CONTROL: null, keys::INSTANCE_ID: "7" }),
        };
        scope.label(&lost, edit).await.unwrap();
        scope
            .until_pod(&lost, "to be managed", |p| {
                label(p, keys::CONTROL) == Some(keys::CONTROL_VALUE)
            })
            .await;
        let same = |pods: &Pods| uids(pods) == uids(&before);
        set.until_pods("the same under their IDs", same).await;
        set.settled().await;
    }
}

#[tokio::test]
async fn lost_control_label_of_pvc_is_restored() {
    let scope = Bed::shared().await.scope("data-pvc-control").await;
    pvcs::volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "Delete")).await;
    pvcs::assert_control_label_comes_back(&scope, &set).await;
    set.settled().await;
    assert_eq!(pvcs::names(&scope).await.len(), 2);
}

#[tokio::test]
async fn retained_pvc_unseen_by_caches_survives_its_set() {
    let scope = Bed::shared().await.scope("data-unseen").await;
    pvcs::volumes(&scope, 4).await;
    for propagation in [PropagationPolicy::Background, PropagationPolicy::Foreground] {
        let mut part = template(&scope, "Delete");
        part["scaleStrategy"] =
            json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain" } });
        let set = Set::new(&scope, "web", 2, part).await;
        let all: Vec<String> = set.pods().await.values().flat_map(mounted).collect();
        let uid = set.get().await.metadata.uid.unwrap();
        let reference = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": uid, "controller": false,
        });
        let edits = [
            json!({ "labels": { keys::CONTROL: null } }),
            json!({ "labels": { keys::CONTROL: null }, "ownerReferences": [reference] }),
        ];
        for (pvc, edit) in all.iter().zip(edits) {
            hand(&scope, pvc, edit).await;
        }
        delete(&set, propagation).await;
        assert_outlast(&scope, &all).await;
        for pvc in all {
            hand(&scope, &pvc, json!({ "labels": { keys::CONTROL: "true" } })).await;
        }
    }
}

/// The set has no retention policy, so only the label keeps the PVC.
#[tokio::test]
async fn kept_pvc_unseen_by_caches_survives_foreground_deletion() {
    let scope = Bed::shared().await.scope("data-unseen-kept").await;
    pvcs::volumes(&scope, 2).await;
    let set = Set::new(&scope, "web", 1, template(&scope, "Delete")).await;
    let all: Vec<String> = set.pods().await.values().flat_map(mounted).collect();
    let uid = set.get().await.metadata.uid.unwrap();
    let labels = json!({ keys::CONTROL: null, keys::KEPT_FOR: uid });
    hand(&scope, &all[0], json!({ "labels": labels })).await;
    delete(&set, PropagationPolicy::Foreground).await;
    assert_outlast(&scope, &all).await;
}

/// Edits the metadata of a PVC as a user does.
async fn hand(scope: &Scope, pvc: &str, metadata: serde_json::Value) {
    let edit = Patch::Merge(json!({ "metadata": metadata }));
    let api = pvcs::api(scope);
    let edited = api.patch(pvc, &PatchParams::default(), &edit).await;
    edited.unwrap();
}

/// Asserts that the PVCs outlive their set and have no owner.
async fn assert_outlast(scope: &Scope, all: &[String]) {
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    for pvc in all {
        let metadata = pvcs::api(scope).get(pvc).await.unwrap().metadata;
        let state = (metadata.owner_references, metadata.deletion_timestamp);
        assert_eq!(state, (None, None), "{pvc}");
    }
}

#[tokio::test]
async fn pvcs_of_replaced_pod_are_deleted_despite_retention() {
    let scope = Bed::shared().await.scope("data-pair").await;
    pvcs::volumes(&scope, 4).await;
    let set = Set::new(&scope, "web", 2, template(&scope, "Retain")).await;
    let before = set.pods().await;
    scope
        .label(&before[&0].name_any(), json!({ keys::TO_REPLACE: "1" }))
        .await
        .unwrap();
    let after = set
        .until_pods("the new half alone", |pods| ids(pods) == [1, 2])
        .await;
    let mounted_pvcs: BTreeSet<String> = after.values().flat_map(mounted).collect();
    wait::until("the PVC of the origin to be deleted", async || {
        let names: BTreeSet<String> = pvcs::names(&scope).await.into_iter().collect();
        names == mounted_pvcs
    })
    .await;
    set.settled().await;
}

#[tokio::test]
async fn other_template_pvc_survives_inclusion_and_update_of_its_pod() {
    let scope = Bed::shared().await.scope("data-other-template").await;
    pvcs::volumes(&scope, 6).await;
    let mut spec = template(&scope, "Delete");
    spec["updateStrategy"] = json!({ "rollingUpdate": { "byLabel": {} } });
    let set = Set::new(&scope, "web", 2, spec).await;
    let pod = set.pods().await[&1].clone();
    let (name, pvc) = (pod.name_any(), mounted(&pod)[0].clone());
    set.edit(json!({ "replicas": 1, "scaleStrategy": { "podToExclude": [name] } }))
        .await;
    set.settled().await;
    // The update does not reach any Pod yet.
    let grown = pvcs::template(&scope, "2Gi")["volumeClaimTemplates"].clone();
    set.edit(json!({
        "replicas": 2, "volumeClaimTemplates": grown,
        "scaleStrategy": { "podToExclude": null, "podToInclude": [name] },
    }))
    .await;
    set.until_pods("the Pod to be in", |pods| pods.len() == 2)
        .await;
    let is_kept = async || {
        let pvc = pvcs::get(&scope, &pvc).await;
        pvc.owner_references().is_empty() && pvc.metadata.deletion_timestamp.is_none()
    };
    assert!(is_kept().await);
    set.edit(json!({ "scaleStrategy": { "podToInclude": null }, "updateStrategy": { "rollingUpdate": null } }))
        .await;
    set.settled().await;
    assert!(!set.names().await.contains(&name));
    assert!(is_kept().await);
}
