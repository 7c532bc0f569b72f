//! What a target that has failed leaves on its Pod: nothing that the job asked for.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;

#[test]
fn refused_release_is_told() {
    let failed = json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Failed", "startTime": START,
        "endTime": START, "extraInfo": { "PodUID": "uid-web-0" } }] } });
    let labels = json!({ (keys::TO_REPLACE): "operationjob" });
    let job = job("Replace", &["web-0"], failed);
    let mut observed = observe(job, &[pod("web-0", labels)]);
    observed.refused = [("uid-web-0".to_owned(), "no".to_owned())].into();
    let plan = plan_job(&observed);
    assert!(detail(&plan).extra_info["Waiting"].contains("refuses a request: no"));
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

#[test]
fn refused_image_does_not_keep_pod_in_its_operation() {
    let before = json!({ "app": { "id": "0123456789ab", "image": "app:1" } }).to_string();
    let info = json!({ "PodUID": "uid-web-0", "Method": "ImageReference", "Before": before });
    let failed = json!({ "status": { "targetDetails": [{ "name": "web-0", "progress": "Failed", "startTime": START,
        "endTime": START, "extraInfo": info }] } });
    let mut patched = pod("web-0", operating("Restart"));
    let mut containers = patched.spec.containers.to_vec();
    containers[0].image = format!("app:1@sha256:{}", "a".repeat(64));
    patched.spec.containers = containers.into();
    let mut observed = observe(job("Restart", &["web-0"], failed), &[patched]);
    assert!(patches(&plan_job(&observed))[0].spec.is_some());
    observed.refused = [("uid-web-0".to_owned(), "no".to_owned())].into();
    let plan = plan_job(&observed);
    assert!(patches(&plan)[0].spec.is_none());
    assert!(!patches(&plan)[0].labels.is_empty());
}
