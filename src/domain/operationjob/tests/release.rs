//! What a target that has failed leaves on its Pod: nothing that the job asked for.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::domain::operationjob::observed::FailedRequest;

#[test]
fn refused_release_is_told() {
    let failed = json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Failed", "startTime": START,
        "endTime": START, "extraInfo": { "PodUID": "uid-web-0" } }] } });
    let labels = json!({ (keys::TO_REPLACE): "operationjob" });
    let job = job("Replace", &["web-0"], failed);
    let mut observed = observe(job, &[pod("web-0", labels)]);
    observed.failed_requests = failed_request("uid-web-0", true);
    let plan = plan_job(&observed);
    assert!(detail(&plan).extra_info["Waiting"].contains("refuses a request: no"));
    observed.failed_requests = failed_request("uid-web-0", false);
    let plan = plan_job(&observed);
    assert!(detail(&plan).extra_info["Waiting"].contains("has failed: no"));
}

/// Somebody has taken the Pod out of management in the middle of an operation.
#[test]
fn unmanaged_pod_is_released_too() {
    let release = |action: &str, labels: Value, info: Value| {
        let mut all = json!({ "PodUID": "uid-web-0" });
        json_patch::merge(&mut all, &info);
        let failed = json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Failed", "startTime": START,
            "endTime": START, "extraInfo": all }] } });
        let mut observed = observe(job(action, &["web-0"], failed), &[]);
        let mut unmanaged = pod("web-0", labels);
        unmanaged.metadata.labels.remove(keys::CONTROL);
        observed.unmanaged = [("uid-web-0".to_owned(), Some(Arc::new(unmanaged)))].into();
        plan_job(&observed)
    };
    let request = json!({ (keys::TO_REPLACE): "operationjob" });
    let plan = release("Replace", request, json!({}));
    assert_eq!(labels_of_patch(&plan), json!({ (keys::TO_REPLACE): null }));
    let plan = release("a.test/drain", operating("drain"), json!({}));
    let removed = labels_of_patch(&plan);
    assert_eq!(
        removed[Family::Operating.key("operationjob-swap")],
        Value::Null
    );
    assert_eq!(removed.as_object().unwrap().len(), 3);
    assert_eq!(release("Replace", json!({}), json!({})).actions, []);
}

/// A request for this key that the API server has refused, or that has failed.
fn failed_request(key: &str, is_refusal: bool) -> BTreeMap<String, FailedRequest> {
    let message = "no".to_owned();
    let request = FailedRequest {
        message,
        is_refusal,
    };
    [(key.to_owned(), request)].into()
}

/// A restart of `web-0` by image reference that has failed, and its Pod. `labels` are those of the Pod, and `note` is the
/// annotation that proves the former image.
fn failed_restart(labels: Value, note: Option<Value>, part: Value) -> ObservedJob {
    let before = json!({ "app": { "id": "0123456789ab", "image": "app:1" } }).to_string();
    let info = json!({ "PodUID": "uid-web-0", "Method": "ImageReference", "Before": before });
    let error = json!({ "reason": "DeadlineExceeded", "message": "late" });
    let mut all = json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Failed", "startTime": START,
        "endTime": START, "error": error, "extraInfo": info }] } });
    json_patch::merge(&mut all, &part);
    let mut patched = pod("web-0", labels);
    let mut containers = patched.spec.containers.to_vec();
    containers[0].image = format!("app:1@sha256:{}", "a".repeat(64));
    patched.spec.containers = containers.into();
    let note = note.map(|note| (keys::FORMER_IMAGES.to_owned(), note.to_string()));
    patched.metadata.annotations.extend(note);
    observe(job("Restart", &["web-0"], all), &[patched])
}

fn own_note() -> Option<Value> {
    Some(json!({ "job": "job", "images": { "app": "app:1" } }))
}

fn deleted() -> Value {
    json!({ "metadata": { "deletionTimestamp": NOW } })
}

/// Takes the Pod out of management.
fn without_management(mut observed: ObservedJob) -> ObservedJob {
    let mut pod = Pod::clone(observed.pods.named("web-0").unwrap());
    pod.metadata.labels.remove(keys::CONTROL);
    observed.pods = [].into_iter().collect();
    observed.unmanaged = [("uid-web-0".to_owned(), Some(Arc::new(pod)))].into();
    observed
}

#[test]
fn image_goes_back_before_the_operation_ends_unless_it_is_refused() {
    let in_operation = failed_restart(operating("Restart"), own_note(), json!({}));
    for mut observed in [in_operation.clone(), without_management(in_operation)] {
        for failures in [[].into(), failed_request("uid-web-0", false)] {
            observed.failed_requests = failures;
            let plan = plan_job(&observed);
            let [patch] = patches(&plan)[..] else {
                panic!("one patch")
            };
            let image = &patch.spec.as_ref().unwrap()["containers"][0]["image"];
            assert_eq!(image, "app:1");
            assert_eq!(patch.annotations[keys::FORMER_IMAGES], None);
            assert!(patch.labels.is_empty());
        }
        observed.failed_requests = failed_request("uid-web-0", true);
        let plan = plan_job(&observed);
        assert!(patches(&plan)[0].spec.is_none());
        assert!(!patches(&plan)[0].labels.is_empty());
    }
}

/// Whoever may write the status of a job can't change an image by it.
#[test]
fn image_that_the_pod_does_not_prove_is_not_put_back() {
    let foreign = json!({ "job": "other", "images": { "app": "app:1" } });
    for note in [None, Some(foreign)] {
        let managed = failed_restart(json!({}), note, json!({}));
        for observed in [without_management(managed.clone()), managed] {
            let plan = plan_job(&observed);
            assert_eq!(plan.actions, []);
            assert_eq!(detail(&plan).extra_info["Released"], "true");
            let message = &detail(&plan).error.as_ref().unwrap().message;
            assert!(
                message.starts_with("the images were not put back: "),
                "{message}"
            );
            assert_eq!(plan.reports[0].reason, "ImagesNotPutBack");
        }
    }
}

#[test]
fn only_deleted_job_gives_up_a_refused_image() {
    let planned = |part: Value, is_refusal: bool| {
        let mut observed = failed_restart(json!({}), own_note(), part);
        observed.failed_requests = failed_request("uid-web-0", is_refusal);
        plan_job(&observed)
    };
    for (part, is_refusal) in [(json!({}), true), (deleted(), false)] {
        let plan = planned(part, is_refusal);
        assert!(patches(&plan)[0].spec.is_some() && !plan.remove_finalizer);
    }
    let plan = planned(deleted(), true);
    assert!(plan.actions.is_empty() && plan.remove_finalizer);
    assert!(
        plan.reports[0]
            .message
            .contains("the API server refuses it: no")
    );
}

/// The write that begins an operation was not answered, and the cache shows the Pod without it.
#[test]
fn job_does_not_end_before_an_unanswered_write_is_checked() {
    let job = job_in_progress("a.test/drain", json!({}), deleted());
    let mut observed = observe(job, &[pod("web-0", json!({}))]);
    assert!(plan_job(&observed).remove_finalizer);
    observed.unanswered = ["uid-web-0".to_owned()].into();
    let plan = plan_job(&observed);
    assert!(matches!(plan.actions[..], [TargetAction::CheckWrite(_)]));
    assert!(!plan.remove_finalizer);
}
