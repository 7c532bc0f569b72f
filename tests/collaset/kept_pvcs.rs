//! PVCs that a set keeps and never deletes: they came with their Pods, have no owner, and belong to another template.

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use operating::api::keys;
use serde_json::json;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Set, uids};
use crate::membership::until_event;
use crate::pvc_safety::delete;
use crate::pvcs::{self, mounted};

/// A set of two Pods, created again with a larger PVC template. The partition keeps its Pods, so they keep the PVCs of
/// the former set.
async fn on_kept_pvcs(scope: &Scope) -> Set<'_> {
    pvcs::volumes(scope, 8).await;
    let set = Set::new(scope, "web", 2, pvcs::template(scope, "1Gi")).await;
    delete(&set, PropagationPolicy::Orphan).await;
    let mut spec = pvcs::template(scope, "2Gi");
    spec["updateStrategy"] = json!({ "rollingUpdate": { "byPartition": { "partition": 2 } } });
    let set = Set::new(scope, "web", 2, spec).await;
    let uid = set.get().await.uid();
    let pvcs = pvcs::list_live(scope).await;
    let mark = |pvc: &k8s_openapi::api::core::v1::PersistentVolumeClaim| {
        pvc.labels().get(keys::KEPT_FOR).cloned()
    };
    assert!(pvcs.len() == 2 && pvcs.iter().all(|pvc| mark(pvc) == uid));
    until_event(
        scope,
        "IncludeTarget",
        "is kept: the CollaSet never deletes it",
    )
    .await;
    set
}

/// Asserts that a PVC exists, is not terminating, and that the set has released it permanently.
async fn assert_released(scope: &Scope, pvc: &str) {
    let pvc = pvcs::get(scope, pvc).await;
    assert_eq!(pvc.metadata.deletion_timestamp, None);
    assert!(pvc.owner_references().is_empty());
    let labels = pvc.labels();
    assert!(labels.contains_key(keys::ORPHANED) && !labels.contains_key(keys::KEPT_FOR));
}

#[tokio::test]
async fn kept_pvcs_serve_next_pods_and_are_released_with_them() {
    let scope = Bed::shared().await.scope("kept-pvcs").await;
    let set = on_kept_pvcs(&scope).await;
    let before = set.pods().await;
    let (first, second) = (mounted(&before[&0]), mounted(&before[&1]));
    scope
        .pods()
        .delete(&before[&0].name_any(), &DeleteParams::default())
        .await
        .unwrap();
    let after = set
        .until_pods("the Pod to be made again", |pods| {
            pods.len() == 2 && uids(pods)[&0] != uids(&before)[&0]
        })
        .await;
    assert_eq!(mounted(&after[&0]), first);

    let name = after[&1].name_any();
    set.edit(json!({ "scaleStrategy": { "podToExclude": [name] } }))
        .await;
    let after = set
        .until_pods("another to be made", |pods| {
            pods.len() == 2 && pods.values().all(|pod| pod.name_any() != name)
        })
        .await;
    assert!(after.values().all(|pod| mounted(pod) != second));
    assert_released(&scope, &second[0]).await;

    set.edit(json!({ "replicas": 0 })).await;
    set.settled().await;
    wait::until("the PVC to be released", async || {
        pvcs::get(&scope, &first[0])
            .await
            .labels()
            .contains_key(keys::ORPHANED)
    })
    .await;
    assert_released(&scope, &first[0]).await;
    set.edit(json!({ "replicas": 2 })).await;
    set.settled().await;
    let after = set.pods().await;
    assert!(
        after
            .values()
            .all(|pod| mounted(pod) != first && mounted(pod) != second)
    );
}

#[tokio::test]
async fn kept_pvcs_survive_their_set() {
    let scope = Bed::shared().await.scope("kept-pvcs-deleted").await;
    let set = on_kept_pvcs(&scope).await;
    let names = pvcs::names(&scope).await;
    delete(&set, PropagationPolicy::Foreground).await;
    assert_eq!(pvcs::names(&scope).await, names);
    for name in &names {
        assert_released(&scope, name).await;
    }
}

/// The garbage collector begins with the objects that the set owns, while a rule holds the Pods.
#[tokio::test]
async fn retained_and_kept_pvcs_survive_foreground_deletion() {
    let scope = Bed::shared().await.scope("kept-pvcs-foreground").await;
    pvcs::volumes(&scope, 6).await;
    let mut spec = pvcs::template(&scope, "1Gi");
    spec["scaleStrategy"] =
        json!({ "persistentVolumeClaimRetentionPolicy": { "whenDeleted": "Retain" } });
    let set = Set::new(&scope, "web", 3, spec).await;
    let all = pvcs::names(&scope).await;
    delete(&set, PropagationPolicy::Foreground).await;
    for name in &all {
        let pvc = pvcs::get(&scope, name).await.metadata;
        let state = (pvc.owner_references, pvc.deletion_timestamp);
        assert_eq!(state, (None, None), "{name}");
    }
    let set = Set::new(&scope, "web", 3, pvcs::template(&scope, "1Gi")).await;
    assert_eq!(pvcs::names(&scope).await, all, "taken up again");
    let uid = set.get().await.uid();
    let labels = json!({ keys::KEPT_FOR: uid });
    let keep = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    let kept_pvc = &all[0];
    let patched = pvcs::api(&scope)
        .patch(kept_pvc, &PatchParams::default(), &keep)
        .await;
    patched.unwrap();
    delete(&set, PropagationPolicy::Foreground).await;
    assert_released(&scope, kept_pvc).await;
    let others_gone = wait::until("the other PVCs to be deleted", async || {
        pvcs::names(&scope).await == [kept_pvc.as_str()]
    });
    others_gone.await;
}

/// Sets a label as `kubectl label pvc … --overwrite` does.
#[tokio::test]
async fn pvc_labelled_with_other_template_than_its_pods_is_kept() {
    let scope = Bed::shared().await.scope("kept-pvcs-contradicted").await;
    pvcs::volumes(&scope, 6).await;
    let set = Set::new(&scope, "web", 1, pvcs::template(&scope, "1Gi")).await;
    let former = pvcs::list_live(&scope).await[0].labels()[keys::PVC_TEMPLATE_HASH].clone();
    let grown = pvcs::template(&scope, "2Gi")["volumeClaimTemplates"].clone();
    set.edit(json!({ "volumeClaimTemplates": grown })).await;
    set.settled().await;
    let before = set.pods().await;
    let pvc = mounted(&before[&0])[0].clone();
    let labels = json!({ keys::PVC_TEMPLATE_HASH: former });
    let edit = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    let edited = pvcs::api(&scope)
        .patch(&pvc, &PatchParams::default(), &edit)
        .await;
    edited.unwrap();
    until_event(&scope, "ClaimKept", "one of their labels was edited").await;
    assert_eq!(uids(&set.pods().await), uids(&before), "it runs on");
    scope
        .pods()
        .delete(&before[&0].name_any(), &DeleteParams::default())
        .await
        .unwrap();
    set.until_pods("the Pod to be made again", |pods| {
        pods.len() == 1 && uids(pods) != uids(&before)
    })
    .await;
    set.settled().await;
    let pvc = pvcs::get(&scope, &pvc).await;
    assert!(pvc.owner_references().is_empty() && pvc.metadata.deletion_timestamp.is_none());
}

/// The same as after `kubectl label pvc … kusionstack.io/control-`: no cache shows such a PVC.
#[tokio::test]
async fn lost_control_label_of_kept_pvc_is_restored() {
    let scope = Bed::shared().await.scope("kept-pvcs-control").await;
    let set = on_kept_pvcs(&scope).await;
    pvcs::assert_control_label_comes_back(&scope, &set).await;
    assert_eq!(pvcs::names(&scope).await.len(), 2);
}

#[tokio::test]
async fn kept_pvc_is_not_given_to_another_set() {
    let scope = Bed::shared().await.scope("kept-pvcs-two-sets").await;
    pvcs::volumes(&scope, 8).await;
    let former = Set::new(&scope, "former", 1, pvcs::template(&scope, "1Gi")).await;
    let pod = former.pods().await[&0].clone();
    let (name, pvc) = (pod.name_any(), mounted(&pod).remove(0));
    former
        .edit(json!({ "replicas": 0, "scaleStrategy": { "podToExclude": [name] } }))
        .await;
    former.settled().await;
    let mut spec = pvcs::template(&scope, "2Gi");
    spec["scaleStrategy"] =
        json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": "Retain" } });
    let set = Set::new(&scope, "web", 0, spec).await;
    scope.label(&name, json!({ "app": "web" })).await.unwrap();
    set.edit(json!({ "replicas": 1, "scaleStrategy": { "podToInclude": [name] } }))
        .await;
    set.until_pods("the Pod to be in", |pods| pods.len() == 1)
        .await;
    set.edit(json!({ "replicas": 0, "scaleStrategy": { "podToInclude": null } }))
        .await;
    set.settled().await;
    let uid = set.get().await.uid();
    let is_kept = async || {
        let pvc = pvcs::get(&scope, &pvc).await;
        let mark = pvc.labels().get(keys::KEPT_FOR).cloned();
        mark == uid && pvc.metadata.deletion_timestamp.is_none()
    };
    assert!(is_kept().await);

    let part = json!({ "replicas": 2, "scaleStrategy": { "podToExclude": null } });
    former.edit(part).await;
    former.settled().await;
    let pods = former.pods().await;
    assert!(pods.values().all(|pod| mounted(pod) != [pvc.clone()]));
    former.edit(json!({ "replicas": 0 })).await;
    former.settled().await;
    assert!(is_kept().await);
    set.edit(json!({ "replicas": 1 })).await;
    set.settled().await;
    assert_eq!(mounted(&set.pods().await[&0]), [pvc]);
}
