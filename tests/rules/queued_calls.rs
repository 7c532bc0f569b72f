//! Calls that wait for a permit while other calls are slow.

use std::sync::Arc;

use serde_json::json;
use testbed::endpoint::{Reply, RuleServer};
use testbed::{Bed, wait};
use tokio::sync::Notify;

use crate::helpers::{RuleScope, ask, spec};

/// Concurrent calls of one namespace to one endpoint.
const AT_ONCE: usize = 4;

#[tokio::test]
async fn no_endpoint_is_asked_about_an_operation_that_is_over() {
    let scope = Bed::shared().await.scope("queued").await;
    let slow = Arc::new(Notify::new());
    let answer_now = Arc::clone(&slow);
    let server = RuleServer::start(
        move |request| match request.names()[0].starts_with("slow") {
            true => Reply::CloseAfter(Arc::clone(&answer_now)),
            false => Reply::pass(),
        },
    )
    .await;
    let begin = async |name: &str| {
        scope.pod(name, json!({})).await;
        scope.until_idle(name).await;
        let rules = json!([ask(server.config(), json!({"failurePolicy": "Ignore"}))]);
        scope.try_rule(name, spec(name, rules)).await.unwrap();
        scope.begin_under_rule(name, name, "x").await;
    };
    for n in 0..AT_ONCE {
        begin(&format!("slow-{n}")).await;
    }
    wait::until("all places are taken", async || {
        server.asked().len() == AT_ONCE
    })
    .await;
    for name in ["gone", "kept"] {
        begin(name).await;
    }
    // The leader collects operations for a moment before it asks for a permit.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    // The Pod and its rule stay, so only the second check before the call can find out that the operation is over.
    scope.finish("gone", "x").await.unwrap();
    scope.until_idle("gone").await;
    assert_eq!(server.asked().len(), AT_ONCE);
    slow.notify_waiters();
    scope.until_past_precheck("kept", "x").await;
    assert_eq!(server.times("gone"), 0);
}
