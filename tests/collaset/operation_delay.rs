//! `operationDelaySeconds`: the time between the permission to operate on a Pod and the operation. The tests compare
//! the times that the API server and the webhook wrote.

use k8s_openapi::api::core::v1::Pod;
use operating::api::keys::Family;
use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

use crate::fixtures::{Set, image, label};

const DELAY: i64 = 3;

/// The second in which the lifecycle allowed the operation on a Pod.
fn allowed_at(pod: &Pod) -> Option<i64> {
    let nanos: i64 = label(pod, &Family::Operate.key("collaset"))?
        .parse()
        .unwrap();
    Some(nanos / 1_000_000_000)
}

#[tokio::test]
async fn update_waits_for_its_delay() {
    let scope = Bed::shared().await.scope("delay").await;
    let delay = json!({ "updateStrategy": { "operationDelaySeconds": DELAY } });
    let set = Set::new(&scope, "web", 1, delay).await;
    let observer = Observer::start(&scope).await;
    set.image("app:2").await;
    set.settled().await;
    let versions = observer.versions().await;
    let allowed = versions.iter().find_map(allowed_at).unwrap();
    let changed = versions.iter().find(|p| image(p) == "app:2").unwrap();
    let writes = changed.metadata.managed_fields.iter().flatten();
    let written = writes
        .filter_map(|w| Some(w.time.as_ref()?.0.as_second()))
        .max()
        .unwrap();
    assert!(written >= allowed + DELAY, "{written} after {allowed}");
}

#[tokio::test]
async fn scale_in_waits_for_delay_of_its_own() {
    let scope = Bed::shared().await.scope("delay-scale").await;
    let delay = json!({
        "updateStrategy": { "operationDelaySeconds": 3600 },
        "scaleStrategy": { "operationDelaySeconds": DELAY },
    });
    let set = Set::new(&scope, "web", 2, delay).await;
    let observer = Observer::start(&scope).await;
    set.edit(json!({ "replicas": 1 })).await;
    set.settled().await;
    let versions = observer.versions().await;
    let allowed = versions.iter().find_map(allowed_at).unwrap();
    let terminating = versions
        .iter()
        .find(|p| p.metadata.deletion_timestamp.is_some())
        .unwrap();
    // The deletion timestamp is the end of the grace period.
    let over = terminating
        .metadata
        .deletion_timestamp
        .as_ref()
        .unwrap()
        .0
        .as_second();
    let asked = over - terminating.metadata.deletion_grace_period_seconds.unwrap();
    assert!(asked >= allowed + DELAY, "{asked} after {allowed}");
}
