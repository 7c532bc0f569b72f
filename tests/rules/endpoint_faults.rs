//! Endpoints that fail in every way: with failurePolicy Fail the Pods wait with the reason, and proceed once the
//! endpoint works; with Ignore they pass, and the history names the reason.

use kube::ResourceExt;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::endpoint::{Reply, RuleServer};
use testbed::{Bed, Scope};

use crate::helpers::{RuleScope, ask, spec, waits, webhook_status};

/// A Pod `name` that begins an operation, under a rule object `name` with this webhook.
async fn begun(scope: &Scope, name: &str, config: Value, policy: &str) {
    scope.pod(name, json!({})).await;
    scope.until_idle(name).await;
    let rules = json!([ask(config, json!({"failurePolicy": policy}))]);
    scope.try_rule(name, spec(name, rules)).await.unwrap();
    scope.begin_under_rule(name, name, "x").await;
}

/// Answers of a failing server, and the reason that the status reports.
fn failures() -> Vec<(&'static str, Reply, &'static str)> {
    let html = "<html>no</html>".to_owned();
    let elsewhere = "Location: http://169.254.169.254/latest\r\n";
    vec![
        ("closed", Reply::Close, "the request failed"),
        (
            "status",
            Reply::Raw(500, "", "{\"success\": true}".into()),
            "the answer is 500",
        ),
        (
            "text",
            Reply::Raw(200, "", html),
            "the answer is no JSON object",
        ),
        (
            "empty",
            Reply::Raw(200, "", String::new()),
            "the answer is no JSON object",
        ),
        (
            "type",
            Reply::Json(json!({"success": "yes"})),
            "the answer can't be read",
        ),
        ("half", Reply::CloseMidBody, "the answer broke off"),
        (
            "huge",
            Reply::Huge(10 * 1024 * 1024),
            "the answer is longer than 1024 KiB",
        ),
        (
            "redirect",
            Reply::Raw(302, elsewhere, String::new()),
            "redirects are not followed",
        ),
    ]
}

/// Begins an operation for each of [`failures`]. The endpoints live as long as the result.
async fn begun_with_failures(scope: &Scope, policy: &str) -> Vec<RuleServer> {
    let mut servers = Vec::new();
    for (name, reply, _) in failures() {
        let server = RuleServer::start(move |_| reply.clone()).await;
        begun(scope, name, server.config(), policy).await;
        servers.push(server);
    }
    servers
}

#[tokio::test]
async fn pods_wait_for_failing_endpoint_and_proceed_after_recovery() {
    let bed = Bed::shared().await;
    let scope = bed.scope("failing").await;
    let servers = begun_with_failures(&scope, "Fail").await;
    for ((name, _, why), server) in failures().iter().zip(&servers) {
        scope.until_reason(name, name, "ask", why).await;
        let status = serde_json::to_string(&scope.status::<RuleStatus>(name).await).unwrap();
        for quoted in ["169.254.169.254", "<html>", "yes"] {
            assert!(!status.contains(quoted), "{name}: {status}");
        }
        let pod = scope.get(name).await;
        assert!(waits(&pod, "x"), "{name}: {:?}", pod.labels());
        server.answer(|_| Reply::pass());
    }
    for (name, ..) in failures() {
        scope.until_past_precheck(name, "x").await;
    }
    bed.assert_all_run().await;
}

#[tokio::test]
async fn ignored_failures_pass_and_stay_in_the_history() {
    let bed = Bed::shared().await;
    let scope = bed.scope("ignored").await;
    let _servers = begun_with_failures(&scope, "Ignore").await;
    for (name, _, why) in failures() {
        scope.until_past_precheck(name, "x").await;
        scope
            .until_status(name, why, |s: &RuleStatus| {
                let history = webhook_status(s, "ask").history;
                history.iter().any(|t| {
                    t.message.starts_with("Passed by failurePolicy Ignore: ")
                        && t.message.contains(why)
                        && t.approved == [name]
                })
            })
            .await;
    }
    bed.assert_all_run().await;
}

/// See contract Q7, contract Q11: the endpoint is absent, is not trusted, or does not answer.
#[tokio::test]
async fn endpoints_that_cannot_be_reached_or_trusted_hold() {
    let bed = Bed::shared().await;
    let scope = bed.scope("unreachable").await;
    let (server, stranger) = (RuleServer::passing().await, RuleServer::passing().await);
    let silent = RuleServer::start(|_| Reply::Hang).await;
    let cases = [
        (
            "nobody",
            json!({"url": "https://localhost:1/"}),
            "connection refused",
        ),
        (
            "untrusted",
            json!({"url": server.url("/"), "caBundle": stranger.ca_bundle}),
            "no TLS connection",
        ),
        (
            "wrong-name",
            json!({"url": format!("https://127.0.0.1:{}/", server.address.port()), "caBundle": server.ca_bundle}),
            "no TLS connection",
        ),
        (
            "plain",
            json!({"url": format!("http://localhost:{}/", server.address.port())}),
            "the request failed",
        ),
        (
            "metadata",
            json!({"url": "http://169.254.169.254/latest"}),
            "--allow-link-local-endpoints",
        ),
        (
            "mapped",
            json!({"url": "http://[::ffff:a9fe:a9fe]/"}),
            "--allow-link-local-endpoints",
        ),
        (
            "loopback",
            json!({"url": format!("http://127.0.0.2:{}/", server.address.port())}),
            "--endpoint-allow-cidrs",
        ),
        (
            "decimal",
            json!({"url": format!("http://2130706434:{}/", server.address.port())}),
            "--endpoint-allow-cidrs",
        ),
        ("silent", silent.config(), "no answer within 30 s"),
    ];
    for (name, config, _) in &cases {
        begun(&scope, name, config.clone(), "Fail").await;
    }
    for (name, _, why) in &cases {
        scope.until_reason(name, name, "ask", why).await;
        let pod = scope.get(name).await;
        assert!(waits(&pod, "x"), "{name}: {:?}", pod.labels());
    }
    assert_eq!(server.asked().len(), 0);
    // A corrected bundle is used from then on (contract Q11: it is the root of trust).
    let config = json!({"caBundle": server.ca_bundle});
    scope
        .edit_rule("untrusted", json!({"webhook": {"clientConfig": config}}))
        .await;
    scope.until_past_precheck("untrusted", "x").await;
    bed.assert_all_run().await;
}

/// See contract Q9: a rule that needs a field that no Pod has holds no Pod of other rules.
#[tokio::test]
async fn unresolvable_parameter_path_holds_pods_of_its_rule() {
    let bed = Bed::shared().await;
    let scope = bed.scope("paths").await;
    let server = RuleServer::passing().await;
    let field = json!({"fieldRef": {"fieldPath": "spec.nodeName.zone"}});
    let parameters = json!([{"key": "zone", "valueFrom": field}]);
    for (name, policy) in [("held", "Fail"), ("let", "Ignore")] {
        scope.pod(name, json!({})).await;
        scope.until_idle(name).await;
        let extra = json!({"failurePolicy": policy, "parameters": parameters});
        let rules = json!([ask(server.config(), extra)]);
        scope.try_rule(name, spec(name, rules)).await.unwrap();
        scope.begin_under_rule(name, name, "x").await;
    }
    let why = "parameter zone: spec.nodeName.zone: there is no field zone";
    // The server made no call, so no Pod passes by Ignore.
    for name in ["held", "let"] {
        scope.until_reason(name, name, "ask", why).await;
        assert!(waits(&scope.get(name).await, "x"), "{name}");
    }
    assert_eq!(server.asked().len(), 0);
    begun(&scope, "other", server.config(), "Fail").await;
    scope.until_past_precheck("other", "x").await;
    bed.assert_all_run().await;
}

#[tokio::test]
async fn tasks_without_an_id_or_a_place_to_poll_hold() {
    let scope = Bed::shared().await.scope("tasks").await;
    let server = RuleServer::start(|request| match &request.target[..] {
        "/check" => Reply::Json(json!({"success": true, "poll": true})),
        _ => Reply::task("t"),
    })
    .await;
    begun(&scope, "no-id", server.polled(json!({})), "Ignore").await;
    let config = json!({"url": server.url("/long"), "caBundle": server.ca_bundle});
    begun(&scope, "no-poll", config, "Ignore").await;
    scope
        .until_reason("no-id", "no-id", "ask", "Invalid empty taskID")
        .await;
    scope
        .until_reason("no-poll", "no-poll", "ask", "has no clientConfig.poll")
        .await;
}
