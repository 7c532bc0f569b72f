//! The OperationJobs of a walk: what users do with them, and how all end.

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use operating::api::keys;
use operating::api::operationjob::{OperationJob, Progress};
use serde_json::json;
use testbed::{Scope, wait};

use super::requests::passed;
use crate::fixtures::label;

/// The action of a program that never answers, so that the deadline ends each operation.
pub const UNANSWERED: &str = "walk.test/none";
/// Seconds that a target may take.
const DEADLINE: u32 = 12;

/// Creates a job on these Pods.
pub async fn create(scope: &Scope, action: &str, pods: &[String]) -> bool {
    let jobs: Api<OperationJob> = scope.api();
    let targets: Vec<_> = pods.iter().map(|pod| json!({ "name": pod })).collect();
    let job = serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "generateName": "job-" },
        "spec": { "action": action, "targets": targets, "activeDeadlineSeconds": DEADLINE },
    }));
    let created = jobs.create(&PostParams::default(), &job.unwrap()).await;
    passed(created)
}

/// Deletes all jobs.
pub async fn delete_all(scope: &Scope) -> bool {
    let jobs: Api<OperationJob> = scope.api();
    let list = jobs.list(&ListParams::default()).await.unwrap();
    for job in list {
        let name = job.name_any();
        passed(jobs.delete(&name, &DeleteParams::default()).await);
    }
    true
}

/// Waits until every job is finished and has released its Pods, and checks that none has left anything on a Pod.
pub async fn until_ended(scope: &Scope) {
    let jobs: Api<OperationJob> = scope.api();
    let is_open = |job: &OperationJob| {
        let progress = job
            .status
            .as_ref()
            .and_then(|status| status.progress.clone());
        let is_held = job
            .finalizers()
            .iter()
            .any(|f| f == keys::PROTECTED_FINALIZER);
        is_held || !matches!(progress, Some(Progress::Succeeded | Progress::Failed))
    };
    let list = async || {
        let list = jobs.list(&ListParams::default()).await.ok()?;
        let open: Vec<_> = list.items.into_iter().filter(&is_open).collect();
        open.is_empty().then_some(())
    };
    if wait::found(list).await.is_none() {
        let open = jobs.list(&ListParams::default()).await.unwrap().items;
        panic!("jobs do not end: {}", json!(open));
    }
    // A mutating webhook that a killed replica did not answer has stored an undo as it was asked for. The lifecycle
    // carries it out afterwards.
    wait::until("no Pod to have anything of a job", async || {
        let pods = scope.list("").await;
        pods.iter().all(|pod| {
            let mut keys = pod.labels().keys();
            keys.all(|key| !key.contains("/operationjob-"))
                && label(pod, keys::TO_REPLACE) != Some("operationjob")
        })
    })
    .await;
}
