//! Tests of `pod_jobs`.
#![allow(clippy::unwrap_used)]
use std::sync::Arc;

use serde_json::{Value, json};

use super::facts::{Diagnosis, OperationWait, PodRole, WaitKind};
use super::tests::pod_of_set;
use super::{ObservedPod, diagnose};
use crate::api::keys::{self, Family};
use crate::api::operationjob::OperationJob;
use crate::domain::operationjob::lifecycle_action::lifecycle_id;
use crate::domain::pod::Pod;

/// The Pod of a CollaSet at rest, and these jobs.
fn observed(jobs: &[Value]) -> ObservedPod {
    let mut observed = pod_of_set(json!({}));
    let read = |job: &Value| serde_json::from_value::<OperationJob>(job.clone()).unwrap();
    observed.jobs = Some(jobs.iter().map(read).collect());
    observed
}

/// A job with the Pod of [`observed`] as target, and this entry of the status.
fn job(name: &str, action: &str, detail: Value) -> Value {
    let pod = pod_of_set(json!({})).pod;
    let mut job = json!({
        "metadata": { "namespace": "n", "name": name },
        "spec": { "action": action, "targets": [{ "name": "other" }, { "name": pod.metadata.name }] },
        "status": { "progress": "Processing", "targetDetails": [{ "name": pod.metadata.name }] },
    });
    json_patch::merge(&mut job["status"]["targetDetails"][0], &detail);
    job
}

fn processing(info: Value) -> Value {
    let uid = pod_of_set(json!({})).pod.metadata.uid.clone();
    let mut extra_info = json!({ "PodUID": uid });
    json_patch::merge(&mut extra_info, &info);
    json!({ "progress": "Processing", "startTime": "2026-01-01T11:55:00Z", "extraInfo": extra_info })
}

fn label(observed: &mut ObservedPod, key: impl Into<String>, value: &str) {
    let pod: &mut Pod = Arc::make_mut(&mut observed.pod);
    pod.metadata.labels.insert(key.into(), value.to_owned());
}

/// Puts an operation of this lifecycle ID into Operate.
fn operate(observed: &mut ObservedPod, id: &str) {
    for (family, value) in [
        (Family::Operating, "1"),
        (Family::OperationType, "Restart"),
        (Family::PreChecked, "1"),
        (Family::Operate, "1"),
    ] {
        label(observed, family.key(id), value);
    }
}

/// The last wait of the only operation, and the name of its job.
fn operation_wait(observed: &ObservedPod) -> (OperationWait, Option<String>) {
    let mut operation = diagnose(observed).operations.remove(0);
    (operation.waits_for.pop().unwrap(), operation.job)
}

#[test]
fn operation_is_traced_to_its_job() {
    let long = "a".repeat(60);
    for (name, id) in [
        ("restart", lifecycle_id("restart")),
        (&*long, lifecycle_id(&long)),
        ("restart", "restart".to_owned()),
    ] {
        let detail = processing(json!({ "Waiting": "the kubelet to restart the containers" }));
        let mut observed = observed(&[
            job("else", "Restart", json!({})),
            job(name, "Restart", detail),
        ]);
        operate(&mut observed, &id);
        let (wait, job) = operation_wait(&observed);
        assert_eq!(job.as_deref(), Some(name));
        let text = format!(
            "OperationJob {name}, to finish (Restart): its target waits for the kubelet to restart the containers"
        );
        assert_eq!((wait.on, wait.text), (WaitKind::Operator, text));
    }
}

#[test]
fn plain_id_belongs_to_no_job_without_the_pod() {
    let mut stranger = job("upgrade", "Restart", json!({}));
    stranger["spec"]["targets"] = json!([{ "name": "other" }]);
    let mut observed = observed(&[stranger]);
    operate(&mut observed, "upgrade");
    let (wait, job) = operation_wait(&observed);
    assert_eq!(job, None);
    assert!(
        wait.text.starts_with("the client that began it"),
        "{}",
        wait.text
    );
}

#[test]
fn operation_of_missing_job_can_be_cancelled() {
    let id = lifecycle_id("restart");
    let mut observed = observed(&[]);
    operate(&mut observed, &id);
    let (wait, _) = operation_wait(&observed);
    let command = format!("{}=Restart`", Family::UndoOperationType.key(&id));
    assert_eq!(wait.on, WaitKind::User);
    assert!(wait.text.ends_with(&command), "{}", wait.text);
    observed.jobs = None;
    let (wait, _) = operation_wait(&observed);
    assert_eq!(wait.on, WaitKind::Operator, "the jobs could not be read");
}

#[test]
fn failed_target_cancels_the_operation() {
    let mut detail = processing(json!({}));
    detail["progress"] = json!("Failed");
    detail["error"] = json!({ "reason": "RestartFailed", "message": "no" });
    let mut observed = observed(&[job("restart", "Restart", detail)]);
    operate(&mut observed, &lifecycle_id("restart"));
    let text = "OperationJob restart, to finish (Restart): its target has failed (RestartFailed: no), so it cancels the operation";
    assert_eq!(operation_wait(&observed).0.text, text);
    let facts = diagnose(&observed).jobs.remove(0);
    let remark =
        "withdraws what it asked of the Pod, because the target has failed (RestartFailed: no)";
    assert_eq!(facts.remark.as_deref(), Some(remark));
}

fn replaced(value: &str) -> Diagnosis {
    let wait = "the deletion of the Pod: kubectl operating why pod/web-0 says what holds it";
    let detail = processing(json!({ "Waiting": wait, "NewPod": "web-9" }));
    let mut observed = observed(&[job("replace", "Replace", detail)]);
    label(&mut observed, keys::TO_REPLACE, value);
    diagnose(&observed)
}

#[test]
fn replaced_pod_names_the_job_that_asked() {
    let diagnosis = replaced("operationjob");
    let facts = &diagnosis.jobs[0];
    assert_eq!(
        facts.remark.as_deref(),
        Some("asked for the replacement of the Pod")
    );
    assert_eq!(
        facts.waits_for.as_deref(),
        Some("the deletion of the Pod"),
        "without the hint"
    );
    assert_eq!(
        facts.deadline.unwrap().to_string(),
        "2026-01-01T14:55:00Z",
        "the default"
    );
    let end = "; OperationJob replace asked for the replacement of the Pod, and waits for the deletion of the Pod";
    assert!(diagnosis.summary.ends_with(end), "{}", diagnosis.summary);
    let remark = "follows a replacement of the Pod that it did not ask for";
    assert_eq!(replaced("true").jobs[0].remark.as_deref(), Some(remark));
}

#[test]
fn new_pod_names_the_pod_that_it_replaces() {
    let pod = pod_of_set(json!({})).pod;
    let info = json!({ "PodUID": "gone", "NewPodUID": pod.metadata.uid });
    let mut replace = job("replace", "Replace", processing(info));
    replace["status"]["targetDetails"][0]["name"] = json!("other");
    replace["spec"]["targets"] = json!([{ "name": "other" }]);
    let facts = diagnose(&observed(&[replace])).jobs.remove(0);
    assert_eq!(facts.role, PodRole::NewPod);
    assert_eq!(
        facts.remark.as_deref(),
        Some("lets the Pod take the place of Pod other")
    );
}

#[test]
fn held_back_target_names_the_partition() {
    let mut held = job("restart", "Restart", json!({ "progress": "Pending" }));
    held["spec"]["partition"] = json!(1);
    let diagnosis = diagnose(&observed(&[held]));
    let facts = &diagnosis.jobs[0];
    let wait = "its spec.partition to be raised: it is 1, and other targets come first";
    assert_eq!(facts.waits_for.as_deref(), Some(wait));
    assert!(!diagnosis.summary.contains("restart"), "nothing has begun");
}

#[test]
fn jobs_that_are_done_with_the_pod_are_not_listed() {
    let of_namesake = processing(json!({ "PodUID": "former" }));
    let released = json!({ "progress": "Failed", "extraInfo": { "Released": "true" } });
    for detail in [json!({ "progress": "Succeeded" }), released, of_namesake] {
        let jobs = diagnose(&observed(&[job("restart", "Restart", detail)])).jobs;
        assert_eq!(jobs, []);
    }
}
