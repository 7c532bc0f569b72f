//! failurePolicy Ignore passes only a Pod whose own call failed.

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::endpoint::{Reply, RuleServer};
use testbed::{Bed, wait};

use crate::helpers::{RuleScope, ask, spec, waits};

/// Asserts that a rule with this policy lets the Pod pass or keeps it waiting.
fn ignoring() -> serde_json::Value {
    json!({"failurePolicy": "Ignore"})
}

#[tokio::test]
async fn failing_polls_let_no_other_pod_pass_unasked() {
    let scope = Bed::shared().await.scope("lost-task").await;
    let server = RuleServer::start(|request| match &request.names()[..] {
        [] => Reply::Raw(404, "", String::new()), // a poll
        [name] if name == "long" => Reply::task("t"),
        _ => Reply::refuse("not you"),
    })
    .await;
    // The server polls exactly the path that it calls.
    let mut config = server.polled(json!({"url": server.url("/check")}));
    config["poll"]["timeoutSeconds"] = json!(600);
    for name in ["long", "late"] {
        let labels = json!({"metadata": {"labels": {"app": "web"}}});
        scope.pod(name, labels).await;
        scope.until_idle(name).await;
    }
    scope
        .create_rule("web", json!([ask(config, ignoring())]))
        .await;
    scope.begin_under_rule("web", "long", "x").await;
    wait::until("polls that fail", async || server.polls().len() > 6).await;
    scope.begin("late", "x").await.unwrap();
    scope.until_reason("web", "late", "ask", "not you").await;
    let pod = scope.get("late").await;
    assert!(waits(&pod, "x"), "{:?}", pod.labels());
}

#[tokio::test]
async fn wrong_url_path_passes_no_pod_of_another_rule() {
    let scope = Bed::shared().await.scope("wrong-path").await;
    let server = RuleServer::start(|request| match &request.target[..] {
        "/wrong" => Reply::Raw(404, "", String::new()),
        _ => Reply::refuse("not you"),
    })
    .await;
    let wrong = json!({"url": server.url("/wrong"), "caBundle": server.ca_bundle});
    for (name, config) in [("wrong", wrong), ("right", server.config())] {
        scope.pod(name, json!({})).await;
        scope.until_idle(name).await;
        let rules = json!([ask(config, ignoring())]);
        scope.try_rule(name, spec(name, rules)).await.unwrap();
    }
    scope.begin_under_rule("wrong", "wrong", "x").await;
    for _ in 0..7 {
        scope.until_past_precheck("wrong", "x").await;
        scope.operate("wrong", "x").await;
        scope.until_idle("wrong").await;
        scope.begin("wrong", "x").await.unwrap();
    }
    scope.begin_under_rule("right", "right", "x").await;
    scope.until_reason("right", "right", "ask", "not you").await;
    assert!(waits(&scope.get("right").await, "x"));
}

#[tokio::test]
async fn ignored_pass_shows_in_event_condition_and_metric() {
    let bed = Bed::shared().await;
    let scope = bed.scope("told").await;
    let server = RuleServer::start(|_| Reply::Raw(500, "", String::new())).await;
    let pods = scope.deployed("web", 1).await;
    scope
        .create_rule("web", json!([ask(server.config(), ignoring())]))
        .await;
    scope.begin_under_rule("web", &pods[0], "x").await;
    scope.until_past_precheck(&pods[0], "x").await;
    let answers = async |wanted: Option<&str>| {
        scope
            .until_status("web", &format!("{wanted:?}"), |s: &RuleStatus| {
                let mut all = s.conditions.iter();
                let found = all.find(|c| c.type_ == "EndpointsAnswer");
                found.map(|c| c.reason.as_str()) == wanted
            })
            .await;
    };
    answers(Some("PassedByIgnore")).await;
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    for kind in ["PodTransitionRule", "Pod"] {
        wait::until(&format!("an Event about the {kind}"), async || {
            let all = events.list(&ListParams::default()).await.unwrap().items;
            all.iter().any(|e| {
                let about = e.regarding.as_ref().and_then(|r| r.kind.as_deref());
                let note = e.note.as_deref().unwrap_or_default();
                e.reason.as_deref() == Some("PassedByIgnore")
                    && about == Some(kind)
                    && note.contains("rule ask")
                    && note.contains("the answer is 500")
            })
        })
        .await;
    }
    let series = format!(
        "operating_rule_passed_by_ignore_total{{namespace=\"{}\",object=\"web\",rule=\"ask\"}} 1",
        scope.namespace
    );
    let scrapes = bed.scrapes().await;
    assert!(
        scrapes.iter().any(|text| text.contains(&series)),
        "{series}"
    );
    // An answer of the endpoint ends the condition.
    server.answer(|_| Reply::pass());
    scope.operate(&pods[0], "x").await;
    scope.until_idle(&pods[0]).await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_past_precheck(&pods[0], "x").await;
    answers(None).await;
}
