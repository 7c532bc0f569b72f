//! PodOpsLifecycle, from the begin label to the Pod back online.

use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams};
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::{has_label, in_flight, is_available, is_idle, may_operate, service_ready};
use testbed::{Bed, Scope};

const ID: &str = "upgrade";

/// A Deployment `web` of available Pods under a rule `web`, and their names.
async fn web(replicas: usize, max_unavailable: i32) -> (Scope, Vec<String>) {
    let scope = Bed::shared().await.scope("life").await;
    let pods = scope.web_under_rule(replicas, json!(max_unavailable)).await;
    (scope, pods)
}

#[tokio::test]
async fn pod_goes_offline_is_operated_and_comes_back() {
    let (scope, pods) = web(3, 1).await;
    let pod = &pods[0];
    // With free budget the request that begins the operation also grants it.
    let begun = scope.begin(pod, ID).await.unwrap();
    assert!(
        has_label(&begun, &Family::Preparing.key(ID)),
        "{:?}",
        begun.labels()
    );
    assert!(
        has_label(&begun, &Family::PreChecked.key(ID))
            && has_label(&begun, &Family::OperationPermission.key(ID))
    );
    assert!(!has_label(&begun, &Family::PreCheck.key(ID)));
    assert!(!begun.labels().contains_key(keys::SERVICE_AVAILABLE));

    let operate = scope
        .until_pod(pod, "operate", |p| has_label(p, &Family::Operate.key(ID)))
        .await;
    assert_eq!(service_ready(&operate), Some(false));
    assert!(!has_label(&operate, &Family::Preparing.key(ID)));
    // A change in this phase needs no further claim.
    let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
    let image = kube::api::Patch::Strategic(image);
    scope
        .pods()
        .patch(pod, &Default::default(), &image)
        .await
        .unwrap();
    scope
        .until_pod(pod, "the new image", |p| {
            p.status.as_ref().is_some_and(|s| {
                s.container_statuses
                    .iter()
                    .flatten()
                    .all(|c| c.image == "web:2")
            })
        })
        .await;
    scope.finish(pod, ID).await.unwrap();
    let back = scope.until_pod(pod, "online again", is_idle).await;
    assert_eq!(service_ready(&back), Some(true));
    assert_eq!(
        back.status.unwrap().container_statuses.unwrap()[0].restart_count,
        1
    );
    scope.until_at_rest("web", 3).await;
}

#[tokio::test]
async fn waiting_pods_are_granted_in_order_of_their_waiting_time() {
    let (scope, pods) = web(4, 1).await;
    let observer = Observer::start(&scope).await;
    for (index, pod) in pods.iter().enumerate() {
        let begun = scope.begin(pod, ID).await.unwrap();
        assert_eq!(
            has_label(&begun, &Family::Preparing.key(ID)),
            index == 0,
            "{:?}",
            begun.labels()
        );
        assert_eq!(has_label(&begun, &Family::PreCheck.key(ID)), index > 0);
        assert_eq!(
            is_available(&begun),
            index > 0,
            "a Pod that waits stays online"
        );
    }
    scope
        .until_status("web", "three waiting, with the reason", |s: &RuleStatus| {
            let waiting: Vec<_> = s
                .details
                .iter()
                .filter(|d| !d.passed && d.stage == "PreCheck")
                .collect();
            s.waiting_pods == 3
                && waiting.len() == 3
                && waiting.iter().all(|d| {
                    d.reject_info
                        .iter()
                        .any(|r| r.reason.starts_with("blocked by max unavailable"))
                })
        })
        .await;
    for (index, pod) in pods.iter().enumerate() {
        scope
            .until_pod(pod, "operate", |p| may_operate(p, ID))
            .await;
        for waiting in &pods[index + 1..] {
            assert!(
                has_label(&scope.get(waiting).await, &Family::PreCheck.key(ID)),
                "{waiting} overtook {pod}"
            );
        }
        scope.finish(pod, ID).await.unwrap();
    }
    for pod in &pods {
        scope.until_pod(pod, "online again", is_idle).await;
    }
    scope.until_at_rest("web", 4).await;
    observer.fewest_available(|_| true, 4).await.at_least(3);
}

#[tokio::test]
async fn permission_label_in_status_write_grants_nothing() {
    let (scope, pods) = web(3, 1).await;
    scope.begin(&pods[0], ID).await.unwrap();
    let waiting = scope.begin(&pods[1], ID).await.unwrap();
    assert!(has_label(&waiting, &Family::PreCheck.key(ID)));
    let mark = json!({"metadata": {"labels": {
        Family::PreChecked.key(ID): "1", Family::OperationPermission.key(ID): "1",
    }}});
    let patch = Patch::Merge(mark);
    let asked = scope
        .pods()
        .patch_status(&pods[1], &PatchParams::default(), &patch)
        .await
        .unwrap();
    assert!(
        has_label(&asked, &Family::PreCheck.key(ID)),
        "{:?}",
        asked.labels()
    );
    assert!(!has_label(&asked, &Family::PreChecked.key(ID)));
    assert!(is_available(&asked));
    assert_eq!(service_ready(&asked), Some(true));
}

#[tokio::test]
async fn begin_by_status_write_needs_the_budget() {
    let (scope, pods) = web(3, 1).await;
    let begin = json!({"metadata": {"labels": {
        Family::Operating.key(ID): "1", Family::OperationType.key(ID): ID,
    }}});
    let begin = async |pod: &str| {
        let patch = Patch::Merge(&begin);
        let params = PatchParams::default();
        scope
            .pods()
            .patch_status(pod, &params, &patch)
            .await
            .unwrap()
    };
    let first = begin(&pods[0]).await;
    assert!(has_label(&first, &Family::Preparing.key(ID)) && !is_available(&first));
    assert_eq!(service_ready(&first), Some(false));
    let second = begin(&pods[1]).await;
    assert!(has_label(&second, &Family::PreCheck.key(ID)) && is_available(&second));
    assert_eq!(service_ready(&second), Some(true));
    for pod in &pods[..2] {
        scope
            .until_pod(pod, "operate", |p| may_operate(p, ID))
            .await;
        scope.finish(pod, ID).await.unwrap();
    }
    scope.until_at_rest("web", 3).await;
}

#[tokio::test]
async fn grant_takes_the_pod_off_traffic_in_the_same_write() {
    let (scope, pods) = web(3, 1).await;
    scope.begin(&pods[0], ID).await.unwrap();
    scope.begin(&pods[1], ID).await.unwrap();
    let observer = Observer::start(&scope).await;
    scope
        .until_pod(&pods[0], "operate", |p| may_operate(p, ID))
        .await;
    scope.finish(&pods[0], ID).await.unwrap();
    scope
        .until_pod(&pods[1], "operate", |p| may_operate(p, ID))
        .await;
    let versions = observer.by_uid().await.into_iter();
    let mut granted = versions.filter_map(|(_, pod)| {
        pod.filter(|p| p.name_any() == pods[1] && has_label(p, &Family::Preparing.key(ID)))
    });
    let first = granted.next().unwrap();
    assert!(!is_available(&first), "{:?}", first.labels());
    assert_eq!(service_ready(&first), Some(false));
    scope.finish(&pods[1], ID).await.unwrap();
    scope.until_at_rest("web", 3).await;
}

#[tokio::test]
async fn operation_can_be_undone_before_and_after_its_grant() {
    let (scope, pods) = web(3, 1).await;
    let undo = json!({Family::UndoOperationType.key(ID): ID});
    scope.begin(&pods[0], ID).await.unwrap();
    let waiting = scope.begin(&pods[1], ID).await.unwrap();
    assert!(has_label(&waiting, &Family::PreCheck.key(ID)));
    let undone = scope.label(&pods[1], undo.clone()).await.unwrap();
    assert_eq!(in_flight(&undone), Vec::<&String>::new());
    assert!(is_available(&undone));
    scope
        .until_pod(&pods[0], "operate", |p| {
            has_label(p, &Family::Operate.key(ID))
        })
        .await;
    scope.label(&pods[0], undo).await.unwrap();
    scope.until_pod(&pods[0], "online again", is_idle).await;
    scope.until_at_rest("web", 3).await;
}

/// An available Pod of a cooperator that takes traffic off and on by its finalizer.
async fn protected() -> (Scope, serde_json::Value, serde_json::Value) {
    let scope = Bed::shared().await.scope("life").await;
    let finalizer = format!("{}/cooperator", keys::PROTECTION_FINALIZER_PREFIX);
    let expected =
        json!({"expectedFinalizers": {format!("Gateway/{}/web", scope.namespace): finalizer}});
    scope
        .pod(
            "web",
            json!({"metadata": {
                "finalizers": [finalizer],
                "annotations": {keys::AVAILABLE_CONDITIONS: expected.to_string()},
            }}),
        )
        .await;
    scope.until_pod("web", "available", is_available).await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 1).await;
    let off = json!({"metadata": {"finalizers": null}});
    let on = json!({"metadata": {"finalizers": [finalizer]}});
    (scope, off, on)
}

#[tokio::test]
async fn operation_runs_off_traffic_and_pod_counts_when_back() {
    let (scope, off, on) = protected().await;
    scope.begin("web", ID).await.unwrap();
    let preparing = scope
        .until_pod("web", "taken off", |p| service_ready(p) == Some(false))
        .await;
    assert!(
        has_label(&preparing, &Family::Preparing.key(ID))
            && !has_label(&preparing, &Family::Operate.key(ID))
    );
    scope.patch("web", off).await.unwrap();
    scope
        .until_pod("web", "operates", |p| {
            has_label(p, &Family::Operate.key(ID))
        })
        .await;
    scope.finish("web", ID).await.unwrap();
    let completing = scope
        .until_pod("web", "put back on", |p| service_ready(p) == Some(true))
        .await;
    assert!(
        has_label(&completing, &Family::Completing.key(ID)),
        "{:?}",
        completing.labels()
    );
    scope.patch("web", on).await.unwrap();
    scope.until_pod("web", "online again", is_idle).await;
}

/// Begins an operation on the Pod `web`, finishes it off traffic, and waits until it completes. `off` is the patch by
/// which the cooperator takes the Pod off traffic.
async fn until_completing(scope: &Scope, id: &str, off: Value) {
    scope.begin("web", id).await.unwrap();
    scope
        .until_pod("web", "taken off", |p| service_ready(p) == Some(false))
        .await;
    scope.patch("web", off).await.unwrap();
    scope
        .until_pod("web", "operates", |p| {
            has_label(p, &Family::Operate.key(id))
        })
        .await;
    scope.finish("web", id).await.unwrap();
    scope
        .until_pod("web", "completes", |p| {
            has_label(p, &Family::Completing.key(id))
        })
        .await;
}

/// See contract Q1.
#[tokio::test]
async fn operation_that_begins_while_another_completes_wedges_neither() {
    let (scope, off, on) = protected().await;
    until_completing(&scope, "first", off).await;
    scope.begin("web", "second").await.unwrap();
    scope
        .until_pod("web", "second operates", |p| {
            has_label(p, &Family::Operate.key("second"))
        })
        .await;
    scope.finish("web", "second").await.unwrap();
    scope
        .until_pod("web", "put back on", |p| service_ready(p) == Some(true))
        .await;
    scope.patch("web", on).await.unwrap();
    scope.until_pod("web", "online again", is_idle).await;
    scope.until_at_rest("web", 1).await;
}

/// See contract Q2.
#[tokio::test]
async fn operation_begun_again_while_completing_starts_anew() {
    let (scope, off, on) = protected().await;
    until_completing(&scope, ID, off).await;
    let again = scope.begin("web", ID).await.unwrap();
    for past in [
        Family::Completing,
        Family::Operated,
        Family::PostChecked,
        Family::DoneOperationType,
    ] {
        assert!(!has_label(&again, &past.key(ID)), "{:?}", again.labels());
    }
    scope
        .until_pod("web", "operates again", |p| {
            has_label(p, &Family::Operate.key(ID))
        })
        .await;
    scope.finish("web", ID).await.unwrap();
    scope
        .until_pod("web", "put back on", |p| service_ready(p) == Some(true))
        .await;
    scope.patch("web", on).await.unwrap();
    let idle = scope.until_pod("web", "online again", is_idle).await;
    assert_eq!(in_flight(&idle), Vec::<&String>::new());
    // The labels of the two earlier runs do not let a third run pass a rule that allows no disruption.
    scope.rule("closed", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("closed", 1).await;
    let third = scope.begin("web", ID).await.unwrap();
    assert!(
        has_label(&third, &Family::PreCheck.key(ID)) && is_available(&third),
        "{:?}",
        third.labels()
    );
}

#[tokio::test]
async fn labelled_pods_are_deleted_through_lifecycle_within_budget() {
    let (scope, pods) = web(4, 1).await;
    let observer = Observer::start(&scope).await;
    let old: Vec<_> = scope.list("app=web").await;
    for pod in &pods[..3] {
        scope
            .label(pod, json!({keys::TO_DELETE: "1"}))
            .await
            .unwrap();
    }
    for pod in old.iter().filter(|p| pods[..3].contains(&p.name_any())) {
        scope.until_gone(pod).await;
    }
    scope.all_available("app=web", 4).await;
    scope.until_at_rest("web", 4).await;
    observer.fewest_available(|_| true, 4).await.at_least(3);
}

#[tokio::test]
async fn deleting_a_rule_frees_the_pods_that_wait_for_it() {
    let (scope, pods) = web(2, 0).await;
    let waiting = scope.begin(&pods[0], ID).await.unwrap();
    assert!(has_label(&waiting, &Family::PreCheck.key(ID)));
    scope
        .rules()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    scope
        .until_pod(&pods[0], "operate", |p| {
            has_label(p, &Family::Operate.key(ID))
        })
        .await;
    scope.finish(&pods[0], ID).await.unwrap();
    scope.until_pod(&pods[0], "online again", is_idle).await;
    scope.delete(&pods[1]).await.unwrap();
}
