//! What a job does at the bounds of its status.

use super::*;

#[test]
fn bounded_number_of_targets_is_in_progress() {
    let names: Vec<String> = (0..400).map(|n| format!("web-{n}")).collect();
    let pods: Vec<Pod> = names[1..].iter().map(|name| pod(name, json!({}))).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut observed = observe(job("Replace", &names, json!({})), &pods);
    observed.live_names = [("web-0".to_owned(), LiveName::Absent)].into();
    let status = plan_job(&observed).status.unwrap();
    let details = status.target_details.iter();
    let begun = details.filter(|detail| detail.progress == Some(Progress::Processing));
    assert_eq!((begun.count(), status.failed_pod_count), (300, 1));
}
