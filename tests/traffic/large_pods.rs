//! Pods that are too large for the cache, which knows neither their addresses nor whether they are ready.

use serde_json::json;

use crate::bed::alone;
use crate::fixtures::{Employer, edge};

/// Bytes of a Pod that no cache keeps whole.
const TOO_LARGE: usize = 100 << 10;

#[tokio::test]
async fn pod_that_the_cache_does_not_keep_is_not_taken_off() {
    let (bed, _alone) = alone().await;
    let scope = bed.bed.scope("traffic-large").await;
    let web = Employer::new(&scope, "web", edge()).await;
    let pod = |name: &'static str| {
        let labels = json!({ "app": "web" });
        scope.pod(name, json!({ "metadata": { "labels": labels } }))
    };
    pod("web-0").await;
    web.consistent(1).await;
    let note = "x".repeat(TOO_LARGE);
    let patch = json!({ "metadata": { "annotations": { "note": note } } });
    scope.patch("web-0", patch).await.unwrap();
    // When a later Pod serves, the leader has looked at the large one, too.
    pod("web-1").await;
    web.consistent(2).await;
    assert_eq!(bed.http.serving(&scope.namespace), ["web-0", "web-1"]);
    assert!(web.protects(&scope.get("web-0").await));
    assert!(bed.http.state().cut.is_empty());
}
