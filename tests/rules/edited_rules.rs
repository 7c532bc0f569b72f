//! Which answers of endpoints an edit of the rule object voids.

use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::endpoint::{Reply, RuleServer};
use testbed::{Bed, wait};

use crate::helpers::{RuleScope, ask, webhook_status};

#[tokio::test]
async fn editing_a_neighbour_keeps_answers_and_tasks() {
    let scope = Bed::shared().await.scope("neighbour").await;
    let server = RuleServer::start(|request| match request.method.as_str() {
        "POST" => Reply::task("t"),
        _ => Reply::Json(json!({"success": true, "message": "at work"})),
    })
    .await;
    let labels = json!({"requires": {"matchLabels": {"free": "yes"}}});
    let check = json!({"name": "labels", "stage": "PostCheck", "labelCheck": labels});
    let pods = scope.deployed("web", 1).await;
    let rules = json!([
        check,
        ask(server.polled(json!({"timeoutSeconds": 600})), json!({}))
    ]);
    scope.create_rule("web", rules).await;
    scope.begin_under_rule("web", &pods[0], "x").await;
    scope.until_reason("web", &pods[0], "ask", "at work").await;
    for round in 0..5 {
        let requires = json!({"matchLabels": {"free": format!("yes-{round}")}});
        scope
            .edit_rule("web", json!({"labelCheck": {"requires": requires}}))
            .await;
        let polls = server.polls().len();
        wait::until("a further poll", async || server.polls().len() > polls).await;
    }
    assert_eq!(server.asked().len(), 1, "the task goes on");
    server.answer(|_| Reply::Json(json!({"success": true, "finished": true})));
    scope.until_past_precheck(&pods[0], "x").await;
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn editing_the_rule_itself_voids_its_answers() {
    let scope = Bed::shared().await.scope("itself").await;
    let server = RuleServer::start(|_| Reply::task("t")).await;
    let pods = scope.deployed("web", 1).await;
    let rules = json!([ask(
        server.polled(json!({"timeoutSeconds": 600})),
        json!({})
    )]);
    scope.create_rule("web", rules).await;
    scope.begin_under_rule("web", &pods[0], "x").await;
    scope
        .until_status("web", "a task", |s: &RuleStatus| {
            !webhook_status(s, "ask").task_states.is_empty()
        })
        .await;
    let parameters = json!([{"key": "why", "value": "new"}]);
    scope
        .edit_rule("web", json!({"webhook": {"parameters": parameters}}))
        .await;
    wait::until("the endpoint is asked anew", async || {
        server.asked().len() == 2
    })
    .await;
}
