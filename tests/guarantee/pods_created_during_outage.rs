//! Pods that were created while every replica was down, so that no webhook has seen them.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Patch;
use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::pods::{has_label, is_available, is_idle, may_operate, service_ready};
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

const ID: &str = "upgrade";

fn has_gate(pod: &Pod) -> bool {
    pod.spec.as_ref().unwrap().readiness_gates.is_some()
}

/// A Pod of the site with a cooperator, whose finalizer must be present before the Pod counts as available.
fn protected(finalizer: &str) -> Value {
    let expected = json!({"expectedFinalizers": {"Gateway/shop/web": finalizer}}).to_string();
    json!({"metadata": {
        "labels": {"site": "web"},
        "finalizers": [finalizer],
        "annotations": {keys::AVAILABLE_CONDITIONS: expected},
    }})
}

#[tokio::test]
async fn pod_created_during_outage_is_counted_held_and_operated() {
    let bed = Bed::own().await;
    let scope = bed.scope("missed").await;
    let unruled = bed.scope("unruled").await;
    let site = json!({"metadata": {"labels": {"site": "web"}}});
    scope.pod("gated", site.clone()).await;
    let gated = scope.until_pod("gated", "available", is_available).await;
    assert!(has_gate(&gated));
    scope.rule("web", json!({"site": "web"}), json!(1)).await;
    scope.until_at_rest("web", 1).await;

    bed.kill_all().await;
    let finalizer = format!("{}/cooperator", keys::PROTECTION_FINALIZER_PREFIX);
    scope.pod("late", protected(&finalizer)).await;
    let mut unmanaged = site.clone();
    unmanaged["metadata"]["labels"][keys::CONTROL] = Value::Null;
    scope.pod("adopted", unmanaged).await;
    let adopt = json!({keys::CONTROL: keys::CONTROL_VALUE});
    // In a namespace with a rule no Pod becomes managed without a review. Elsewhere even a begin passes.
    let unseen = refusal(scope.label("adopted", adopt.clone()).await);
    assert!(
        unseen.message.contains("failed calling webhook"),
        "{unseen:?}"
    );
    unruled.pod("late", json!({})).await;
    let begun = unruled.begin("late", ID).await.unwrap();
    assert!(
        !has_label(&begun, &Family::PreCheck.key(ID))
            && !has_label(&begun, &Family::Preparing.key(ID))
    );
    for index in 0..3 {
        bed.restart(index).await;
    }

    // Counted.
    scope.label("adopted", adopt).await.unwrap();
    for name in ["late", "adopted"] {
        let pod = scope.until_pod(name, "available", is_available).await;
        assert!(!has_gate(&pod));
    }
    scope.until_at_rest("web", 3).await;
    // Held.
    scope.begin("gated", ID).await.unwrap();
    assert_held(&scope, &["late", "adopted"]).await;
    scope
        .until_pod("gated", "operate", |p| may_operate(p, ID))
        .await;
    scope.finish("gated", ID).await.unwrap();
    scope.until_pod("gated", "online again", is_idle).await;
    scope.until_at_rest("web", 3).await;

    // Operated.
    operate_while_finalizer_is_missing(&scope, &finalizer).await;
    wait::until("the place to be free again", async || {
        scope.delete("adopted").await.is_ok()
    })
    .await;

    // The operation whose begin no webhook saw proceeds.
    unruled
        .until_pod("late", "operate", |p| {
            has_label(p, &Family::Operate.key(ID))
        })
        .await;
    unruled.finish("late", ID).await.unwrap();
    unruled.until_pod("late", "online again", is_idle).await;
}

/// While the budget is used up, every disruption of these Pods is denied.
async fn assert_held(scope: &Scope, names: &[&str]) {
    let image = json!({"spec": {"containers": [{"name": "main", "image": "web:2"}]}});
    let image = Patch::Strategic(image);
    for &name in names {
        let pods = scope.pods();
        let in_place = pods.patch(name, &Default::default(), &image).await;
        for outcome in [
            scope.delete(name).await,
            scope.evict(name).await,
            in_place.map(drop),
        ] {
            let full = refusal(outcome);
            assert!(
                full.code == 429
                    && full
                        .message
                        .contains("1 of 3 Pods are unavailable, the limit is 1"),
                "{full:?}"
            );
        }
    }
}

/// Operates on the Pod `late`, which has no readiness gate: the operation waits until the finalizer of the cooperator
/// is gone, and ends after the finalizer is back (contract Q3).
async fn operate_while_finalizer_is_missing(scope: &Scope, finalizer: &str) {
    let begun = scope.begin("late", ID).await.unwrap();
    assert!(
        has_label(&begun, &Family::Preparing.key(ID)),
        "{:?}",
        begun.labels()
    );
    assert!(!begun.labels().contains_key(keys::SERVICE_AVAILABLE));
    let touched = scope.label("late", json!({"touch": "1"})).await.unwrap();
    assert!(
        !has_label(&touched, &Family::Operate.key(ID)),
        "{:?}",
        touched.labels()
    );
    assert_eq!(refusal(scope.delete("adopted").await).code, 429);
    let released = json!({"metadata": {"finalizers": null}});
    let released = scope.patch("late", released).await.unwrap();
    assert!(
        has_label(&released, &Family::Operate.key(ID)),
        "{:?}",
        released.labels()
    );
    scope.finish("late", ID).await.unwrap();
    scope
        .until_pod("late", "complete but for its finalizer", |p| {
            has_label(p, &Family::Completing.key(ID))
        })
        .await;
    let restored = json!({"metadata": {"finalizers": [finalizer]}});
    scope.patch("late", restored).await.unwrap();
    let idle = scope.until_pod("late", "online again", is_idle).await;
    assert_eq!(service_ready(&idle), None);
}
