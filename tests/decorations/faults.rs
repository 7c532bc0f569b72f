//! PodDecorations that can't be used: the server goes on, and so do all other sets.

use std::time::Duration;

use kube::ResourceExt;
use operating::api::collaset::CollaSet;
use operating::api::poddecoration::PodDecoration;
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::{Bed, Scope};

use crate::fixtures::{Decoration, condition, object, side_images};
use crate::sets::{Set, until_condition_false};

/// A spec whose selector the CRD takes and nobody can compile.
fn uncompilable() -> Value {
    json!({ "selector": { "matchLabels": null, "matchExpressions": [{ "key": "app", "operator": "In" }] } })
}

/// Waits until both conditions of a PodDecoration say that it can't be used.
async fn until_invalid(decoration: &Decoration<'_>, field: &str) {
    let object = decoration.until_condition("Ready", "False", field).await;
    assert_eq!(condition(&object, "Ready").unwrap().reason, "Invalid");
    let stalled = condition(&object, "Stalled").unwrap();
    assert_eq!((&*stalled.status, &*stalled.reason), ("True", "Invalid"));
}

#[tokio::test]
async fn stored_faults_stop_neither_server_nor_other_sets() {
    let bed = Bed::own().await;
    let scope = bed.scope("stored-faults").await;
    bed.without_server().await;
    let rollout = json!({ "updateStrategy": { "rollingUpdate": uncompilable() } });
    let patch = json!({ "template": { "metadata": [
        { "patchPolicy": "MergePatchJson", "annotations": { "conf": "{" } },
    ] } });
    for (name, part) in [
        ("selector", uncompilable()),
        ("rollout", rollout),
        ("patch", patch),
    ] {
        scope.store::<PodDecoration>(object(name, part)).await;
    }
    bed.with_server().await;

    let other = Set::new(&scope, "other", 2, json!({})).await;
    assert_eq!(other.pods().await.len(), 2);
    let template = json!({ "metadata": { "annotations": { "conf": r#"{"a":1}"# } } });
    let web = Set::unsettled(&scope, "web", 2, json!({ "template": template })).await;
    for (name, field) in [
        ("selector", "spec.selector"),
        ("rollout", "spec.updateStrategy.rollingUpdate.selector"),
    ] {
        until_invalid(&Decoration::named(&scope, name), field).await;
    }
    // Nothing is wrong with this decoration until a Pod is made of it.
    until_condition_false(&web, "Scale", "ScaleOutFailed", "PodDecoration patch").await;
    let patch = Decoration::named(&scope, "patch");
    patch.until_condition("Stalled", "True", "web").await;
    assert_eq!(web.pods().await.len(), 0);
    // Correction helps without a restart.
    patch
        .edit(json!({ "template": { "metadata": null } }))
        .await;
    Decoration::named(&scope, "rollout")
        .edit(json!({ "updateStrategy": null }))
        .await;
    web.settled().await;
    patch.settled().await;
    let pods = web.pods().await;
    assert_eq!(side_images(&pods), [Some("side:1"); 2]);
    other.image("app:2").await;
    other.settled().await;
    bed.assert_all_run().await;
}

#[tokio::test]
async fn decorated_pod_keeps_decoration_that_became_invalid() {
    let bed = Bed::own().await;
    let scope = bed.scope("became-invalid").await;
    let log = Decoration::new(&scope, "log", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    bed.without_server().await;
    let patch = kube::api::Patch::Merge(json!({ "spec": uncompilable() }));
    let params = kube::api::PatchParams::default();
    log.api.patch("log", &params, &patch).await.unwrap();
    bed.with_server().await;
    until_invalid(&log, "spec.selector").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    set.settled().await;
    assert_eq!(
        crate::sets::uids(&set.pods().await),
        crate::sets::uids(&before)
    );
    // The next Pod of the instance has it, too.
    let lost = set.pod(0).await;
    scope.delete(&lost.name_any()).await.unwrap();
    scope.until_gone(&lost).await;
    set.settled().await;
    assert_eq!(side_images(&set.pods().await), [Some("side:1"); 2]);
    bed.assert_all_run().await;
}

/// Number of Pods of a set that have ever existed.
async fn created(observer: &Observer, set: &Set<'_>) -> usize {
    let versions = observer.versions().await;
    let of_set = versions
        .iter()
        .filter(|pod| pod.name_any().starts_with(set.name));
    let uids: std::collections::BTreeSet<_> = of_set.filter_map(ResourceExt::uid).collect();
    uids.len()
}

/// Waits until a set can't be scaled out for a reason with these texts, while another set in the namespace goes on.
async fn until_not_made(scope: &Scope, texts: &[&str], template: Value) {
    let observer = Observer::start(scope).await;
    let web = Set::unsettled(scope, "web", 2, json!({ "template": template })).await;
    let other = Set::new(scope, "other", 2, json!({})).await;
    for text in texts {
        until_condition_false(&web, "Scale", "ScaleOutFailed", text).await;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(created(&observer, &web).await, 0);
    other.edit(json!({ "replicas": 3 })).await;
    other.settled().await;
}

#[tokio::test]
async fn json_patch_onto_text_creates_no_pod() {
    let scope = Bed::shared().await.scope("not-json").await;
    let merge = json!({ "template": { "metadata": [
        { "patchPolicy": "MergePatchJson", "annotations": { "conf": r#"{"b":2}"# } },
    ] } });
    let log = Decoration::new(&scope, "log", merge).await;
    let template = json!({ "metadata": { "annotations": { "conf": "plain text" } } });
    until_not_made(&scope, &["PodDecoration log", "conf"], template).await;
    log.until_condition("Stalled", "True", "web").await;

    let web = Set::named(&scope, "web");
    web.edit(json!({ "template": { "metadata": { "annotations": { "conf": r#"{"a":1}"# } } } }))
        .await;
    web.settled().await;
    let conf = &web.pod(0).await.annotations()["conf"].clone();
    let conf: Value = serde_json::from_str(conf).unwrap();
    assert_eq!(conf, json!({ "a": 1, "b": 2 }));
    let is_over =
        |object: &PodDecoration| condition(object, "Stalled").is_none_or(|c| c.status == "False");
    log.until("it to be no longer stalled", is_over).await;
}

#[tokio::test]
async fn overwritten_selector_label_of_set_creates_no_pod() {
    let scope = Bed::shared().await.scope("overwritten").await;
    let tier = json!({ "app": "web", "tier": "front" });
    let part = json!({
        "selector": { "matchLabels": { "app": null, "tier": "front" } },
        "template": { "metadata": [{ "patchPolicy": "Overwrite", "labels": { "app": "stolen" } }] },
    });
    let log = Decoration::new(&scope, "log", part).await;
    let template = json!({ "metadata": { "labels": tier } });
    until_not_made(&scope, &["PodDecoration log", "app"], template).await;
    let names_it = |set: &CollaSet| json!(set.status).to_string().contains("ScaleOutFailed");
    let web = Set::named(&scope, "web");
    assert!(names_it(&web.get().await));
    log.edit(json!({ "template": { "metadata": null } })).await;
    web.settled().await;
    assert_eq!(side_images(&web.pods().await), [Some("side:1"); 2]);
}

/// On running Pods, the same decoration changes nothing.
#[tokio::test]
async fn overwritten_selector_label_of_set_leaves_running_pods() {
    let scope = Bed::shared().await.scope("overwritten-live").await;
    let template = json!({ "metadata": { "labels": { "app": "web", "tier": "front" } } });
    let set = Set::new(&scope, "web", 2, json!({ "template": template })).await;
    let before = crate::sets::uids(&set.pods().await);
    let part = json!({
        "selector": { "matchLabels": { "app": null, "tier": "front" } },
        "template": { "metadata": [{ "patchPolicy": "Overwrite", "labels": { "app": "stolen" } }] },
    });
    Decoration::new(&scope, "log", part).await;
    until_condition_false(&set, "Update", "UpdateFailed", "log").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = set.pods().await;
    assert_eq!(crate::sets::uids(&after), before);
    assert!(after.values().all(|pod| pod.labels()["app"] == "web"));
}
