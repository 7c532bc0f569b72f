//! webhook rules whose endpoint answers with a task and is polled.

use std::collections::BTreeSet;

use kube::api::DeleteParams;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::endpoint::{Heard, Reply, RuleServer};
use testbed::{Bed, Scope, wait};

use crate::helpers::{RuleScope, ask, waits, webhook_status};

const RUNNING: &str = "still running";

/// Starts a task on each POST, and answers each poll that the task runs.
fn running(request: &Heard) -> Reply {
    match request.method.as_str() {
        "POST" => Reply::task("task 1&2"),
        _ => Reply::Json(json!({"success": true, "message": RUNNING})),
    }
}

/// Pods under a rule that polls the server for an hour.
async fn polled_pods(scope: &Scope, server: &RuleServer, count: usize) -> Vec<String> {
    let pods = scope.deployed("web", count).await;
    let config = server.polled(json!({"timeoutSeconds": 3600}));
    let rule = ask(config, json!({"failurePolicy": "Fail"}));
    scope.create_rule("web", json!([rule])).await;
    pods
}

#[tokio::test]
async fn task_is_polled_until_all_have_passed() {
    let server = RuleServer::start(running).await;
    let scope = Bed::shared().await.scope("polled").await;
    let pods = scope.deployed("web", 2).await;
    // See contract Q19: a URL that has a query, and an ID that must be escaped.
    let config = server.polled(json!({"url": server.url("/poll?kind=x"), "rawQueryKey": "id"}));
    scope
        .create_rule("web", json!([ask(config, json!({}))]))
        .await;
    for pod in &pods {
        scope.begin(pod, "x").await.unwrap();
    }
    for pod in &pods {
        scope.until_reason("web", pod, "ask", RUNNING).await;
    }
    let targets: BTreeSet<_> = server.polls().into_iter().map(|h| h.target).collect();
    assert_eq!(targets, ["/poll?kind=x&id=task%201%262".to_owned()].into());
    let tasks = webhook_status(&scope.status::<RuleStatus>("web").await, "ask").task_states;
    let processing = tasks.iter().flat_map(|t| t.processing.iter().cloned());
    assert_eq!(
        processing.collect::<BTreeSet<_>>(),
        pods.iter().cloned().collect()
    );

    let first = pods[0].clone();
    server.answer(move |request| match request.method.as_str() {
        "POST" => running(request),
        _ => Reply::Json(
            json!({"success": true, "message": "half", "finishedNames": [first, "stranger"]}),
        ),
    });
    scope.until_past_precheck(&pods[0], "x").await;
    scope.until_reason("web", &pods[1], "ask", "half").await;
    server.answer(|_| Reply::Json(json!({"success": true, "finished": true})));
    scope.until_past_precheck(&pods[1], "x").await;
    for pod in &pods {
        assert_eq!(server.times(pod), 1, "asked about once, then polled");
    }
    scope
        .until_status("web", "the task in the history", |s: &RuleStatus| {
            let status = webhook_status(s, "ask");
            status.task_states.is_empty() && status.history.iter().any(|t| t.task_id == "task 1&2")
        })
        .await;
}

#[tokio::test]
async fn stopped_and_endless_tasks_are_requested_anew() {
    let server = RuleServer::start(running).await;
    let scope = Bed::shared().await.scope("stopped").await;
    let pods = scope.deployed("web", 1).await;
    let config = server.polled(json!({"timeoutSeconds": 3}));
    scope
        .create_rule("web", json!([ask(config, json!({}))]))
        .await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope
        .until_status("web", "a task that timed out", |s: &RuleStatus| {
            let history = webhook_status(s, "ask").history;
            history
                .iter()
                .any(|t| t.message.starts_with("Polling Timeout."))
        })
        .await;
    wait::until("a second POST", async || server.times(&pods[0]) > 1).await;
    assert!(waits(&scope.get(&pods[0]).await, "x"));

    server.answer(|request| match request.method.as_str() {
        "POST" => running(request),
        _ => Reply::Json(json!({"success": false, "stop": true, "message": "given up"})),
    });
    scope
        .until_status("web", "a task that was stopped", |s: &RuleStatus| {
            let history = webhook_status(s, "ask").history;
            history.iter().any(|t| t.message == "given up")
        })
        .await;
    assert!(waits(&scope.get(&pods[0]).await, "x"));
    server.answer(|_| Reply::pass());
    scope.until_past_precheck(&pods[0], "x").await;
}

#[tokio::test]
async fn polls_that_fail_are_repeated() {
    let server = RuleServer::start(|request| match request.method.as_str() {
        "POST" => Reply::task("t"),
        _ => Reply::Close,
    })
    .await;
    let scope = Bed::shared().await.scope("poll-fails").await;
    let pods = polled_pods(&scope, &server, 1).await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope
        .until_reason("web", &pods[0], "ask", "Polling failed")
        .await;
    server.answer(|_| Reply::Json(json!({"success": true, "finished": true})));
    scope.until_past_precheck(&pods[0], "x").await;
    assert_eq!(server.times(&pods[0]), 1);
}

#[tokio::test]
async fn rule_edited_during_poll_is_called_anew() {
    let server = RuleServer::start(running).await;
    let other = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("edited").await;
    let pods = polled_pods(&scope, &server, 1).await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_reason("web", &pods[0], "ask", RUNNING).await;
    scope
        .edit_rule("web", json!({"webhook": {"clientConfig": other.config()}}))
        .await;
    scope.until_past_precheck(&pods[0], "x").await;
    assert_eq!((server.times(&pods[0]), other.times(&pods[0])), (1, 1));
    let history = webhook_status(&scope.status::<RuleStatus>("web").await, "ask").history;
    assert!(
        history
            .iter()
            .any(|t| t.message == "Ended: the rule has changed."),
        "{history:?}"
    );
}

#[tokio::test]
async fn rule_deleted_during_poll_releases_its_pods() {
    let server = RuleServer::start(running).await;
    let scope = Bed::shared().await.scope("deleted").await;
    let pods = polled_pods(&scope, &server, 1).await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_reason("web", &pods[0], "ask", RUNNING).await;
    scope
        .rules()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    scope.until_past_precheck(&pods[0], "x").await;
    scope.operate(&pods[0], "x").await;
    scope.until_idle(&pods[0]).await;
    // No replica polls for a deleted rule.
    let mut before = server.polls().len();
    wait::until("three seconds without a poll", async || {
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let now = server.polls().len();
        std::mem::replace(&mut before, now) == now
    })
    .await;
}

/// See contract Q8: the leader is killed during a poll.
#[tokio::test]
async fn next_leader_continues_poll_without_repeating_calls() {
    let bed = Bed::own().await;
    let server = RuleServer::start(running).await;
    let scope = bed.scope("killed").await;
    let pods = polled_pods(&scope, &server, 3).await;
    // One Pod has passed this rule and still waits for the other rule. Two Pods are in a task.
    let first = pods[0].clone();
    server.answer(move |request| match request.method.as_str() {
        "POST" => Reply::Json(
            json!({"success": true, "poll": true, "taskId": "t", "finishedNames": [first]}),
        ),
        _ => running(request),
    });
    for pod in &pods {
        scope.begin(pod, "x").await.unwrap();
    }
    scope.until_past_precheck(&pods[0], "x").await;
    for pod in &pods[1..] {
        scope.until_reason("web", pod, "ask", RUNNING).await;
    }
    let asked = server.asked().len();
    let leader = bed.leader().await;
    bed.kill(leader).await;
    let polls = server.polls().len();
    wait::until("polls by another leader", async || {
        bed.leader().await != leader && server.polls().len() > polls + 1
    })
    .await;
    server.answer(|request| match request.method.as_str() {
        "POST" => Reply::refuse("asked twice"),
        _ => Reply::Json(json!({"success": true, "finished": true})),
    });
    for pod in &pods {
        scope.until_past_precheck(pod, "x").await;
    }
    assert_eq!(server.asked().len(), asked, "nothing is asked twice");
    let tasks: BTreeSet<_> = server.polls().into_iter().map(|h| h.target).collect();
    assert!(tasks.len() <= 2, "{tasks:?}");
}
