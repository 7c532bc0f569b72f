#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::*;
use crate::api::keys;

const NOW: &str = "2026-01-01T12:00:00Z";
const FIVE_MINUTES_AGO: &str = "2026-01-01T11:55:00Z";

/// The diagnosis of the job `restart` on the Pods `web-0`, `web-1` and so on, with a status entry for each of the first
/// ones. `patch` is merged into the job.
fn diagnose(count: usize, details: &[Value], patch: &Value) -> JobDiagnosis {
    let targets = (0..count).map(|n| json!({ "name": format!("web-{n}") }));
    let details = details.iter().enumerate().map(|(n, detail)| {
        let mut detail = detail.clone();
        detail["name"] = json!(format!("web-{n}"));
        detail
    });
    let mut job = json!({
        "metadata": { "namespace": "shop", "name": "restart", "uid": "u", "generation": 1 },
        "spec": { "action": "Restart", "targets": targets.collect::<Vec<_>>() },
        "status": {
            "observedGeneration": 1, "progress": "Processing", "startTime": FIVE_MINUTES_AGO,
            "targetDetails": details.collect::<Vec<_>>(),
        },
    });
    json_patch::merge(&mut job, patch);
    diagnose_job(&serde_json::from_value(job).unwrap(), NOW.parse().unwrap())
}

fn succeeded() -> Value {
    json!({ "progress": "Succeeded" })
}

fn failed(is_released: bool) -> Value {
    json!({
        "progress": "Failed", "endTime": FIVE_MINUTES_AGO,
        "extraInfo": if is_released { json!({ "Released": "true" }) } else { json!({}) },
        "error": { "reason": "PodNotFound", "message": "the Pod does not exist" },
    })
}

fn processing(start: &str, info: &Value) -> Value {
    json!({ "progress": "Processing", "startTime": start, "extraInfo": info })
}

fn names(diagnosis: &JobDiagnosis) -> Vec<&str> {
    let targets = diagnosis.targets.iter();
    targets.map(|target| &*target.name).collect()
}

#[test]
fn failed_and_longest_waiting_targets_come_first() {
    let details = [
        succeeded(),
        processing("2026-01-01T11:59:00Z", &json!({})),
        processing(FIVE_MINUTES_AGO, &json!({ "Waiting": "the kubelet" })),
        failed(true),
    ];
    let diagnosis = diagnose(6, &details, &json!({ "spec": { "partition": 5 } }));
    assert_eq!(names(&diagnosis), ["web-3", "web-2", "web-1", "web-4"]);
    assert_eq!(diagnosis.held_back, ["web-5"]);
    let summary = "OperationJob restart (Restart): 1 of 6 targets succeeded, 1 failed, 3 wait, 1 is held back by spec.partition; \
        web-2 has been Processing for 5m and waits for the kubelet";
    assert_eq!(diagnosis.summary, summary);
    let deadline = diagnosis.targets[1].deadline.unwrap();
    assert_eq!(deadline.to_string(), "2026-01-01T14:55:00Z", "the default");
    assert_eq!(diagnosis.targets[3].since, None);
}

#[test]
fn output_is_bounded() {
    let diagnosis = diagnose(100, &[], &json!({ "spec": { "partition": 50 } }));
    assert_eq!((diagnosis.targets.len(), diagnosis.unlisted), (20, 30));
    assert_eq!(diagnosis.held_back.len(), 20);
    assert_eq!(diagnosis.counts.held_back, 50);
    let long = "x".repeat(10_000);
    let waits = [processing(FIVE_MINUTES_AGO, &json!({ "Waiting": long }))];
    let diagnosis = diagnose(1, &waits, &json!({}));
    assert!(diagnosis.targets[0].waits_for.as_ref().unwrap().len() < 600);
}

#[test]
fn partition_names_its_remedy() {
    let patch = json!({ "spec": { "partition": 1 } });
    let diagnosis = diagnose(3, &[succeeded()], &patch);
    let summary = "OperationJob restart (Restart): 1 of 3 targets succeeded, 2 are held back by spec.partition; \
        nothing more is done until spec.partition is raised";
    assert_eq!(diagnosis.summary, summary);
    let command =
        "kubectl patch operationjob restart -n shop --type merge -p '{\"spec\":{\"partition\":3}}'";
    assert!(diagnosis.next[0].ends_with(command), "{:?}", diagnosis.next);
    assert_eq!(diagnose(3, &[], &json!({})).counts.held_back, 0);
}

#[test]
fn deleted_job_names_what_it_still_releases() {
    let finalizers = json!([keys::PROTECTED_FINALIZER, "example.com/own"]);
    let patch = json!({
        "metadata": { "deletionTimestamp": FIVE_MINUTES_AGO, "finalizers": finalizers },
        "spec": { "partition": 3 },
    });
    let details = [
        failed(true),
        failed(false),
        processing(FIVE_MINUTES_AGO, &json!({})),
    ];
    let diagnosis = diagnose(4, &details, &patch);
    let summary = "OperationJob restart (Restart) is being deleted: 0 of 4 targets succeeded, 2 failed, 2 wait; \
        2 targets are to be released";
    assert_eq!(diagnosis.summary, summary);
    let finalizer = keys::PROTECTED_FINALIZER;
    let next = [
        format!(
            "the controller withdraws what the job asked of web-1, web-2, and then removes finalizer {finalizer}"
        ),
        "other programs remove these finalizers: example.com/own".to_owned(),
    ];
    assert_eq!(diagnosis.next, next);
}

#[test]
fn finished_job_names_failure_and_ttl() {
    let patch = |seconds| {
        json!({
            "spec": { "TTLSecondsAfterFinished": seconds },
            "status": { "progress": "Failed", "endTime": FIVE_MINUTES_AGO },
        })
    };
    let diagnosis = diagnose(2, &[succeeded(), failed(true)], &patch(600));
    let summary = "OperationJob restart (Restart) has failed: 1 of 2 targets succeeded, 1 failed; \
        the first failure is that of web-1: PodNotFound: the Pod does not exist";
    assert_eq!(diagnosis.summary, summary);
    let due = "the job is deleted in 5m (spec.TTLSecondsAfterFinished)";
    assert!(diagnosis.next.iter().any(|step| step == due));
    let diagnosis = diagnose(2, &[succeeded(), failed(false)], &patch(60));
    let due = "the job is deleted now, after what it asked of its targets is withdrawn (spec.TTLSecondsAfterFinished)";
    assert!(diagnosis.next.iter().any(|step| step == due));
    assert!(diagnosis.targets[0].to_release);
}

#[test]
fn new_pod_of_another_replacement_waits_for_its_end() {
    let info = json!({ "NotAllowedToReplaceNewPod": "the Pod is the new Pod of a replacement of Pod web-9" });
    let details = [processing(FIVE_MINUTES_AGO, &info)];
    let patch = json!({ "spec": { "action": "Replace" } });
    let diagnosis = diagnose(1, &details, &patch);
    let wait = diagnosis.targets[0].waits_for.as_deref().unwrap();
    let end =
        "the end of another replacement: the Pod is the new Pod of a replacement of Pod web-9";
    assert_eq!(wait, end);
}

#[test]
fn unseen_job_and_unseen_change_are_reported() {
    let unseen = diagnose(2, &[], &json!({ "status": null }));
    let summary = "OperationJob restart (Restart): 0 of 2 targets succeeded, 2 wait; the controller has not seen the job yet";
    assert_eq!(unseen.summary, summary);
    assert!(unseen.next[0].contains("feature gate CollaSets"));
    let changed = diagnose(2, &[], &json!({ "metadata": { "generation": 2 } }));
    assert_eq!(
        changed.next[0],
        "the controller looks at the latest change of the job"
    );
}
