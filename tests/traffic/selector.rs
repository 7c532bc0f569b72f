//! Services that select other Pods than before.

use operating::api::keys;
use serde_json::json;
use testbed::{Scope, wait};

use crate::bed::TrafficBed;
use crate::fixtures::{Employer, edge, names};
use crate::sets::{Set, label};

/// When the selector changes from one set of Pods to another, the former Pods stay on traffic until as many of the new
/// ones serve, and an operation on one of them takes it off at once.
#[tokio::test]
async fn former_pods_serve_until_the_selected_ones_do() {
    let (bed, _alone) = crate::bed::alone().await;
    let scope = bed.bed.scope("traffic-selector").await;
    let select = |app: &str| json!({ "spec": { "selector": { "app": app } } });
    let web = Employer::new(&scope, "web", edge()).await;
    web.edit(select("blue")).await;
    let blue = Set::new(&scope, "blue", 3, json!({})).await;
    let green = Set::new(&scope, "green", 3, json!({})).await;
    web.consistent(3).await;
    let (blue, green) = (names(&blue).await, names(&green).await);
    let serving = || {
        let mut names = bed.http.serving(&scope.namespace);
        names.sort();
        names
    };
    // The load balancer refuses one of the new Pods.
    bed.http.state().refused_pods = [green[0].clone()].into();
    web.edit(select("green")).await;
    let report = web.until("the reason", |r| r.failed == 1 && r.draining == 3);
    let report = report.await;
    let stays = report.waiting.iter().filter(|waiting| {
        blue.contains(&waiting.pod) && waiting.message.starts_with("traffic stays on")
    });
    assert_eq!(stays.count(), 3, "{report:?}");
    let five = [&blue[..], &green[1..]].concat();
    assert_eq!(serving(), five);
    scope.begin(&blue[0], "manual").await.unwrap();
    // Two are left, and two of the new Pods serve.
    web.marks(&blue[0], (false, false)).await;
    wait::until("the former Pods to go", async || serving() == green[1..]).await;
    bed.http.state().refused_pods.clear();
    web.consistent(3).await;
    assert_eq!(serving(), green);
}

/// A Service that selects `blue` and drains for an hour. The second of its two ports does not get healthy.
async fn blue_with_a_pending_port<'a>(bed: &TrafficBed, scope: &'a Scope) -> Employer<'a> {
    bed.http.state().pending_groups.insert("admin".to_owned());
    let mut part = edge();
    part["metadata"]["annotations"][keys::CONSIST_DRAIN_SECONDS] = json!("3600");
    part["spec"] = json!({
        "selector": { "app": "blue" },
        "ports": [
            { "name": "http", "port": 80, "targetPort": 8080 },
            { "name": "admin", "port": 81, "targetPort": 8081 },
        ],
    });
    Employer::new(scope, "web", part).await
}

/// One of two ports does not get healthy: the Pod gets requests and is not protected. When the selector leaves it, an
/// operation still waits until it is off.
#[tokio::test]
async fn operation_waits_for_an_unprotected_pod_that_left_the_selection() {
    let (bed, _alone) = crate::bed::alone().await;
    let scope = bed.bed.scope("traffic-left-half").await;
    let web = blue_with_a_pending_port(bed, &scope).await;
    let blue = Set::unsettled(&scope, "blue", 1, json!({})).await;
    let _green = Set::new(&scope, "green", 1, json!({})).await;
    web.until("the members", |r| (r.registered, r.pending) == (1, 1))
        .await;
    let blue = names(&blue).await;
    bed.http.state().connections = 3;
    web.edit(json!({ "spec": { "selector": { "app": "green" } } }))
        .await;
    web.until("the change", |report| {
        let mut waiting = report.waiting.iter();
        waiting.any(|waiting| waiting.message.starts_with("traffic stays on"))
    })
    .await;
    let begun = scope.begin(&blue[0], "manual").await.unwrap();
    assert!(web.protects(&begun), "{begun:?}");
    bed.http.state().connections = 0;
    web.marks(&blue[0], (false, false)).await;
    assert!(!bed.http.serving(&scope.namespace).contains(&blue[0]));
}

/// Pods that are available already come into the selection, and one of two ports does not get healthy. They get both marks
/// before they are registered, so an operation waits until they are off, also when the selection has left them.
#[tokio::test]
async fn operation_waits_for_an_available_pod_that_was_selected_for_a_while() {
    let (bed, _alone) = crate::bed::alone().await;
    let scope = bed.bed.scope("traffic-left-available").await;
    let web = blue_with_a_pending_port(bed, &scope).await;
    web.consistent(0).await;
    let green = Set::new(&scope, "green", 1, json!({})).await;
    let green = names(&green).await;
    let select = |app: &str| json!({ "spec": { "selector": { "app": app } } });
    web.edit(select("green")).await;
    web.until("the members", |r| (r.registered, r.pending) == (1, 1))
        .await;
    let pod = web.marks(&green[0], (true, true)).await;
    assert!(label(&pod, keys::SERVICE_AVAILABLE).is_some());
    bed.http.state().connections = 3;
    web.edit(select("blue")).await;
    web.until("the drain", |report| report.draining > 0).await;
    let begun = scope.begin(&green[0], "manual").await.unwrap();
    assert!(web.protects(&begun), "{begun:?}");
    bed.http.state().connections = 0;
    web.marks(&green[0], (false, false)).await;
    assert!(!bed.http.serving(&scope.namespace).contains(&green[0]));
}
