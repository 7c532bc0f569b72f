//! How a replacement ends.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

#[test]
fn replaced_pod_is_known_by_the_note_on_its_new_pod() {
    let job = |info: Value| {
        let mut all = json!({ "CollaSet": "web", "CollaSetUID": "set" });
        json_patch::merge(&mut all, &info);
        job_in_progress("Replace", all, json!({}))
    };
    let mut new = pod("web-1", json!({ (keys::INSTANCE_ID): "1" }));
    let note = (keys::REPLACED_UID.to_owned(), "uid-web-0".to_owned());
    new.metadata.annotations.extend([note]);
    let mut observed = observe(job(json!({})), &[new.clone()]);
    observed.unmanaged = [("uid-web-0".to_owned(), None)].into();
    let plan = plan_job(&observed);
    assert_eq!(detail(&plan).progress, Some(Progress::Succeeded));
    assert_eq!(detail(&plan).extra_info["NewPod"], "web-1");
    new.metadata.labels.remove(keys::SERVICE_AVAILABLE);
    let plan = plan_job(&observe(job(json!({})), &[new]));
    assert!(detail(&plan).extra_info["Waiting"].contains("web-1 to be available"));
    // Kuperator has noted only the name.
    let kuperator = json!({ "CollaSet": null, "CollaSetUID": null, "NewPod": "web-2" });
    let kuperator = without_uid(job(kuperator));
    let mut observed = observe(kuperator, &[pod("web-2", json!({}))]);
    observed.unmanaged = [("web-0".to_owned(), None)].into();
    let plan = plan_job(&observed);
    assert_eq!(detail(&plan).progress, Some(Progress::Succeeded));
    let plan = plan_job(&observe(job(json!({})), &[]));
    assert_eq!(reason(&plan), "PodNotFound");
}

#[test]
fn scaled_in_pair_is_not_waited_for() {
    let info = json!({
        "CollaSet": "web", "CollaSetUID": "set", "InstanceID": "0", "NewPod": "web-1", "NewInstanceID": "1",
    });
    let mut observed = observe(job_in_progress("Replace", info, json!({})), &[]);
    let mut set = crate::api::collaset::CollaSet::default();
    set.metadata.name = Some("web".into());
    set.metadata.uid = Some("set".into());
    observed.sets = vec![Arc::new(set)];
    observed.instance_ids = [("web".to_owned(), ["1".to_owned()].into())].into();
    assert_eq!(reason(&plan_job(&observed)), "");
    observed.instance_ids = [("web".to_owned(), ["7".to_owned()].into())].into();
    assert_eq!(reason(&plan_job(&observed)), "PodNotFound");
}

/// A target that Kuperator has started.
fn without_uid(mut job: OperationJob) -> OperationJob {
    let status = job.status.as_mut().unwrap();
    let info = &mut status.target_details[0].extra_info;
    info.remove("PodUID");
    job
}

/// The old Pod `web-0` is not among the managed Pods, and its new Pod `web-1` serves. `found` is the old Pod as a live read
/// has found it, by UID or name.
fn plan_with_unmanaged_origin(
    change: fn(OperationJob) -> OperationJob,
    found: Option<(&str, Option<Pod>)>,
) -> JobPlan {
    let info = json!({ "CollaSet": "web", "CollaSetUID": "set", "NewPod": "web-1" });
    let mut new = pod("web-1", json!({ (keys::INSTANCE_ID): "1" }));
    let note = (keys::REPLACED_UID.to_owned(), "uid-web-0".to_owned());
    new.metadata.annotations.extend([note]);
    let job = change(job_in_progress("Replace", info, json!({})));
    let mut observed = observe(job, &[new]);
    let found = found.map(|(key, pod)| (key.to_owned(), pod.map(Arc::new)));
    observed.unmanaged = found.into_iter().collect();
    plan_job(&observed)
}

fn unmanaged_origin(finalizers: &[&str]) -> Pod {
    let mut origin = pod("web-0", json!({ (keys::TO_REPLACE): "operationjob" }));
    origin.metadata.labels.remove(keys::CONTROL);
    origin.metadata.finalizers = finalizers.iter().map(|f| (*f).to_owned()).collect();
    origin
}

#[test]
fn replacement_succeeds_only_when_the_old_pod_is_gone() {
    let plan = plan_with_unmanaged_origin(|job| job, None);
    let read = TargetAction::ReadUnmanaged {
        name: "web-0".into(),
        uid: Some("uid-web-0".into()),
    };
    assert_eq!(plan.actions, [read]);
    assert_eq!(detail(&plan).progress, Some(Progress::Processing));
    let plan = plan_with_unmanaged_origin(|job| job, Some(("uid-web-0", None)));
    assert_eq!(detail(&plan).progress, Some(Progress::Succeeded));
    let lives = Some(("uid-web-0", Some(unmanaged_origin(&[]))));
    let plan = plan_with_unmanaged_origin(|job| job, lives);
    assert_eq!(reason(&plan), "NotManaged");
    assert!(
        plan.add_finalizer || !plan.remove_finalizer,
        "it is released"
    );
}

#[test]
fn terminating_unmanaged_origin_loses_the_finalizer_of_kuperator() {
    let mut origin = unmanaged_origin(&[keys::REPLACE_PROTECTED_FINALIZER]);
    origin.metadata.deletion_timestamp = Some(NOW.into());
    let plan = plan_with_unmanaged_origin(|job| job, Some(("uid-web-0", Some(origin))));
    assert_eq!(
        patches(&plan)[0].remove_finalizers,
        [keys::REPLACE_PROTECTED_FINALIZER]
    );
    assert_eq!(detail(&plan).progress, Some(Progress::Processing));
}

#[test]
fn unmanaged_origin_of_kuperator_is_known_by_its_finalizer() {
    let plan = |found| plan_with_unmanaged_origin(without_uid, found);
    assert_eq!(plan(None).actions.len(), 1, "it is read");
    let held = unmanaged_origin(&[keys::REPLACE_PROTECTED_FINALIZER]);
    assert_eq!(reason(&plan(Some(("web-0", Some(held))))), "NotManaged");
    let stranger = plan(Some(("web-0", Some(unmanaged_origin(&[])))));
    assert_eq!(detail(&stranger).progress, Some(Progress::Succeeded));
}
