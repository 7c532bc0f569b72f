//! The real `kubectl drain`.

use serde_json::json;
use testbed::Bed;
use testbed::observer::Observer;

#[tokio::test]
async fn drain_finishes_within_the_budget() {
    let bed = Bed::shared().await;
    let scope = bed.scope("drain").await;
    // All Pods run on one node, so the drain evicts all of them.
    let _ = bed.ask_kubectl(&["cordon", "worker-1"]).await.success();
    scope
        .deploy(
            "web",
            10,
            json!({"metadata": {"labels": {"drain": scope.namespace}}}),
        )
        .await;
    scope.all_available("app=web", 10).await;
    let _ = bed.ask_kubectl(&["uncordon", "worker-1"]).await.success();
    scope.rule("web", json!({"app": "web"}), json!("30%")).await;
    scope.until_at_rest("web", 10).await;
    let observer = Observer::start(&scope).await;
    let selector = format!("--pod-selector=drain={}", scope.namespace);
    let output = bed
        .ask_kubectl(&["drain", "worker-0", &selector, "--timeout=400s"])
        .await
        .success()
        .text();
    // The last Pod is recreated after the drain has ended.
    let pods = scope.all_available("app=web", 10).await;
    let _ = bed.ask_kubectl(&["uncordon", "worker-0"]).await.success();

    assert_eq!(output.matches(" evicted\n").count(), 10, "{output}");
    assert!(output.contains("the limit is 3"), "{output}");
    assert!(
        pods.iter()
            .all(|p| p.spec.as_ref().unwrap().node_name.as_deref() == Some("worker-1"))
    );
    observer.fewest_available(|_| true, 10).await.at_least(7);
}
