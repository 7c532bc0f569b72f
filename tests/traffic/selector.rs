//! Services that select other Pods than before.

use serde_json::json;
use testbed::wait;

use crate::fixtures::{Employer, edge, names};
use crate::sets::Set;

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
