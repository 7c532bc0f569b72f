//! A leader never acts on stale knowledge: neither a new leader whose watches are dead, nor a stopped leader that
//! continues.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use operating::api::keys;
use rustix::process::Signal;
use serde_json::json;
use testbed::bed::STALLED;
use testbed::observer::Observer;
use testbed::proxy::{Asked, Effect, Fault};
use testbed::{Bed, wait};

use crate::fixtures::{Set, label};
use crate::pvcs::{self, mounted};

/// Number of Pods of the set that deletes all of its PVCs in one plan.
const MANY: usize = 120;

/// Restarts the leader once another replica leads.
async fn replace_leader(bed: &Bed, leader: usize) {
    bed.kill(leader).await;
    wait::until("another leader", async || bed.leader().await != leader).await;
    bed.restart(leader).await;
}

/// Makes the replica with the faults a follower.
async fn stalled_follows(bed: &Bed) {
    while bed.leader().await == STALLED {
        replace_leader(bed, STALLED).await;
    }
}

#[tokio::test]
async fn new_leader_with_frozen_pvc_watch_shares_no_pvc() {
    let bed = Bed::with_faults_on_one().await;
    let scope = bed.scope("pvcs").await;
    pvcs::volumes(&scope, 8).await;
    stalled_follows(&bed).await;
    let watch =
        |asked: &Asked| asked.watches() && asked.uri.path() == "/api/v1/persistentvolumeclaims";
    bed.faults().set(Fault::new(Effect::Freeze).on(watch));
    let set = Set::new(&scope, "web", 2, pvcs::template(&scope, "1Gi")).await;
    let pvcs_of = async || -> BTreeMap<i64, Vec<String>> {
        let pods = set.pods().await;
        pods.iter().map(|(id, pod)| (*id, mounted(pod))).collect()
    };
    let before = pvcs_of().await;
    bed.only_the_stalled_answers().await;
    wait::until("the stalled to lead", async || {
        bed.leader().await == STALLED
    })
    .await;
    let lost = set.pods().await[&0].name_any();
    scope.delete(&lost).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await; // this leader must not act while its watch is dead
    bed.faults().end_fault();
    set.until_pods("another Pod", |pods| {
        pods.len() == 2 && pods[&0].name_any() != lost
    })
    .await;
    assert_eq!(pvcs_of().await, before);
    assert_eq!(pvcs::names(&scope).await.len(), 2);
}

#[tokio::test]
async fn stalled_leader_deletes_no_pvcs_in_use_again() {
    let bed = Bed::own().await;
    let scope = bed.scope("frozen-pvcs").await;
    pvcs::volumes(&scope, MANY).await;
    let when =
        |scaled: &str| json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": scaled } });
    let mut part = pvcs::template(&scope, "1Gi");
    part["scaleStrategy"] = when("Retain");
    let set = Set::new(&scope, "web", i32::try_from(MANY).unwrap(), part).await;
    set.edit(json!({ "replicas": 0 })).await;
    set.settled().await;
    wait::until("no Pods", async || scope.list("app=web").await.is_empty()).await;
    let frozen = bed.leader().await;
    set.edit(json!({ "scaleStrategy": when("Delete") })).await;
    while pvcs::names(&scope).await.len() > MANY - 5 {}
    bed.signal(frozen, Signal::STOP).await;
    // The API server may send the review of this edit to the stopped process.
    wait::until("the edit", async || {
        let spec = json!({ "spec": { "replicas": MANY, "scaleStrategy": when("Retain") } });
        let params = PatchParams::default();
        let edit = set.api.patch("web", &params, &Patch::Merge(spec)).await;
        edit.is_ok()
    })
    .await;
    wait::until("another leader", async || bed.leader().await != frozen).await;
    wait::until("all Pods", async || {
        scope.list("app=web").await.len() == MANY
    })
    .await;
    bed.signal(frozen, Signal::CONT).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let existing: BTreeSet<String> = pvcs::names(&scope).await.into_iter().collect();
    let pods = scope.list("app=web").await;
    let mut lost: Vec<String> = pods.iter().flat_map(mounted).collect();
    lost.retain(|pvc| !existing.contains(pvc));
    assert_eq!(lost, Vec::<String>::new());
}

/// Makes the replica that the faults affect the leader.
async fn stalled_leads(bed: &Bed) {
    loop {
        let leader = bed.leader().await;
        if leader == STALLED {
            return;
        }
        replace_leader(bed, leader).await;
    }
}

#[tokio::test]
async fn late_pvc_deletion_spares_a_pvc_in_use_again() {
    let bed = Bed::with_faults_on_one().await;
    let scope = bed.scope("late-deletion").await;
    pvcs::volumes(&scope, 2).await;
    stalled_leads(&bed).await;
    let when =
        |scaled: &str| json!({ "persistentVolumeClaimRetentionPolicy": { "whenScaled": scaled } });
    let mut part = pvcs::template(&scope, "1Gi");
    part["scaleStrategy"] = when("Retain");
    let set = Set::new(&scope, "web", 2, part).await;
    set.edit(json!({ "replicas": 0 })).await;
    set.settled().await;
    wait::until("no Pods", async || scope.list("app=web").await.is_empty()).await;
    let deletes = |asked: &Asked| {
        asked.method == "DELETE" && asked.uri.path().contains("/persistentvolumeclaims/")
    };
    bed.faults().set(Fault::new(Effect::Freeze).on(deletes));
    set.edit(json!({ "scaleStrategy": when("Delete") })).await;
    wait::until("a deletion", async || bed.faults().affected_requests() > 0).await;
    bed.signal(STALLED, Signal::STOP).await;
    // The API server may send the review of this request to the stopped process.
    wait::until("the edit", async || {
        let spec = json!({ "spec": { "replicas": 2, "scaleStrategy": when("Retain") } });
        let params = PatchParams::default();
        let edit = set.api.patch("web", &params, &Patch::Merge(spec)).await;
        edit.is_ok()
    })
    .await;
    wait::until("another leader", async || bed.leader().await != STALLED).await;
    wait::until("all Pods", async || scope.list("app=web").await.len() == 2).await;
    bed.faults().end_fault();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let existing: BTreeSet<String> = pvcs::names(&scope).await.into_iter().collect();
    let pods = scope.list("app=web").await;
    let mounts: BTreeSet<String> = pods.iter().flat_map(mounted).collect();
    assert_eq!(mounts, existing);
    bed.signal(STALLED, Signal::CONT).await;
}

/// The garbage collector acts by its watches. It does not revert an adoption that happened just before its decision.
#[tokio::test]
async fn orphaning_deletion_keeps_pods_that_garbage_collector_overlooked() {
    let bed = Bed::with_faults_on_one().await;
    let mut failures = 0;
    for _ in 0..5 {
        match goes_with_a_set_that_is_deleted_alone(&bed).await {
            Some(pods) if pods.is_empty() => return,
            Some(pods) => {
                // The removal of the finalizer may have been in flight before the adoption, because its review took
                // long.
                failures += 1;
                assert!(failures < 2, "gone with the set: {pods:?}");
            }
            None => {}
        }
    }
    panic!("each time the set had gone before anything was overlooked");
}

/// The Pods that were deleted; `None` if the next leader ended the set before the garbage collector overlooked a Pod.
async fn goes_with_a_set_that_is_deleted_alone(bed: &Bed) -> Option<Vec<String>> {
    let scope = bed.scope("overlooked").await;
    pvcs::volumes(&scope, 2).await;
    stalled_leads(bed).await;
    let set = Set::new(&scope, "web", 2, pvcs::template(&scope, "1Gi")).await;
    let before = scope.list("app=web").await;
    let owners = json!({ "metadata": { "ownerReferences": before[0].metadata.owner_references } });
    let mut unmanaged = owners.clone();
    unmanaged["metadata"]["labels"] = json!({ keys::CONTROL: null });
    bed.signal(STALLED, Signal::STOP).await;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    // The API server may send the review of the collector's writes to the stopped process.
    set.api.delete("web", &orphan).await.unwrap();
    let metadata = async || set.api.get_metadata("web").await.map(|set| set.metadata);
    wait::until("the finalizer to be removed", async || {
        let finalizers = metadata().await.map(|set| set.finalizers);
        finalizers.is_ok_and(|all| all.unwrap_or_default() == [keys::PRE_RECLAIM_FINALIZER])
            || metadata().await.is_err()
    })
    .await;
    let api = pvcs::api(&scope);
    let all: Vec<_> = before.iter().flat_map(mounted).collect();
    let params = PatchParams::default();
    // No cache shows the second Pod and its PVC.
    let changes = [owners, unmanaged];
    for ((pod, pvc), change) in before.iter().zip(&all).zip(changes) {
        let adoption = Patch::Merge(change.clone());
        // The test sends these requests one after the other, because a second connection might reach the stopped
        // process.
        scope.patch(&pod.name_any(), change).await.unwrap();
        api.patch(pvc, &params, &adoption).await.unwrap();
    }
    let is_there = metadata().await.is_ok();
    bed.signal(STALLED, Signal::CONT).await;
    if !is_there {
        return None;
    }
    wait::until("the set to be deleted", async || metadata().await.is_err()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let uids = |pods: &[Pod]| -> BTreeSet<String> { pods.iter().filter_map(Pod::uid).collect() };
    let after = scope.list("app=web").await;
    let deleted: Vec<String> = uids(&before).difference(&uids(&after)).cloned().collect();
    if !deleted.is_empty() {
        return Some(deleted);
    }
    for pod in &after {
        assert_eq!(
            (label(pod, keys::TO_DELETE), &pod.metadata.owner_references),
            (None, &None)
        );
    }
    for pvc in all {
        let metadata = api.get(&pvc).await.unwrap().metadata;
        let state = (metadata.owner_references, metadata.deletion_timestamp);
        assert_eq!(state, (None, None), "{pvc}");
    }
    Some(deleted)
}

#[tokio::test]
async fn pod_lost_during_dry_run_counts_against_max_unavailable() {
    let bed = Bed::with_faults(Duration::from_secs(60)).await;
    let scope = bed.scope("trial").await;
    let bound = json!({ "updateStrategy": { "maxUnavailable": 1 } });
    let set = Set::new(&scope, "web", 4, bound).await;
    let observer = Observer::start(&scope).await;
    let trial = |asked: &Asked| {
        asked
            .uri
            .query()
            .is_some_and(|query| query.contains("dryRun"))
    };
    bed.faults().set(Fault::new(Effect::Freeze).on(trial));
    set.image("app:2").await;
    wait::until("the dry run", async || bed.faults().affected_requests() > 0).await;
    let down = set.pods().await[&3].name_any();
    scope.lose_readiness(&down).await;
    tokio::time::sleep(Duration::from_secs(6)).await;
    bed.faults().end_fault();
    tokio::time::sleep(Duration::from_secs(3)).await;
    observer.fewest_available(|_| true, 4).await.at_least(3);
}
