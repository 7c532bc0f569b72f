//! An adapter that is not in the configuration any more while Pods have marks of its Services.

use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::{Scope, wait};

use crate::bed::{TrafficBed, alone};
use crate::fixtures::{Employer, names, serving_by};
use crate::sets::{Set, label};

fn members(bed: &TrafficBed, scope: &Scope) -> usize {
    let state = bed.http.state();
    let keys = state.members.keys();
    keys.filter(|key| key.0 == scope.namespace).count()
}

#[tokio::test]
async fn pods_keep_marks_and_members_while_their_adapter_is_not_configured() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-removed").await;
    let (web, set) = serving_by(&scope, "passing", 2).await;
    let pods = names(&set).await;
    bed.roll_out(&["passing"]).await;
    let report = web
        .until("the error", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(error.contains("is named \"passing\""), "{error}");
    scope.begin(&pods[0], "manual").await.unwrap();
    set.edit(json!({ "replicas": 3 })).await;
    let new = wait::value("an available new Pod", async || {
        let all = scope.list("app=web").await.into_iter();
        let mut new = all.filter(|pod| !pods.contains(pod.metadata.name.as_ref().unwrap()));
        new.find(testbed::pods::is_available)
    })
    .await;
    assert!(!web.protects(&new) && !web.is_expected(&new));
    let waiting = scope.get(&pods[0]).await;
    assert!(web.protects(&waiting) && web.is_expected(&waiting));
    assert!(label(&waiting, &Family::Operate.key("manual")).is_none());
    web.marks(&pods[1], (true, true)).await;
    assert_eq!(bed.http.serving(&scope.namespace), pods);

    bed.roll_out(&[]).await;
    web.marks(&pods[0], (true, false)).await;
    scope.finish(&pods[0], "manual").await.unwrap();
    web.consistent(3).await;
}

/// A Service that names no adapter loses the default. What was registered must not be forgotten.
#[tokio::test]
async fn pods_keep_marks_while_the_servers_have_no_default() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-no-default").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let pods = names(&set).await;
    for pod in &pods {
        web.marks(pod, (true, true)).await;
    }
    bed.write("traffic.yaml", &json!({ "default": "none" }).to_string());
    bed.restart_all().await;
    let report = web.until("the error", |report| report.last_error.is_some());
    let error = report.await.last_error.unwrap();
    assert!(
        error.contains("no adapter manages this Service any more"),
        "{error}"
    );
    scope.begin(&pods[0], "manual").await.unwrap();
    web.marks(&pods[1], (true, true)).await;
    let waiting = web.marks(&pods[0], (true, true)).await;
    assert!(label(&waiting, &Family::Operate.key("manual")).is_none());
    // Without the label, nobody waits any more.
    web.edit(json!({ "metadata": { "labels": { (keys::CONTROL): null } } }))
        .await;
    web.marks(&pods[1], (false, false)).await;
    web.marks(&pods[0], (false, false)).await;
    bed.roll_out(&[]).await;
}

#[tokio::test]
async fn deleted_service_of_an_adapter_that_is_not_configured_leaves_its_members() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-orphans").await;
    let (web, set) = serving_by(&scope, "passing", 2).await;
    let pods = names(&set).await;
    bed.roll_out(&["passing"]).await;
    web.until("the error", |report| report.last_error.is_some())
        .await;
    web.delete().await;
    web.gone().await;
    for name in &pods {
        web.marks(name, (false, false)).await;
    }
    assert_eq!(members(bed, &scope), 2, "nobody could remove them");
    wait::until("the Event", async || {
        let failures = web.failures().await;
        failures.iter().any(|text| text.contains("stay registered"))
    })
    .await;
    scope.all_available("app=web", 2).await;
    bed.roll_out(&[]).await;
}
