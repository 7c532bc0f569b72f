//! Several rules of several kinds, and several operations, on one Pod.

use kube::ResourceExt;
use operating::api::keys::Family;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::json;
use testbed::endpoint::{Reply, RuleServer};
use testbed::pods::may_operate;
use testbed::{Bed, wait};

use crate::helpers::{RuleScope, ask, is_past_precheck, reason, waits};

/// See contract Q14: one ID in PreCheck and another in PostCheck, each with rules of its own.
#[tokio::test]
async fn concurrent_stages_are_judged_by_their_own_rules() {
    let (before, after) = (RuleServer::passing().await, RuleServer::passing().await);
    let scope = Bed::shared().await.scope("stages").await;
    let pods = scope.deployed("web", 1).await;
    let pod = &pods[0];
    after.answer(|_| Reply::refuse("not after"));
    let mut done = ask(after.config(), json!({}));
    (done["name"], done["stage"]) = (json!("done"), json!("PostCheck"));
    let asked = ask(before.config(), json!({"failurePolicy": "Fail"}));
    scope.create_rule("web", json!([done, asked])).await;
    scope.begin(pod, "first").await.unwrap();
    scope.operate(pod, "first").await;
    scope
        .until_status("web", "first in PostCheck", |s: &RuleStatus| {
            reason(s, pod, "PostCheck", "done").is_some_and(|why| why == "not after")
        })
        .await;
    before.answer(|_| Reply::refuse("not before"));
    scope.begin(pod, "second").await.unwrap();
    scope
        .until_status("web", "both stages", |s: &RuleStatus| {
            reason(s, pod, "PostCheck", "done").is_some_and(|why| why == "not after")
                && reason(s, pod, "PreCheck", "ask").is_some_and(|why| why == "not before")
        })
        .await;
    assert!(before.asked().iter().all(|h| h.body.get("stage").is_none()));
    assert!(after.asked().iter().all(|h| h.body["stage"] == "PostCheck"));

    after.answer(|_| Reply::pass());
    scope
        .until_pod(pod, "first is through", |p| {
            !p.labels().contains_key(&Family::PostCheck.key("first"))
                && p.labels().contains_key(&Family::PreCheck.key("second"))
        })
        .await;
    before.answer(|_| Reply::pass());
    scope.operate(pod, "second").await;
    scope.until_idle(pod).await;
}

/// The server asks the endpoint first and takes the claim last. A Pod that the endpoint holds takes no claim, and the
/// endpoint is not asked about a Pod without free budget.
#[tokio::test]
async fn pod_held_by_endpoint_uses_no_budget() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("budget").await;
    let pods = scope.deployed("web", 3).await;
    let filter = json!({"labelSelector": {"matchLabels": {"asked": "yes"}}});
    let mut rule = ask(server.config(), json!({"failurePolicy": "Fail"}));
    rule["filter"] = filter;
    let rules = json!([{"name": "budget", "availablePolicy": {"maxUnavailableValue": 1}}, rule]);
    scope.create_rule("web", rules).await;
    scope.until_at_rest("web", 3).await;
    server.answer(|_| Reply::refuse("not yet"));
    scope
        .label(&pods[0], json!({"asked": "yes"}))
        .await
        .unwrap();
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_reason("web", &pods[0], "ask", "not yet").await;
    let allowed = scope.status::<RuleStatus>("web").await.disruptions_allowed;
    assert_eq!(allowed, Some(1), "the Pod that waits takes nothing");
    scope.begin(&pods[1], "x").await.unwrap();
    scope.until_past_precheck(&pods[1], "x").await;

    // The budget is used up: no call is made about the Pods that wait for it, and none of them passes.
    scope
        .label(&pods[2], json!({"asked": "yes"}))
        .await
        .unwrap();
    scope
        .until_status("web", "no room", |s: &RuleStatus| {
            s.disruptions_allowed == Some(0)
        })
        .await;
    server.answer(|_| Reply::pass());
    scope.begin(&pods[2], "x").await.unwrap();
    scope
        .until_reason(
            "web",
            &pods[2],
            "budget",
            "blocked by max unavailable policy",
        )
        .await;
    let asked = server.times(&pods[2]);
    assert_eq!(asked, 0);
    for pod in [&pods[0], &pods[2]] {
        assert!(waits(&scope.get(pod).await, "x"));
    }

    scope.operate(&pods[1], "x").await;
    // The retry of the refused Pod decides which Pod is next.
    futures::future::join_all([&pods[0], &pods[2]].map(async |pod| {
        scope.operate(pod, "x").await;
        scope.until_idle(pod).await;
    }))
    .await;
}

#[tokio::test]
async fn rules_of_every_kind_hold_until_all_pass() {
    let server = RuleServer::start(|_| Reply::refuse("closed today")).await;
    let scope = Bed::shared().await.scope("kinds").await;
    let pods = scope.deployed("web", 2).await;
    let labels =
        json!({"name": "fit", "labelCheck": {"requires": {"matchLabels": {"fit": "yes"}}}});
    let budget = json!({"name": "budget", "availablePolicy": {"maxUnavailableValue": 1}});
    scope
        .create_rule("web", json!([ask(server.config(), json!({})), labels]))
        .await;
    scope
        .try_rule("budget", crate::helpers::spec("web", json!([budget])))
        .await
        .unwrap();
    scope.begin(&pods[0], "x").await.unwrap();
    scope
        .until_reason("web", &pods[0], "fit", "block by label check policy")
        .await;
    assert_eq!(
        server.asked().len(),
        0,
        "rejected candidates do not reach later rules"
    );
    scope.label(&pods[0], json!({"fit": "yes"})).await.unwrap();
    scope
        .until_reason("web", &pods[0], "ask", "closed today")
        .await;
    let details = scope.status::<RuleStatus>("web").await.details;
    let passed: Vec<_> = details.iter().flat_map(|d| d.passed_rules.iter()).collect();
    assert_eq!(passed, ["fit"]);
    // A rule that says when operations may begin limits no deletion; the budget does.
    scope.delete(&pods[1]).await.unwrap();
    scope.all_available("app=web", 2).await;
    server.answer(|_| Reply::pass());
    scope.until_past_precheck(&pods[0], "x").await;
}

#[tokio::test]
async fn two_operations_of_one_pod_are_asked_about_each() {
    let server = RuleServer::passing().await;
    let scope = Bed::shared().await.scope("operations").await;
    let pods = scope.deployed("web", 1).await;
    scope
        .create_rule(
            "web",
            json!([ask(server.config(), json!({"failurePolicy": "Fail"}))]),
        )
        .await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope
        .until_pod(&pods[0], "to operate", |p| may_operate(p, "x"))
        .await;
    server.answer(|_| Reply::refuse("not y"));
    scope.begin(&pods[0], "y").await.unwrap();
    wait::until("the question about y", async || server.times(&pods[0]) >= 2).await;
    scope
        .until_pod(&pods[0], "x operates, y waits", |p| {
            p.labels().contains_key(&Family::Operate.key("x"))
                && p.labels().contains_key(&Family::PreCheck.key("y"))
        })
        .await;
    server.answer(|_| Reply::pass());
    scope
        .until_pod(&pods[0], "y past PreCheck", |p| is_past_precheck(p, "y"))
        .await;
}

/// See contract Q16: the server does not ask the endpoint of a disabled or skipped rule.
#[tokio::test]
async fn disabled_and_skipped_rules_are_not_asked() {
    let server = RuleServer::start(|_| Reply::refuse("no")).await;
    let scope = Bed::shared().await.scope("skipped").await;
    let pods = scope.deployed("web", 1).await;
    let mut off = ask(server.config(), json!({}));
    (off["name"], off["disabled"]) = (json!("off"), json!(true));
    scope
        .create_rule("web", json!([ask(server.config(), json!({})), off]))
        .await;
    let skip = json!({operating::api::keys::SKIP_RULE_CONDITIONS: r#"{"skipRules":["ask"]}"#});
    scope
        .patch(&pods[0], json!({"metadata": {"annotations": skip}}))
        .await
        .unwrap();
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_past_precheck(&pods[0], "x").await;
    assert_eq!(server.asked().len(), 0);
}

#[tokio::test]
async fn operation_without_its_type_blocks_no_other() {
    let scope = Bed::shared().await.scope("untyped").await;
    let pods = scope.deployed("web", 2).await;
    let budget = json!({"name": "budget", "availablePolicy": {"maxUnavailableValue": 1}});
    scope.create_rule("web", json!([budget])).await;
    scope.until_at_rest("web", 2).await;
    let (operating, type_) = (Family::Operating.key("x1"), Family::OperationType.key("x1"));
    let begin = json!({operating: "1"});
    scope.label(&pods[0], begin).await.unwrap();
    scope
        .until_status("web", "the label that is missing", |s: &RuleStatus| {
            let detail = s.details.iter().find(|d| d.name == pods[0]);
            let mut rejected = detail.into_iter().flat_map(|d| &d.reject_info);
            rejected.any(|r| r.reason.contains(&format!("the label {type_} is missing")))
        })
        .await;

    scope.begin(&pods[1], "x").await.unwrap();
    scope.operate(&pods[1], "x").await;
    scope.until_idle(&pods[1]).await;
    assert!(waits(&scope.get(&pods[0]).await, "x1"));

    let complete = json!({type_: "update"});
    scope.label(&pods[0], complete).await.unwrap();
    scope.until_past_precheck(&pods[0], "x1").await;
}

/// Refused Pods delay no Pod behind them, neither at the first check nor at the second check before a call.
#[tokio::test]
async fn refused_pods_do_not_block_calls_for_other_pods() {
    let server = RuleServer::start(|_| Reply::refuse("not now")).await;
    let scope = Bed::shared().await.scope("tight").await;
    let pods = scope.deployed("web", 6).await;
    let budget = json!({"name": "budget", "availablePolicy": {"maxUnavailableValue": 1}});
    scope
        .create_rule("web", json!([budget, ask(server.config(), json!({}))]))
        .await;
    scope.begin_under_rule("web", &pods[0], "x").await;
    for pod in &pods[1..] {
        scope.begin(pod, "x").await.unwrap();
    }
    wait::until("each Pod is asked about again", async || {
        pods.iter().all(|pod| server.times(pod) >= 2)
    })
    .await;
}
