//! An OperationJob in a namespace.

use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::operationjob::{OperationJob, OperationJobStatus, Progress, TargetDetail};
use serde_json::{Value, json};
use testbed::{Scope, wait};

/// An OperationJob of the namespace.
pub struct Job<'a> {
    pub scope: &'a Scope,
    pub name: &'static str,
    pub api: Api<OperationJob>,
}

/// The object of a job on the Pods of these names.
pub fn object(name: &str, action: &str, pods: &[&str], part: Value) -> Value {
    let targets: Vec<Value> = pods.iter().map(|pod| json!({ "name": pod })).collect();
    let mut object = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "OperationJob",
        "metadata": { "name": name }, "spec": { "action": action, "targets": targets },
    });
    json_patch::merge(&mut object, &part);
    object
}

impl<'a> Job<'a> {
    /// The job of this name, which need not exist yet.
    pub fn named(scope: &'a Scope, name: &'static str) -> Job<'a> {
        let api = scope.api();
        Job { scope, name, api }
    }

    /// Creates a job on these Pods, with `part` merged into the object.
    pub async fn new(
        scope: &'a Scope,
        name: &'static str,
        action: &str,
        pods: &[&str],
        part: Value,
    ) -> Job<'a> {
        let job = Job::named(scope, name);
        let object = object(name, action, pods, part);
        let object = serde_json::from_value(object).unwrap();
        // Another test may have killed the replica that reviews the request.
        wait::value("the job to be admitted", async || {
            match job.api.create(&PostParams::default(), &object).await {
                Err(kube::Error::Api(status)) if status.code == 500 => None,
                created => Some(created.unwrap()),
            }
        })
        .await;
        job
    }

    /// Creates a job that replaces these Pods.
    pub async fn replace(scope: &'a Scope, name: &'static str, pods: &[&str]) -> Job<'a> {
        Job::new(scope, name, "Replace", pods, json!({})).await
    }

    pub async fn get(&self) -> OperationJob {
        self.api.get(self.name).await.unwrap()
    }

    /// Merges a part into the object.
    pub async fn edit(&self, part: Value) {
        let patch = Patch::Merge(part);
        let params = PatchParams::default();
        self.api.patch(self.name, &params, &patch).await.unwrap();
    }

    pub async fn delete(&self) {
        let params = DeleteParams::default();
        self.api.delete(self.name, &params).await.unwrap();
    }

    /// Waits until the job is gone.
    pub async fn gone(&self) {
        let probe = async || {
            self.api
                .get_opt(self.name)
                .await
                .ok()?
                .is_none()
                .then_some(())
        };
        if wait::found(probe).await.is_none() {
            panic!("the job stays: {}", json!(self.get().await));
        }
    }

    pub async fn until(
        &self,
        description: &str,
        test: impl Fn(&OperationJobStatus) -> bool,
    ) -> OperationJobStatus {
        let probe = async || {
            let status = self.api.get(self.name).await.ok()?.status?;
            test(&status).then_some(status)
        };
        match wait::found(probe).await {
            Some(status) => status,
            None => panic!(
                "OperationJob {}: waited for {description}; it is {}\n{}",
                self.name,
                json!(self.get().await),
                self.describe_pods().await
            ),
        }
    }

    async fn describe_pods(&self) -> String {
        let pods = self.scope.list("").await;
        let pods = pods.iter().map(|pod| {
            format!(
                "{}: {:?} {:?}",
                pod.name_any(),
                pod.labels(),
                pod.annotations()
            )
        });
        pods.collect::<Vec<_>>().join("\n")
    }

    /// Waits until the job is finished with this progress.
    pub async fn ended(&self, progress: Progress) -> OperationJobStatus {
        let status = self
            .until("its end", |status| {
                matches!(
                    status.progress,
                    Some(Progress::Succeeded | Progress::Failed)
                )
            })
            .await;
        assert_eq!(status.progress, Some(progress), "{}", json!(status));
        assert!(status.end_time.is_some());
        status
    }

    /// Waits until the job has succeeded and its finalizer is gone.
    pub async fn succeeded(&self) -> OperationJobStatus {
        let status = self.ended(Progress::Succeeded).await;
        self.released().await;
        status
    }

    /// Waits until the job has failed and released its Pods.
    pub async fn failed(&self) -> OperationJobStatus {
        let status = self.ended(Progress::Failed).await;
        self.released().await;
        status
    }

    /// Waits until the finalizer of the job is gone.
    pub async fn released(&self) {
        wait::until("the finalizer to be removed", async || {
            let job = self.api.get_opt(self.name).await;
            job.is_ok_and(|job| job.is_none_or(|job| !has_finalizer(&job)))
        })
        .await;
    }

    /// Waits until the target of this name satisfies the condition.
    pub async fn until_target(
        &self,
        name: &str,
        description: &str,
        test: impl Fn(&TargetDetail) -> bool,
    ) -> TargetDetail {
        let status = self
            .until(description, |status| find(status, name).is_some_and(&test))
            .await;
        find(&status, name).unwrap().clone()
    }
}

pub fn has_finalizer(job: &OperationJob) -> bool {
    let finalizers = job.finalizers();
    finalizers.iter().any(|f| f == keys::PROTECTED_FINALIZER)
}

fn find<'a>(status: &'a OperationJobStatus, name: &str) -> Option<&'a TargetDetail> {
    status
        .target_details
        .iter()
        .find(|detail| detail.name == name)
}

/// A value of a target's `extraInfo`.
pub fn info<'a>(detail: &'a TargetDetail, key: &str) -> Option<&'a str> {
    detail.extra_info.get(key).map(String::as_str)
}

/// The reason for which a target failed.
pub fn reason(detail: &TargetDetail) -> &str {
    let error = detail.error.as_ref();
    error.map_or("", |error| &error.reason)
}
