//! The real `kubectl drain`.

use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

#[tokio::test]
async fn drain_finishes_within_the_budget() {
    let bed = Bed::shared().await;
    let scope = bed.scope("drain").await;
    bed.deploy_web_for_drain(&scope, 10).await;
    scope.rule("web", json!({"app": "web"}), json!("30%")).await;
    scope.until_at_rest("web", 10).await;
    let observer = Observer::start(&scope).await;
    let output = bed.drain_web(&scope, 10).await;
    assert_eq!(output.matches(" evicted\n").count(), 10, "{output}");
    assert!(output.contains("the limit is 3"), "{output}");
    observer.fewest_available(|_| true, 10).await.at_least(7);
}
