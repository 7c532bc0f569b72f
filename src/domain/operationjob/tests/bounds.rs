//! What a job does at the bounds of its status.

use serde_json::json;

use super::*;

#[test]
fn bounded_number_of_targets_is_in_progress() {
    let names: Vec<String> = (0..400).map(|n| format!("web-{n}")).collect();
    let pods: Vec<Pod> = names[1..].iter().map(|name| pod(name, json!({}))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut observed = observe(job("Replace", &names, json!({})), &pods);
    observed.live_names = [("web-0".to_owned(), LiveName::Absent)].into();
    let status = plan_job(&observed).status.unwrap();
    let details = &status.target_details;
    let begun = details
        .iter()
        .filter(|detail| detail.progress == Some(Progress::Processing));
    assert_eq!((begun.count(), status.failed_pod_count), (300, 1));
    let last =
        |status: &OperationJobStatus| status.target_details[399].extra_info["Waiting"].clone();
    assert_eq!(last(&status), "a place among the 300 targets in progress");
    let mut job = OperationJob::clone(&observed.job);
    let mut status = status.clone();
    status.target_details[1].progress = Some(Progress::Failed);
    job.status = Some(status);
    observed.job = Arc::new(job);
    let status = plan_job(&observed).status.unwrap();
    assert!(last(&status).contains("1 of them have failed and are not released"));
}

/// The CustomResourceDefinition is that of Kuperator, which drops the conditions.
#[test]
fn finalizer_is_removed_although_conditions_are_not_stored() {
    let mut done = job("Replace", &["web-0"], ended());
    let mut status = plan_job(&observe(done.clone(), &[])).status.unwrap();
    status.conditions.clear();
    done.status = Some(status);
    assert!(plan_job(&observe(done.clone(), &[])).remove_finalizer);
    done.status.as_mut().unwrap().target_details[0].end_time = None;
    done.status.as_mut().unwrap().progress = Some(Progress::Processing);
    assert!(!plan_job(&observe(done, &[])).remove_finalizer);
}

fn ended() -> Value {
    json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Succeeded", "startTime": START, "endTime": START }] } })
}

/// A target `web-<n>` whose restart has begun, with a note of its containers of so many bytes.
fn restarting(n: usize, note: usize) -> Value {
    let name = format!("web-{n}");
    let mut info = json!({ "PodUID": format!("uid-{name}") });
    if note > 0 {
        info["Method"] = json!("ImageReference");
        info["Before"] = json!("x".repeat(note));
    }
    json!({ "name": name, "progress": "Processing", "startTime": START, "extraInfo": info })
}

#[test]
fn notes_of_containers_are_bounded() {
    let plan_with = |notes: usize| {
        let details = [restarting(0, 0), restarting(1, notes)];
        let job = job(
            "Restart",
            &["web-0", "web-1"],
            json!({ "status": { "targetDetails": details } }),
        );
        let mut observed = observe(
            job,
            &[pod("web-0", operating("Restart")), pod("web-1", json!({}))],
        );
        observed.restart.method = RestartMethod::ImageReference;
        plan_job(&observed)
    };
    let note = detail(&plan_with(0)).extra_info["Before"].len();
    assert!(
        detail(&plan_with((256 << 10) - note))
            .extra_info
            .contains_key("Before")
    );
    let full = plan_with((256 << 10) - note + 1);
    assert!(!detail(&full).extra_info.contains_key("Before"));
    assert!(detail(&full).extra_info["Waiting"].contains("status"));
}

#[test]
fn pod_whose_containers_have_no_room_in_the_status_fails_at_once() {
    let mut large = pod("web-0", json!({}));
    let mut containers = large.spec.containers.to_vec();
    containers[0].image = format!("{}:1", "x".repeat(32 << 10));
    large.spec.containers = containers.into();
    let plan = plan_job(&observe(job("Restart", &["web-0"], json!({})), &[large]));
    assert_eq!(reason(&plan), "RestartNotSupported");
}
