#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::*;
use crate::api::keys;

type AccessReviews = Arc<Mutex<Vec<Value>>>;

/// A context whose API server gives the same answer to every request; with `None` it never answers.
fn context(answer: Option<(u16, Value)>) -> (AdmissionContext, AccessReviews) {
    let reviews = AccessReviews::default();
    let received = Arc::clone(&reviews);
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (received, answer) = (Arc::clone(&received), answer.clone());
        async move {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            received.lock().push(serde_json::from_slice(&body).unwrap());
            let Some((code, body)) = answer else {
                return std::future::pending().await;
            };
            let body = Body::from(body.to_string().into_bytes());
            Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
        }
    });
    let context = AdmissionContext::at_epoch(Client::new(service, "default"));
    (context, reviews)
}

fn request() -> Request {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "u", "operation": "DELETE", "namespace": "shop", "name": "web-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "userInfo": {
                "username": "alice", "uid": "7", "groups": ["dev"],
                "extra": {"scopes": ["a", "b"], "none": null},
            },
        },
    });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

fn pod(reason: Option<&str>) -> Pod {
    let annotations = reason.map(|r| json!({ (keys::BYPASS): r }));
    serde_json::from_value(json!({ "metadata": { "name": "web-1", "annotations": annotations } }))
        .unwrap()
}

/// The result of a bypass check with this reason against a rule `web`, and the access reviews that the API server
/// received.
async fn bypass_outcome(
    reason: Option<&str>,
    answer: Option<(u16, Value)>,
) -> (Result<(), Option<String>>, Vec<Value>) {
    let (context, reviews) = context(answer);
    let bypass = BypassCheck {
        context: &context,
        request: &request(),
        carrier: &pod(reason),
        dry_run: false,
        is_asked_for: true,
        deadline: Instant::now() + Duration::from_secs(10),
    };
    let message = bypass.may_bypass(Some("web")).await;
    let reviews = reviews.lock().clone();
    (message, reviews)
}

fn review(status: Value) -> Option<(u16, Value)> {
    let kind = json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {}, "status": status,
    });
    Some((201, kind))
}

#[tokio::test]
async fn access_review_carries_all_user_attributes() {
    let (message, reviews) = bypass_outcome(Some("fire"), review(json!({"allowed": true}))).await;
    assert_eq!(message, Ok(()));
    assert_eq!(
        reviews[0]["spec"],
        json!({
            "user": "alice", "uid": "7", "groups": ["dev"], "extra": {"none": [], "scopes": ["a", "b"]},
            "resourceAttributes": {
                "namespace": "shop", "verb": "bypass", "group": "apps.kusionstack.io", "version": "v1alpha1",
                "resource": "podtransitionrules", "name": "web",
            },
        })
    );
}

#[tokio::test]
async fn bypass_without_reason_sends_no_access_review() {
    let (message, reviews) = bypass_outcome(None, review(json!({"allowed": true}))).await;
    assert_eq!((message, reviews.len()), (Err(None), 0));
    let (message, reviews) = bypass_outcome(Some(" "), review(json!({"allowed": true}))).await;
    assert!(
        message
            .unwrap_err()
            .unwrap()
            .contains("write the reason of the bypass")
    );
    assert_eq!(reviews.len(), 0);
}

#[tokio::test]
async fn access_review_refusal_error_and_timeout_are_denials() {
    tokio::time::pause();
    let forbidden = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no such right", "reason": "Forbidden",
        "code": 403,
    });
    for (answer, why) in [
        (
            review(json!({"allowed": false})),
            "alice lacks the RBAC verb bypass on podtransitionrules/web",
        ),
        (
            review(json!({"allowed": true, "denied": true})),
            "alice lacks the RBAC verb",
        ),
        (review(Value::Null), "alice lacks the RBAC verb"),
        (Some((403, forbidden)), "the API server did not say"),
        (Some((201, json!("?"))), "the API server did not say"),
        (None, "did not say whether alice may (no answer in time)"),
    ] {
        let (message, _) = bypass_outcome(Some("fire"), answer).await;
        let note = message.unwrap_err().unwrap();
        assert!(note.contains(why), "{note}");
    }
}

#[tokio::test]
async fn denial_reports_unreadable_skip_annotation() {
    let (context, _) = context(None);
    let bypass = BypassCheck {
        context: &context,
        request: &request(),
        carrier: &pod(None),
        dry_run: false,
        is_asked_for: true,
        deadline: Instant::now() + Duration::from_secs(10),
    };
    let with = |text: &str| {
        let annotations = json!({ (keys::SKIP_RULE_CONDITIONS): text });
        let pod = json!({ "metadata": { "name": "web-1", "annotations": annotations } });
        serde_json::from_value::<Pod>(pod).unwrap()
    };
    for (text, why, is_named) in [
        ("all", DenyReason::Broken("odd".into()), true),
        (
            r#"{"skipRules":["b"]}"#,
            DenyReason::Broken("odd".into()),
            false,
        ),
        ("all", DenyReason::Behind, false),
    ] {
        let denied = Denied {
            object: "web".into(),
            rule: "a".into(),
            why,
        };
        let (pod, mut bypassed_rules) = (with(text), BTreeSet::new());
        let refused = bypass
            .bypass_denied_rule(denied, &pod, &mut bypassed_rules)
            .await
            .unwrap_err();
        let message = refused.denial_message("web-1", Timestamp::UNIX_EPOCH);
        assert_eq!(
            message.contains("skips no rule"),
            is_named,
            "{text}: {message}"
        );
    }
}

#[tokio::test]
async fn too_many_covering_rules_need_right_to_bypass_all() {
    for (allowed, bypassed) in [(true, 17), (false, 0)] {
        let (context, reviews) = context(review(json!({ "allowed": allowed })));
        for number in 0..17 {
            let rule = json!({
                "metadata": { "namespace": "shop", "name": format!("r-{number}"), "uid": format!("r-{number}") },
                "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
            });
            context
                .index
                .apply_rule(serde_json::from_value(rule).unwrap());
        }
        let pod: Pod = serde_json::from_value(json!({ "metadata": {
            "namespace": "shop", "name": "web-1", "uid": "p", "resourceVersion": "1",
            "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
            "annotations": { (keys::BYPASS): "fire" },
        } }))
        .unwrap();
        let bypass = BypassCheck {
            context: &context,
            request: &request(),
            carrier: &pod,
            dry_run: false,
            is_asked_for: true,
            deadline: Instant::now() + Duration::from_secs(10),
        };
        let rules = context.index.rules_covering_pod(&pod);
        let mut bypassed_rules = BTreeSet::new();
        let denied =
            overlap::check_overlap(&context.index, &rules, &bypassed_rules, &pod).unwrap_err();
        let message = bypass
            .bypass_denied_rule(denied, &pod, &mut bypassed_rules)
            .await;
        assert_eq!((message.is_ok(), bypassed_rules.len()), (allowed, bypassed));
        let attributes = &reviews.lock()[0]["spec"]["resourceAttributes"];
        assert_eq!(attributes.get("name"), None, "the right over all of them");
        assert_eq!(
            overlap::check_overlap(&context.index, &rules, &bypassed_rules, &pod).is_ok(),
            allowed
        );
        if let Err(refused) = message {
            let text = refused.denial_message("web-1", Timestamp::UNIX_EPOCH);
            assert!(
                text.contains("on all podtransitionrules of the namespace"),
                "{text}"
            );
        }
    }
}
