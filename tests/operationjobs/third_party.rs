//! Actions of other programs, through the lifecycle. `tests/documents` runs the example program.

use kube::ResourceExt;
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::Bed;

use crate::fixtures::{Job, info, reason};
use crate::sets::{Set, label};

const ACTION: &str = "example.com/drain";
const ID: &str = "operationjob-drain";

/// Answers as the program of the action does.
async fn answer(job: &Job<'_>, pod: &str, progress: &str, message: &str) {
    let uid = job.get().await.uid().unwrap();
    let answer = json!({ "job": uid, "progress": progress, "message": message });
    let annotations = json!({ (keys::ACTION_RESULT): answer.to_string() });
    let patch = json!({ "metadata": { "annotations": annotations } });
    job.scope.patch(pod, patch).await.unwrap();
}

#[tokio::test]
async fn answers_end_the_operation_with_success_or_failure() {
    let scope = Bed::shared().await.scope("job-program").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let pods = set.pods().await;
    let names = [pods[&0].name_any(), pods[&1].name_any()];
    let targets = [names[0].as_str(), names[1].as_str()];
    let job = Job::new(&scope, "drain", ACTION, &targets, json!({})).await;
    for name in &names {
        job.until_target(name, "its turn", |d| info(d, "Allowed").is_some())
            .await;
        let pod = scope.get(name).await;
        assert_eq!(label(&pod, &Family::OperationType.key(ID)), Some("drain"));
        assert_eq!(label(&pod, keys::SERVICE_AVAILABLE), None, "off traffic");
    }
    // The answer to another job is none.
    let foreign = json!({ "job": "another", "progress": "Failed" }).to_string();
    let patch = json!({ "metadata": { "annotations": { (keys::ACTION_RESULT): foreign } } });
    scope.patch(&names[0], patch).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    answer(&job, &names[0], "Succeeded", "").await;
    answer(&job, &names[1], "Failed", "the cache is stuck").await;
    let status = job.failed().await;
    assert_eq!(
        (status.succeeded_pod_count, status.failed_pod_count),
        (1, 1)
    );
    let failed = &status.target_details[1];
    assert_eq!(reason(failed), "ActionFailed");
    assert_eq!(failed.error.as_ref().unwrap().message, "the cache is stuck");
    for pod in scope.all_available("app=web", 2).await {
        assert!(!pod.annotations().contains_key(keys::ACTION_RESULT));
        assert!(!pod.labels().keys().any(|key| key.ends_with(ID)));
    }
}

/// A job of the same name as an operation of the server has an ID of its own, and a deleted job returns the Pod.
#[tokio::test]
async fn job_named_like_the_set_waits_for_others_and_is_cancelled() {
    let scope = Bed::shared().await.scope("job-named").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let pod = set.pod(0).await;
    let name = pod.name_any();
    scope.begin(&name, "manual").await.unwrap();
    let job = Job::new(&scope, "collaset", ACTION, &[&name], json!({})).await;
    job.until_target(&name, "the other operation", |d| {
        info(d, "Waiting").is_some_and(|wait| wait.contains("manual"))
    })
    .await;
    scope.finish(&name, "manual").await.unwrap();
    job.until_target(&name, "its turn", |d| info(d, "Allowed").is_some())
        .await;
    job.delete().await;
    job.gone().await;
    scope.all_available("app=web", 1).await;
    set.settled().await;
    assert_eq!(set.pod(0).await.uid(), pod.uid());
}

/// A run that an earlier job of this name has left on the Pod is not taken for this job's.
#[tokio::test]
async fn leftover_run_of_the_same_name_is_undone_first() {
    let scope = Bed::shared().await.scope("job-leftover").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let name = set.pod(0).await.name_any();
    scope.begin(&name, ID).await.unwrap();
    let begun = scope.get(&name).await.labels()[&Family::Operating.key(ID)].clone();
    let job = Job::new(&scope, "drain", ACTION, &[&name], json!({})).await;
    job.until_target(&name, "its turn", |d| info(d, "Allowed").is_some())
        .await;
    let pod = scope.get(&name).await;
    assert_ne!(label(&pod, &Family::Operating.key(ID)), Some(&*begun));
    answer(&job, &name, "Succeeded", "").await;
    job.succeeded().await;
}
