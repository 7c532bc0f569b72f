//! How fast an update proceeds.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use operating::api::keys;
use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Set, condition, label};

/// The times at which a Pod became Ready and was made available, by its condition and its label.
fn ready_and_available(pod: &Pod) -> Option<(Timestamp, Timestamp)> {
    let status = pod.status.as_ref()?;
    let ready = status
        .conditions
        .iter()
        .flatten()
        .find(|c| c.type_ == "Ready")?;
    let since = ready
        .last_transition_time
        .as_ref()
        .filter(|_| ready.status == "True")?;
    let available = label(pod, keys::SERVICE_AVAILABLE)?.parse().ok()?;
    Some((since.0, Timestamp::from_nanosecond(available).ok()?))
}

fn waited(pod: &Pod, seconds: i64) -> bool {
    let times = ready_and_available(pod);
    times.is_some_and(|(ready, available)| available.duration_since(ready).as_secs() >= seconds)
}

#[tokio::test]
async fn pod_is_available_after_min_ready_seconds() {
    let scope = Bed::shared().await.scope("min-ready").await;
    let set = Set::new(&scope, "web", 2, json!({ "minReadySeconds": 4 })).await;
    let revision = set.get().await.status.unwrap().updated_revision;
    for pod in set.pods().await.values() {
        assert!(waited(pod, 4), "{pod:?}");
    }
    // The time starts again after an in-place update.
    set.image("app:2").await;
    set.settled().await;
    for pod in set.pods().await.values() {
        assert!(waited(pod, 4), "{pod:?}");
    }
    // `minReadySeconds` is not part of the template, so Pods that are created from now on do not wait.
    let updated = set.get().await.status.unwrap().updated_revision;
    assert_ne!(updated, revision);
    set.edit(json!({ "minReadySeconds": null })).await;
    let is_annotated = |pod: &Pod| pod.annotations().contains_key(keys::MIN_READY_SECONDS);
    set.until_pods("not to wait", |pods| !pods.values().any(is_annotated))
        .await;
    assert_eq!(
        set.settled().await.status.unwrap().updated_revision,
        updated
    );
}

/// The Pod loses Ready and regains it before any watch shows the loss.
#[tokio::test]
async fn briefly_unready_pod_restarts_min_ready_seconds() {
    let scope = Bed::shared().await.scope("flap").await;
    let set = Set::new(&scope, "web", 1, json!({ "minReadySeconds": 4 })).await;
    let name = set.pod(0).await.name_any();
    let since = Timestamp::from_second(Timestamp::now().as_second() + 1).unwrap();
    let ready =
        json!({ "type": "Ready", "status": "True", "lastTransitionTime": since.to_string() });
    let flap = Patch::Strategic(json!({ "status": { "conditions": [ready] } }));
    let params = PatchParams::default();
    let flapped = scope.pods().patch_status(&name, &params, &flap).await;
    flapped.unwrap();
    let is_labelled = |pod: &Pod| label(pod, keys::SERVICE_AVAILABLE).is_some();
    let is_unavailable = |pod: &Pod| !is_labelled(pod);
    scope
        .until_pod(&name, "to be unavailable", is_unavailable)
        .await;
    let back = scope.until_pod(&name, "to be available", is_labelled).await;
    assert!(waited(&back, 4), "{back:?}");
    assert_eq!(ready_and_available(&back).unwrap().0, since);
}

#[tokio::test]
async fn update_without_progress_is_stalled_at_its_deadline() {
    let scope = Bed::shared().await.scope("deadline").await;
    let set = Set::new(&scope, "web", 2, json!({ "progressDeadlineSeconds": 5 })).await;
    set.image("app:non-exist").await;
    let stalled = |set: &operating::api::collaset::CollaSet| {
        condition(set, "Stalled").is_some_and(|c| c.reason == "ProgressDeadlineExceeded")
    };
    let late = set.until("the deadline", stalled).await;
    let message = &condition(&late, "Stalled").unwrap().message;
    assert!(message.contains("progressDeadlineSeconds"), "{message}");
    set.image("app:3").await;
    let done = set.settled().await;
    assert!(condition(&done, "Stalled").is_none());
    assert_eq!(done.status.unwrap().last_progress_time, None);
}

#[tokio::test]
async fn waiting_for_a_rule_is_not_stalled() {
    let scope = Bed::shared().await.scope("no-deadline").await;
    let set = Set::new(&scope, "web", 2, json!({ "progressDeadlineSeconds": 2 })).await;
    set.hold().await;
    set.image("app:2").await;
    let waits = |set: &operating::api::collaset::CollaSet| {
        condition(set, "Ready").is_some_and(|c| {
            c.message
                .contains("waits for rule hold of PodTransitionRule hold: ")
        })
    };
    set.until("the rule to be named", waits).await;
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    let waiting = set.get().await;
    assert!(
        condition(&waiting, "Stalled").is_none(),
        "{:?}",
        waiting.status
    );
    set.release().await;
    set.settled().await;
}

#[tokio::test]
async fn no_more_than_max_unavailable_are_down_for_an_update() {
    for policy in ["InPlaceIfPossible", "Recreate"] {
        let scope = Bed::shared().await.scope("max-unavailable").await;
        let strategy = json!({ "podUpgradePolicy": policy, "maxUnavailable": "40%" });
        let set = Set::new(&scope, "web", 6, json!({ "updateStrategy": strategy })).await;
        let observer = Observer::start(&scope).await;
        set.image("app:2").await;
        set.settled().await;
        assert_eq!(set.images().await, ["app:2"; 6]);
        let fewest = observer.fewest_available(|_| true, 6).await;
        fewest.at_least(4);
        assert!(fewest.count < 6, "the observer saw the update");
    }
}

#[tokio::test]
async fn replace_update_creates_at_most_max_surge_pods() {
    let scope = Bed::shared().await.scope("max-surge").await;
    let strategy = json!({ "podUpgradePolicy": "Replace", "maxSurge": 2 });
    let set = Set::new(&scope, "web", 6, json!({ "updateStrategy": strategy })).await;
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 6]);
    let mut alive = std::collections::BTreeSet::new();
    let mut most = 0;
    for (uid, pod) in observer.by_uid().await {
        let going = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
        match pod.filter(|pod| !going(pod)) {
            Some(_) => alive.insert(uid),
            None => alive.remove(&uid),
        };
        most = most.max(alive.len());
    }
    assert!((7..=8).contains(&most), "{most}");
}
