//! What a plan asks for, from the stored status.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bounds;
mod release;
mod replace;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::actions::{PodPatch, TargetAction};
use super::job_status::stored_details;
use super::lifecycle_action::lifecycle_id;
use super::observed::{LiveName, ObservedJob};
use super::plan::{JobPlan, plan_job};
use super::restart::recreate_request::RequestState;
use super::restart::settings::{RestartMethod, RestartSettings};
use super::selection::selected_targets;
use crate::api::keys::{self, Family};
use crate::api::operationjob::{OperationJob, OperationJobStatus, Progress, TargetDetail};
use crate::domain::pod::Pod;

const NOW: &str = "2026-01-01T00:10:00Z";
const START: &str = "2026-01-01T00:00:00Z";

fn job(action: &str, targets: &[&str], part: Value) -> OperationJob {
    let targets: Vec<Value> = targets.iter().map(|name| json!({ "name": name })).collect();
    let mut job = json!({
        "metadata": {
            "name": "swap", "namespace": "shop", "uid": "job", "generation": 1,
            "finalizers": [keys::PROTECTED_FINALIZER],
        },
        "spec": { "action": action, "targets": targets },
    });
    json_patch::merge(&mut job, &part);
    serde_json::from_value(job).unwrap()
}

/// A job whose only target `web-0` is in progress.
fn job_in_progress(action: &str, info: Value, part: Value) -> OperationJob {
    let mut all = json!({ "PodUID": "uid-web-0" });
    json_patch::merge(&mut all, &info);
    let detail =
        json!({ "name": "web-0", "progress": "Processing", "startTime": START, "extraInfo": all });
    let mut whole = json!({ "status": { "progress": "Processing", "startTime": START, "targetDetails": [detail] } });
    json_patch::merge(&mut whole, &part);
    job(action, &["web-0"], whole)
}

fn pod(name: &str, labels: Value) -> Pod {
    let mut all = json!({ (keys::CONTROL): "true", (keys::INSTANCE_ID): "0", (keys::SERVICE_AVAILABLE): "1" });
    json_patch::merge(&mut all, &labels);
    let digest = "a".repeat(64);
    serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": "shop", "uid": format!("uid-{name}"), "resourceVersion": "7",
            "labels": all,
            "ownerReferences": [{
                "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "set",
                "controller": true,
            }],
        },
        "spec": { "containers": [{ "name": "app", "image": "app:1" }], "restartPolicy": "Always" },
        "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
            "containerStatuses": [{
                "name": "app", "containerID": "containerd://0123456789abcdef", "ready": true, "image": "app:1",
                "imageID": format!("docker.io/library/app@sha256:{digest}"),
            }],
        },
    }))
    .unwrap()
}

fn observe(job: OperationJob, pods: &[Pod]) -> ObservedJob {
    ObservedJob {
        job: Arc::new(job),
        pods: pods.iter().cloned().map(Arc::new).collect(),
        sets: Vec::new(),
        instance_ids: [].into(),
        live_names: [].into(),
        unmanaged: [].into(),
        unseen: [].into(),
        unanswered: [].into(),
        other_jobs: Vec::new(),
        restart: RestartSettings::default(),
        recreate_requests: [].into(),
        failed_requests: [].into(),
        now: NOW.parse::<Timestamp>().unwrap(),
    }
}

fn detail(plan: &JobPlan) -> &TargetDetail {
    &plan.status.as_ref().unwrap().target_details[0]
}

fn reason(plan: &JobPlan) -> &str {
    let error = detail(plan).error.as_ref();
    error.map_or("", |error| &error.reason)
}

fn patches(plan: &JobPlan) -> Vec<&PodPatch> {
    let patches = plan.actions.iter().filter_map(|action| match action {
        TargetAction::Patch(patch) => Some(patch),
        _ => None,
    });
    patches.collect()
}

fn labels_of_patch(plan: &JobPlan) -> Value {
    match patches(plan)[..] {
        [patch] => patch.labels.to_merge_patch(),
        _ => Value::Null,
    }
}

/// The labels of the job's operation on a Pod that may be operated on.
fn operating(type_: &str) -> Value {
    let id = "operationjob-swap";
    json!({
        (Family::Operating.key(id)): "1", (Family::OperationType.key(id)): type_, (Family::Operate.key(id)): "2",
        (keys::SERVICE_AVAILABLE): null,
    })
}

#[test]
fn partition_counts_begun_targets_first() {
    let selected = |partition: Option<i32>, begun: &[&str]| {
        let details: Vec<Value> = begun
            .iter()
            .map(|name| json!({ "name": name, "startTime": START }))
            .collect();
        let part =
            json!({ "spec": { "partition": partition }, "status": { "targetDetails": details } });
        let job = job("Replace", &["c", "a", "b"], part);
        let selected = selected_targets(&job, &stored_details(&job));
        selected.into_iter().collect::<String>()
    };
    assert_eq!(selected(None, &[]), "abc");
    assert_eq!(selected(Some(0), &[]), "");
    assert_eq!(selected(Some(1), &[]), "c");
    assert_eq!(selected(Some(2), &["b"]), "bc");
    assert_eq!(
        selected(Some(1), &["a", "b"]),
        "ab",
        "what has begun goes on"
    );
    assert_eq!(selected(Some(-1), &[]), "");
    assert_eq!(selected(Some(9), &[]), "abc");
}

#[test]
fn nothing_is_done_before_finalizer_and_start_are_stored() {
    let free = json!({ "metadata": { "finalizers": null } });
    let plan = plan_job(&observe(
        job("Replace", &["web-0"], free),
        &[pod("web-0", json!({}))],
    ));
    assert!(plan.add_finalizer && plan.status.is_none() && plan.actions.is_empty());
    let plan = plan_job(&observe(
        job("Replace", &["web-0"], json!({})),
        &[pod("web-0", json!({}))],
    ));
    assert!(!plan.add_finalizer && plan.actions.is_empty());
    assert_eq!(detail(&plan).progress, Some(Progress::Processing));
    assert_eq!(detail(&plan).extra_info["PodUID"], "uid-web-0");
    let started = job_in_progress("Replace", json!({}), json!({}));
    let plan = plan_job(&observe(started, &[pod("web-0", json!({}))]));
    assert_eq!(
        labels_of_patch(&plan),
        json!({ (keys::TO_REPLACE): "operationjob" })
    );
}

#[test]
fn name_without_managed_pod_is_looked_up_once() {
    let job = job(
        "Restart",
        &["web-0"],
        json!({ "metadata": { "finalizers": null } }),
    );
    let mut observed = observe(job, &[]);
    let plan = plan_job(&observed);
    assert_eq!(plan.actions, [TargetAction::Lookup("web-0".into())]);
    assert!(!plan.add_finalizer);
    for (found, expected) in [
        (LiveName::Absent, "PodNotFound"),
        (LiveName::Unmanaged, "NotManaged"),
    ] {
        observed.live_names = [("web-0".to_owned(), found)].into();
        let plan = plan_job(&observed);
        assert_eq!((reason(&plan), plan.add_finalizer), (expected, false));
        assert_eq!(
            plan.status.as_ref().unwrap().progress,
            Some(Progress::Failed)
        );
    }
}

#[test]
fn target_ends_at_its_deadline_and_is_released_once_that_is_stored() {
    let spec = json!({ "spec": { "activeDeadlineSeconds": 600 } });
    let labels = json!({ (keys::TO_REPLACE): "operationjob" });
    let pods = [pod("web-0", labels)];
    let plan = plan_job(&observe(job_in_progress("Replace", json!({}), spec), &pods));
    assert_eq!((reason(&plan), plan.actions.len()), ("DeadlineExceeded", 0));
    assert!(!plan.remove_finalizer);
    let mut failed = job_in_progress("Replace", json!({}), json!({}));
    failed.status = plan.status;
    let mut observed = observe(failed, &pods);
    let plan = plan_job(&observed);
    assert_eq!(labels_of_patch(&plan), json!({ (keys::TO_REPLACE): null }));
    // Another job wants the same replacement.
    let mut other = job_in_progress("Replace", json!({}), json!({}));
    other.metadata.uid = Some("other".into());
    observed.other_jobs = vec![Arc::new(other)];
    let plan = plan_job(&observed);
    assert_eq!(patches(&plan).len(), 0);
    assert_eq!(detail(&plan).extra_info["Released"], "true");
    // Someone else's request, and an update's, are no job's.
    observed.other_jobs.clear();
    let update =
        json!({ (keys::TO_REPLACE): "operationjob", (keys::REPLACED_BY_REPLACE_UPDATE): "web-2" });
    for labels in [json!({ (keys::TO_REPLACE): "true" }), update] {
        observed.pods = [Arc::new(pod("web-0", labels))].into_iter().collect();
        assert_eq!(patches(&plan_job(&observed)).len(), 0);
    }
}

#[test]
fn stranger_of_the_same_name_is_not_touched() {
    let mut stranger = pod("web-0", json!({ (keys::TO_REPLACE): "operationjob" }));
    stranger.metadata.uid = "stranger".into();
    for action in ["Replace", "Restart", "a.test/drain"] {
        let job = job_in_progress(action, json!({}), json!({}));
        let plan = plan_job(&observe(job, &[stranger.clone()]));
        assert_eq!(
            (reason(&plan), plan.actions.len()),
            ("PodNotFound", 0),
            "{action}"
        );
        let mut failed = job_in_progress(action, json!({}), json!({}));
        failed.status = plan.status;
        let mut observed = observe(failed, &[stranger.clone()]);
        let read = TargetAction::ReadUnmanaged {
            name: "web-0".into(),
            uid: Some("uid-web-0".into()),
        };
        assert_eq!(plan_job(&observed).actions, [read]);
        observed.unmanaged = [("uid-web-0".to_owned(), None)].into();
        let plan = plan_job(&observed);
        assert_eq!(detail(&plan).extra_info["Released"], "true");
        assert_eq!(plan.actions, []);
    }
}

#[test]
fn containers_are_noted_before_they_are_restarted() {
    let restart = |info: Value, pod: Pod| {
        let job = job_in_progress("Restart", info, json!({}));
        let mut observed = observe(job, &[pod]);
        observed.restart.method = RestartMethod::ImageReference;
        plan_job(&observed)
    };
    let plan = restart(json!({}), pod("web-0", operating("Restart")));
    assert_eq!(plan.actions, []);
    let noted = detail(&plan).extra_info.clone();
    assert_eq!(noted["Method"], "ImageReference");
    let plan = restart(json!(noted), pod("web-0", operating("Restart")));
    let patch = patches(&plan)[0].spec.clone().unwrap();
    let image = patch["containers"][0]["image"].as_str().unwrap().to_owned();
    assert!(image.starts_with("app:1@sha256:"), "{image}");
    let note = patches(&plan)[0].annotations[keys::FORMER_IMAGES].clone();
    let proof = json!({ "job": "job", "images": { "app": "app:1" } });
    assert_eq!(note, Some(proof.to_string()));
    // The patch was made, and the server crashed before it knew.
    let mut patched = pod("web-0", operating("Restart"));
    let mut containers = patched.spec.containers.to_vec();
    containers[0].image = image;
    patched.spec.containers = containers.into();
    assert_eq!(restart(json!(noted), patched.clone()).actions, []);
    patched.status.container_statuses[0].container_id = "containerd://fedcba9876543210".into();
    patched.metadata.annotations = [(keys::FORMER_IMAGES.to_owned(), note.unwrap())].into();
    let plan = restart(json!(noted), patched.clone());
    let ended = detail(&plan).extra_info.clone();
    assert!(ended.contains_key("ActionEnded"));
    let plan = restart(json!(ended), patched);
    assert_eq!(patches(&plan)[0].annotations[keys::FORMER_IMAGES], None);
}

#[test]
fn operation_waits_for_others_and_is_begun_once() {
    let drain = || job_in_progress("a.test/drain", json!({}), json!({}));
    let other = json!({ (Family::Operating.key("x")): "1", (Family::OperationType.key("x")): "x" });
    let plan = plan_job(&observe(drain(), &[pod("web-0", other)]));
    assert_eq!(plan.actions, []);
    assert!(detail(&plan).extra_info["Waiting"].contains("operation x"));
    let plan = plan_job(&observe(drain(), &[pod("web-0", json!({}))]));
    let labels = labels_of_patch(&plan);
    assert_eq!(
        labels[Family::OperationType.key("operationjob-swap")],
        "drain"
    );
    let plan = plan_job(&observe(drain(), &[pod("web-0", operating("drain"))]));
    assert_eq!(plan.actions, []);
    assert!(detail(&plan).extra_info.contains_key("Allowed"));
}

#[test]
fn ids_of_jobs_are_short_and_their_own() {
    assert_eq!(lifecycle_id("collaset"), "operationjob-collaset");
    let long = "x".repeat(60);
    assert!(lifecycle_id(&long).len() <= 63);
    assert_ne!(lifecycle_id(&long), lifecycle_id(&"x".repeat(61)));
}

#[test]
fn finished_job_is_deleted_at_its_ttl() {
    let finished = |ttl: i32, finalizers: Value| {
        let part = json!({
            "metadata": { "finalizers": finalizers },
            "spec": { "TTLSecondsAfterFinished": ttl },
            "status": {
                "observedGeneration": 1, "progress": "Succeeded", "startTime": START, "endTime": START,
                "totalPodCount": 1, "succeededPodCount": 1, "failedPodCount": 0,
                "targetDetails": [{ "name": "web-0", "progress": "Succeeded", "startTime": START, "endTime": START }],
            },
        });
        let mut job = job("Replace", &["web-0"], part);
        // The conditions are stored, too.
        job.status = plan_job(&observe(job.clone(), &[])).status;
        plan_job(&observe(job, &[]))
    };
    let early = finished(601, Value::Null);
    assert_eq!(
        (early.delete, early.look_at.unwrap().to_string()),
        (false, "2026-01-01T00:10:01Z".into())
    );
    assert!(finished(600, Value::Null).delete);
    let held = finished(600, json!([keys::PROTECTED_FINALIZER]));
    assert!(held.remove_finalizer && !held.delete);
}

#[test]
fn deleted_job_cancels_what_it_has_begun() {
    let deleted = json!({ "metadata": { "deletionTimestamp": NOW } });
    let job = job_in_progress("a.test/drain", json!({}), deleted);
    let mut observed = observe(job, &[pod("web-0", operating("drain"))]);
    let plan = plan_job(&observed);
    assert_eq!(reason(&plan), "Canceled");
    assert_eq!(patches(&plan).len(), 1, "without a stored status");
    let mut job = OperationJob::clone(&observed.job);
    job.status = plan.status;
    observed.job = Arc::new(job);
    let plan = plan_job(&observed);
    let undo = Family::UndoOperationType.key("operationjob-swap");
    assert_eq!(labels_of_patch(&plan), json!({ undo: "drain" }));
    assert!(!plan.remove_finalizer);
    let mut job = OperationJob::clone(&observed.job);
    job.metadata.finalizers = None;
    observed.job = Arc::new(job);
    let plan = plan_job(&observed);
    assert!(
        plan.status.is_none() && plan.actions.is_empty(),
        "it is not ours to hold"
    );
}

/// Somebody else changes the image of one container between the note and the patch.
#[test]
fn containers_that_others_have_not_changed_are_still_restarted() {
    let mut two = pod("web-0", operating("Restart"));
    let mut containers = two.spec.containers.to_vec();
    containers.push(containers[0].clone());
    containers[1].name = "side".into();
    containers[0].image = "app:2".into();
    two.spec.containers = containers.into();
    let mut status = two.status.container_statuses[0].clone();
    status.name = "side".into();
    two.status.container_statuses.push(status);
    let former = json!({ "id": "0123456789ab", "image": "app:1" });
    let before = json!({ "app": former, "side": former }).to_string();
    let info = json!({ "Method": "ImageReference", "Before": before });
    let plan = plan_job(&observe(
        job_in_progress("Restart", info, json!({})),
        &[two],
    ));
    let spec = patches(&plan)[0].spec.clone().unwrap();
    let changed: Vec<&str> = spec["containers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|container| container["image"].is_string())
        .filter_map(|container| container["name"].as_str())
        .collect();
    assert_eq!(changed, ["side"]);
}

#[test]
fn request_that_was_created_is_not_created_again() {
    let before = json!({ "app": { "id": "0123456789ab", "image": "app:1" } }).to_string();
    let plan_with = |info: Value, state: Option<RequestState>| {
        let mut all = json!({ "Method": "ContainerRecreateRequest", "Before": before });
        json_patch::merge(&mut all, &info);
        let job = job_in_progress("Restart", all, json!({}));
        let mut observed = observe(job, &[pod("web-0", operating("Restart"))]);
        observed.recreate_requests = [("uid-web-0".to_owned(), state)].into();
        plan_job(&observed)
    };
    let first = plan_with(json!({}), None);
    assert!(matches!(
        first.actions[..],
        [TargetAction::CreateRequest { .. }]
    ));
    let seen = plan_with(json!({}), Some(RequestState::InProgress));
    let request = detail(&seen).extra_info["Request"].clone();
    let gone = plan_with(json!({ "Request": request }), None);
    assert_eq!((reason(&gone), gone.actions.len()), ("RestartFailed", 0));
    // The container has not become ready when OpenKruise deletes the finished request.
    let ended = plan_with(json!({}), Some(RequestState::Succeeded));
    assert_eq!(detail(&ended).extra_info["RequestEnded"], "true");
    let waiting = plan_with(json!({ "Request": request, "RequestEnded": "true" }), None);
    assert_eq!((reason(&waiting), waiting.actions.len()), ("", 0));
}

#[test]
fn conditions_tell_the_end_and_the_partition() {
    let conditions = |part: Value, pods: &[Pod]| {
        let plan = plan_job(&observe(job("Replace", &["web-0", "web-1"], part), pods));
        let conditions = plan.status.unwrap().conditions.into_iter();
        conditions
            .map(|c| format!("{} {} {}", c.type_, c.status, c.reason))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        conditions(json!({}), &[pod("web-0", json!({}))]),
        ["Ready False Progressing"]
    );
    let held = json!({ "spec": { "partition": 0 } });
    assert_eq!(conditions(held, &[]), ["Ready True PartitionReached"]);
    let ended = |progress: &str| {
        let detail = |name: &str, progress: &str| {
            json!({ "name": name, "progress": progress, "startTime": START, "endTime": START,
                "extraInfo": { "Released": "true" } })
        };
        json!({ "status": { "targetDetails": [detail("web-0", "Succeeded"), detail("web-1", progress)] } })
    };
    assert_eq!(
        conditions(ended("Succeeded"), &[]),
        ["Ready True Succeeded"]
    );
    let failed = ["Ready False TargetsFailed", "Stalled True TargetsFailed"];
    assert_eq!(conditions(ended("Failed"), &[]), failed);
}
