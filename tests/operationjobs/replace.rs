//! Replacement of Pods by jobs: success, partition, shared pairs, cancellation, deadline and TTL.

use kube::ResourceExt;
use kube::api::DeleteParams;
use operating::api::keys;
use operating::api::operationjob::Progress;
use serde_json::json;
use testbed::{Bed, wait};

use crate::fixtures::{Job, has_finalizer, info, reason};
use crate::sets::{Set, label, uids};

const NEW_POD: &str = "NewPod";

#[tokio::test]
async fn pods_are_replaced_and_old_names_are_gone() {
    let scope = Bed::shared().await.scope("job-replace").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    let names: Vec<String> = before.values().map(|pod| pod.name_any()).collect();
    let job = Job::replace(&scope, "swap", &[&names[0], &names[2]]).await;
    let status = job.succeeded().await;
    assert_eq!((status.total_pod_count, status.succeeded_pod_count), (2, 2));
    set.settled().await;
    let after = set.pods().await;
    assert_eq!(after.len(), 3);
    let kept: Vec<_> = after
        .values()
        .filter(|pod| before.values().any(|b| b.uid() == pod.uid()))
        .collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].name_any(), names[1]);
    for detail in &status.target_details {
        let new = info(detail, NEW_POD).unwrap();
        assert!(after.values().any(|pod| pod.name_any() == new), "{new}");
        assert!(detail.start_time.is_some() && detail.end_time.is_some());
        assert_eq!(info(detail, "Waiting"), None);
    }
    assert!(!has_finalizer(&job.get().await));
    for pod in after.values() {
        assert!(pod.finalizers().iter().all(|f| !f.contains("operationjob")));
    }
}

#[tokio::test]
async fn partition_selects_targets_in_order() {
    let scope = Bed::shared().await.scope("job-partition").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let before = set.pods().await;
    let names: Vec<String> = before.values().map(|pod| pod.name_any()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let part = json!({ "spec": { "partition": 0 } });
    let job = Job::new(&scope, "swap", "Replace", &names, part).await;
    job.until("Pending", |s| s.progress == Some(Progress::Pending))
        .await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert!(!has_finalizer(&job.get().await), "nothing was touched");
    job.edit(json!({ "spec": { "partition": 1 } })).await;
    let status = job
        .until("one success", |s| s.succeeded_pod_count == 1)
        .await;
    assert_eq!(status.target_details[0].progress, Some(Progress::Succeeded));
    assert_eq!(status.progress, Some(Progress::Processing));
    let rest = set.pods().await;
    assert_eq!(
        rest.values()
            .filter(|pod| names.contains(&&*pod.name_any()))
            .count(),
        2
    );
    job.edit(json!({ "spec": { "partition": 3 } })).await;
    job.succeeded().await;
    set.settled().await;
    let after = set.pods().await;
    assert!(after.values().all(|pod| !names.contains(&&*pod.name_any())));
}

#[tokio::test]
async fn unknown_unmanaged_and_foreign_pods_fail_at_once() {
    let scope = Bed::shared().await.scope("job-unknown").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let own = set.pod(0).await.name_any();
    let unmanaged = json!({ "metadata": { "labels": { (keys::CONTROL): null } } });
    scope.pod("plain", unmanaged).await;
    scope.pod("alone", json!({})).await;
    let job = Job::replace(&scope, "swap", &["nobody", "plain", "alone", &own]).await;
    let status = job.failed().await;
    let reasons: Vec<&str> = status.target_details.iter().map(reason).collect();
    assert_eq!(reasons, ["PodNotFound", "NotManaged", "NotReplaceable", ""]);
    assert_eq!(
        (status.failed_pod_count, status.succeeded_pod_count),
        (3, 1)
    );
    for name in ["plain", "alone"] {
        let pod = scope.get(name).await;
        assert_eq!(label(&pod, keys::TO_REPLACE), None);
        assert!(pod.metadata.deletion_timestamp.is_none());
    }
}

/// While a rule holds the old Pod, the pair stays open.
#[tokio::test]
async fn two_jobs_share_a_pair_and_neither_cancels_the_other() {
    let scope = Bed::shared().await.scope("job-shared").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    set.hold().await;
    let pod = set.pod(0).await.name_any();
    let first = Job::replace(&scope, "first", &[&pod]).await;
    let second = Job::replace(&scope, "second", &[&pod]).await;
    let third = Job::replace(&scope, "third", &[&pod]).await;
    let mut new_pods = Vec::new();
    for job in [&first, &second, &third] {
        let detail = job
            .until_target(&pod, "its new Pod", |d| info(d, NEW_POD).is_some())
            .await;
        new_pods.push(info(&detail, NEW_POD).unwrap().to_owned());
    }
    assert_eq!(new_pods[0], new_pods[1]);
    third.delete().await;
    third.gone().await;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    assert_eq!(
        label(&scope.get(&pod).await, keys::TO_REPLACE),
        Some("operationjob")
    );
    set.release().await;
    for job in [&first, &second] {
        let status = job.succeeded().await;
        let detail = &status.target_details[0];
        assert_eq!(info(detail, NEW_POD), Some(&*new_pods[0]));
    }
    set.settled().await;
    assert_eq!(set.pods().await.len(), 2);
}

#[tokio::test]
async fn request_of_user_survives_deletion_of_job() {
    let scope = Bed::shared().await.scope("job-user").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    set.hold().await;
    let pod = set.pod(0).await.name_any();
    let request = json!({ (keys::TO_REPLACE): "true" });
    scope.label(&pod, request).await.unwrap();
    let job = Job::replace(&scope, "swap", &[&pod]).await;
    job.until_target(&pod, "its new Pod", |d| info(d, NEW_POD).is_some())
        .await;
    job.delete().await;
    job.gone().await;
    assert_eq!(
        label(&scope.get(&pod).await, keys::TO_REPLACE),
        Some("true")
    );
    set.release().await;
    wait::until("the old Pod to go", async || {
        scope
            .pods()
            .get_opt(&pod)
            .await
            .is_ok_and(|pod| pod.is_none())
    })
    .await;
}

#[tokio::test]
async fn deletion_of_job_cancels_replacement() {
    let scope = Bed::shared().await.scope("job-cancel").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    set.hold().await;
    let before = set.pod(0).await;
    let job = Job::replace(&scope, "swap", &[&before.name_any()]).await;
    job.until_target(&before.name_any(), "its new Pod", |d| {
        info(d, NEW_POD).is_some()
    })
    .await;
    job.delete().await;
    job.gone().await;
    set.release().await;
    set.settled().await;
    let after = set
        .until_pods("the old one alone", |pods| pods.len() == 1)
        .await;
    assert_eq!(after[&0].uid(), before.uid());
    assert_eq!(label(&after[&0], keys::TO_REPLACE), None);
}

#[tokio::test]
async fn missed_deadline_fails_target_and_releases_pod() {
    let scope = Bed::shared().await.scope("job-deadline").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    set.hold().await;
    let before = set.pod(0).await;
    let part = json!({ "spec": { "activeDeadlineSeconds": 4, "TTLSecondsAfterFinished": 3 } });
    let job = Job::new(&scope, "swap", "Replace", &[&before.name_any()], part).await;
    let status = job.ended(Progress::Failed).await;
    assert_eq!(reason(&status.target_details[0]), "DeadlineExceeded");
    job.gone().await; // by its TTL
    wait::until("the label to be removed", async || {
        label(&scope.get(&before.name_any()).await, keys::TO_REPLACE).is_none()
    })
    .await;
    set.release().await;
    set.settled().await;
    assert_eq!(set.pod(0).await.uid(), before.uid());
}

#[tokio::test]
async fn finished_job_goes_at_its_ttl_long_before_the_deadline() {
    let scope = Bed::shared().await.scope("job-ttl").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await.name_any();
    let part = json!({ "spec": { "TTLSecondsAfterFinished": 2 } });
    let job = Job::new(&scope, "swap", "Replace", &[&pod], part).await;
    job.gone().await;
    assert_ne!(set.pod(1).await.name_any(), pod);
}

#[tokio::test]
async fn new_pod_as_target_waits_until_its_pair_is_closed() {
    let scope = Bed::shared().await.scope("job-new-half").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    set.hold().await;
    let pod = set.pod(0).await.name_any();
    let first = Job::replace(&scope, "first", &[&pod]).await;
    let detail = first
        .until_target(&pod, "its new Pod", |d| info(d, NEW_POD).is_some())
        .await;
    let new = info(&detail, NEW_POD).unwrap().to_owned();
    let second = Job::replace(&scope, "second", &[&new]).await;
    second
        .until_target(&new, "the reason", |d| {
            info(d, "NotAllowedToReplaceNewPod").is_some()
        })
        .await;
    assert_eq!(label(&scope.get(&new).await, keys::TO_REPLACE), None);
    set.release().await;
    first.succeeded().await;
    let status = second.succeeded().await;
    let detail = &status.target_details[0];
    assert_eq!(info(detail, "NotAllowedToReplaceNewPod"), None);
    set.settled().await;
    let pods = set.pods().await;
    assert_eq!(pods.len(), 1);
    assert_eq!(
        pods.values().next().map(ResourceExt::name_any).as_deref(),
        info(detail, NEW_POD)
    );
}

#[tokio::test]
async fn paused_set_is_named_and_replacement_goes_on_after_it() {
    let scope = Bed::shared().await.scope("job-paused").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    set.edit(json!({ "paused": true })).await;
    let pod = set.pod(0).await.name_any();
    let job = Job::replace(&scope, "swap", &[&pod]).await;
    job.until_target(&pod, "the reason", |d| {
        info(d, "Waiting").is_some_and(|wait| wait.contains("spec.paused"))
    })
    .await;
    set.edit(json!({ "paused": false })).await;
    job.succeeded().await;
}

#[tokio::test]
async fn finished_job_is_deletable_without_controllers() {
    let bed = Bed::own().await;
    let scope = bed.scope("job-finished").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await.name_any();
    let job = Job::replace(&scope, "swap", &[&pod]).await;
    job.succeeded().await;
    bed.without_server().await;
    job.api
        .delete("swap", &DeleteParams::default())
        .await
        .unwrap();
    assert!(job.api.get_opt("swap").await.unwrap().is_none());
}
