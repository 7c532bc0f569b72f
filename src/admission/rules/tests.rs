#![allow(clippy::unwrap_used, clippy::panic)]
use serde_json::{Value, json};

use super::*;

fn with_spec(spec: Value) -> Value {
    json!({ "metadata": { "namespace": "shop", "name": "new" }, "spec": spec })
}

fn review(operation: &str, object: Value, old: Option<Value>) -> Request {
    let name = object["metadata"]["name"].clone();
    let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": operation, "namespace": "shop", "name": name, "dryRun": true,
        "resource": { "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "podtransitionrules" },
        "kind": { "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "PodTransitionRule" },
        "userInfo": { "username": "a" }, "object": object, "oldObject": old,
    } });
    Request::parse(review.to_string().as_bytes()).unwrap()
}

async fn created(context: AdmissionContext) -> Vec<Verdict> {
    let rules = json!([{ "name": "a", "labelCheck": { "requires": {} } }]);
    let object = with_spec(json!({ "selector": {}, "rules": rules }));
    let request = review("CREATE", object, None);
    let context = Arc::new(context);
    let deadline = Instant::now() + Duration::from_secs(5);
    vec![
        RuleMutator(Arc::clone(&context))
            .review(&request, deadline)
            .await,
        RuleValidator(context).review(&request, deadline).await,
    ]
}

/// The annotation that the object has after a review.
async fn ignored(object: &Value, old: Option<Value>) -> Value {
    let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
    let request = review(operation, object.clone(), old);
    let deadline = Instant::now() + Duration::from_secs(5);
    let mutate = RuleMutator(Arc::new(with_rules(0)));
    let verdict = mutate.review(&request, deadline).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    let mut stored = object.clone();
    json_patch::patch(&mut stored, &verdict.patch().cloned().unwrap_or_default().0).unwrap();
    stored["metadata"]["annotations"][keys::IGNORES_FAILURES].take()
}

#[tokio::test]
async fn failure_policy_ignore_is_recorded_in_annotation() {
    let object = |policy: &str, annotations: Value| {
        let webhook = json!({ "failurePolicy": policy, "clientConfig": { "url": "http://a" } });
        let rules = json!([{ "name": "ask", "webhook": webhook }]);
        let mut object = with_spec(json!({ "selector": {}, "rules": rules }));
        object["metadata"]["annotations"] = annotations;
        object
    };
    let noted = json!({ (keys::IGNORES_FAILURES): "ask" });
    let former = object("Ignore", json!({ "a": "b" }));
    assert_eq!(ignored(&former, None).await, r#"["ask"]"#);
    assert_eq!(
        ignored(&object("Ignore", json!(null)), None).await,
        r#"["ask"]"#
    );
    assert_eq!(
        ignored(&object("Fail", json!(null)), None).await,
        json!(null)
    );
    assert_eq!(ignored(&former, Some(former.clone())).await, json!(null));
    let fail = object("Fail", json!({}));
    assert_eq!(ignored(&former, Some(fail.clone())).await, r#"["ask"]"#);
    assert_eq!(
        ignored(&fail, Some(object("Ignore", noted.clone()))).await,
        json!(null)
    );
    assert_eq!(
        ignored(&former, Some(object("Ignore", noted))).await,
        r#"["ask"]"#
    );
}

#[tokio::test]
async fn endpoint_that_will_not_be_called_is_warned_of() {
    let create = |host: &str| {
        let config = json!({ "url": format!("https://{host}/") });
        let rules = json!([{ "name": "a", "webhook": { "clientConfig": config } }]);
        review(
            "CREATE",
            with_spec(json!({ "selector": {}, "rules": rules })),
            None,
        )
    };
    let validate = RuleValidator(Arc::new(with_rules(0)));
    let deadline = Instant::now() + Duration::from_secs(5);
    let warned = async |host| {
        let verdict = validate.review(&create(host), deadline).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
        let field = "spec.rules[0].webhook.clientConfig.url: the server will not call";
        let mut warnings = verdict.warnings().iter();
        warnings
            .any(|warning| warning.starts_with(field) && warning.contains("--endpoint-allow-cidrs"))
    };
    assert!(warned("127.0.0.1").await);
    assert!(!warned("check.example.com").await);
}

/// Only the invalid rule of `operating check` gets the version, so that the denials of users stay as they are.
#[tokio::test]
async fn denial_of_the_asking_rule_names_the_version() {
    let own = AnsweringVersion::own();
    for (name, version) in [(ASKING_RULE, Some(own)), ("new", None)] {
        let selector = json!({ "matchLabels": { "app": "no value of a label" } });
        let mut object = with_spec(json!({ "selector": selector, "rules": [] }));
        object["metadata"]["name"] = json!(name);
        let request = review("CREATE", object, None);
        let deadline = Instant::now() + Duration::from_secs(5);
        // The mutating webhook lets the dry run of the asking rule pass, so that the validating webhook is asked, too.
        let dry_run = Request {
            dry_run: true,
            ..request
        };
        let context = Arc::new(with_rules(0));
        let mutated = RuleMutator(Arc::clone(&context))
            .review(&dry_run, deadline)
            .await;
        assert_eq!(mutated.is_allowed(), name == ASKING_RULE, "{name}");
        let verdict = RuleValidator(context).review(&dry_run, deadline).await;
        assert!(!verdict.is_allowed(), "{name}");
        assert_eq!(
            AnsweringVersion::parse(verdict.message()),
            version,
            "{name}"
        );
    }
}

fn with_rules(count: usize) -> AdmissionContext {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Ok::<_, std::convert::Infallible>(http::Response::new(kube::client::Body::empty()))
    });
    let mut context = AdmissionContext::at_epoch(kube::Client::new(service, "default"));
    context.settings.max_rules = 3;
    for i in 0..count {
        let rule = json!({ "metadata": { "namespace": "shop", "name": format!("r{i}"), "uid": format!("u{i}") } });
        context
            .index
            .apply_rule(serde_json::from_value(rule).unwrap());
    }
    context
}

#[tokio::test]
async fn rules_above_namespace_limit_are_refused() {
    for verdict in created(with_rules(2)).await {
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    for verdict in created(with_rules(3)).await {
        assert_eq!((verdict.code(), verdict.reason()), (403, "Forbidden"));
        let want = "the namespace shop has 3 PodTransitionRules and may have 3: ";
        assert!(verdict.message().starts_with(want), "{}", verdict.message());
        assert!(verdict.message().contains("--max-rules-per-namespace"));
    }
}

#[tokio::test]
async fn rules_whose_deletion_is_held_up_count_towards_the_limit() {
    let ending = |context: &AdmissionContext, number: usize| {
        let rule = json!({ "metadata": {
            "namespace": "shop", "name": format!("e{number}"), "uid": format!("ue{number}"),
            "deletionTimestamp": "2026-01-01T00:00:10Z", "finalizers": ["example.com/keep"],
        } });
        serde_json::from_value::<PodTransitionRule>(rule).inspect(|rule| {
            context.index.apply_rule(rule.clone());
        })
    };
    let context = with_rules(1);
    let only_ending = ending(&context, 0).unwrap();
    ending(&context, 1).unwrap();
    for verdict in created(context).await {
        let want = "the namespace shop has 3 PodTransitionRules and may have 3 (2 of them are being deleted and kept by \
                    a finalizer: metadata.finalizers says whose): ";
        assert!(verdict.message().starts_with(want), "{}", verdict.message());
    }
    let context = with_rules(1);
    ending(&context, 0).unwrap();
    ending(&context, 1).unwrap();
    context.index.delete_rule(&only_ending);
    for verdict in created(context).await {
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    // A new list removes objects that were deleted while the watch was down.
    let context = with_rules(1);
    ending(&context, 0).unwrap();
    let last = ending(&context, 1).unwrap();
    context.index.replace_rules(vec![last]);
    assert_eq!(
        context
            .index
            .read_state()
            .namespace("shop")
            .unwrap()
            .ending_rules
            .len(),
        1
    );
}

/// An object with the given number in its name and an availability rule for Pods of `app`.
fn limiting(number: usize, app: &str, most: u32) -> Value {
    let name = format!("limit-{number:02}");
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "generation": 1 },
        "spec": {
            "selector": { "matchLabels": { "app": app } },
            "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": most } }],
        },
    })
}

/// A context with `count` rule objects that cover the Pod web-1.
fn covering(count: usize) -> AdmissionContext {
    let context = with_rules(0);
    let pod = json!({ "metadata": {
        "namespace": "shop", "name": "web-1", "uid": "p", "resourceVersion": "1",
        "labels": { (keys::CONTROL): keys::CONTROL_VALUE, "app": "web" },
    } });
    context
        .index
        .apply_pod(serde_json::from_value(pod).unwrap());
    for number in 0..count {
        let rule = serde_json::from_value(limiting(number, "web", 1)).unwrap();
        context.index.apply_rule(rule);
    }
    context
}

#[tokio::test]
async fn sixteen_availability_objects_may_cover_a_pod_and_no_more() {
    let none = Default::default();
    let pod = covering(0)
        .index
        .read_state()
        .pod("shop", "p")
        .cloned()
        .unwrap();
    for count in [3, 16, 17] {
        let index = covering(count).index;
        let checked = overlap::check_overlap(&index, &index.rules_covering_pod(&pod), &none, &pod);
        assert_eq!(checked.is_ok(), count <= 16, "{count}");
    }
    let index = covering(17).index;
    let denied =
        overlap::check_overlap(&index, &index.rules_covering_pod(&pod), &none, &pod).unwrap_err();
    let text =
        crate::admission::denial::describe_denial("web-1", &denied, jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(
        text,
        "Pod web-1 is held: 17 PodTransitionRules with an availability rule cover it (limit-00, limit-01, limit-02 and \
         14 more), and at most 16 may; put the rules into spec.rules of fewer objects, or narrow their spec.selector"
    );
    // Rule objects without a budget have no ledger to write, so they are not limited.
    let index = covering(16).index;
    let mut other = limiting(90, "web", 1);
    other["spec"]["rules"] = json!([{ "name": "a", "labelCheck": { "requires": {} } }]);
    index.apply_rule(serde_json::from_value(other).unwrap());
    assert_eq!(index.rules_covering_pod(&pod).len(), 17);
    assert!(overlap::check_overlap(&index, &index.rules_covering_pod(&pod), &none, &pod).is_ok());
}

#[tokio::test]
async fn disruption_under_too_many_rules_is_denied_without_ledger_call() {
    use crate::admission::rule_check;
    use crate::ledger::protocol;
    for count in [16, 17] {
        let context = covering(count);
        context.index.mark_all_listed();
        context.index.decision_watches.trust_for_a_year();
        let pod = context
            .index
            .read_state()
            .pod("shop", "p")
            .cloned()
            .unwrap();
        let disruption = context.new_disruption(&pod, protocol::ClaimOperation::Delete);
        let deadline = Instant::now() + Duration::from_secs(5);
        let denied = rule_check::claim_for_disruption(&context, &disruption, true, deadline).await;
        let overlaps = matches!(
            denied,
            Err(crate::ledger::commit::Denied {
                why: crate::ledger::commit::DenyReason::Overlapping { objects: 17, .. },
                ..
            })
        );
        assert_eq!(overlaps, count == 17, "{denied:?}");
    }
}

#[tokio::test]
async fn rule_that_covers_a_pod_as_the_seventeenth_is_refused() {
    let apply = async |count: usize, object: Value, old: Option<Value>| {
        let mut context = covering(count);
        context.settings.max_rules = 100;
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" };
        let request = review(operation, object, old);
        let deadline = Instant::now() + Duration::from_secs(5);
        RuleValidator(Arc::new(context))
            .review(&request, deadline)
            .await
    };
    for (count, app) in [(15, "web"), (30, "other")] {
        let verdict = apply(count, limiting(50, app, 1), None).await;
        assert!(verdict.is_allowed(), "{}", verdict.message());
    }
    let text = "spec.selector: 17 PodTransitionRules with an availability rule would cover Pod web-1, and at most 16 may";
    let moved = Some(limiting(50, "other", 1));
    for old in [None, moved] {
        let verdict = apply(16, limiting(50, "web", 1), old).await;
        assert_eq!(verdict.code(), 403);
        assert!(verdict.message().starts_with(text), "{}", verdict.message());
    }
    // A stored rule can be relaxed.
    let verdict = apply(17, limiting(3, "web", 2), Some(limiting(3, "web", 1))).await;
    assert!(verdict.is_allowed(), "{}", verdict.message());
    let mut warnings = verdict.warnings().iter();
    assert!(warnings.any(|warning| warning.starts_with(text)));
}

#[tokio::test]
async fn rule_that_was_stored_with_a_fault_can_be_relaxed() {
    let spec = |most: Value, url: &str| {
        with_spec(json!({ "selector": {}, "rules": [
            { "name": "a", "availablePolicy": { "maxUnavailableValue": most } },
            { "name": "b", "webhook": { "clientConfig": { "url": url } } },
        ] }))
    };
    let validate = async |object, old| {
        let request = review("UPDATE", object, Some(old));
        validate_spec(&with_rules(1), &request)
    };
    let faulty = spec(json!(1), "ftp://endpoint");

    let relaxed = validate(spec(json!(2), "ftp://endpoint"), faulty.clone()).await;
    assert!(relaxed.is_allowed(), "{}", relaxed.message());
    let [warning] = relaxed.warnings() else {
        panic!("{:?}", relaxed.warnings())
    };
    let field = "stored as it was: spec.rules[1].webhook.clientConfig.url: ";
    assert!(warning.starts_with(field), "{warning}");

    let worse = validate(spec(json!("two"), "ftp://endpoint"), faulty).await;
    assert_eq!(worse.code(), 422);
    let message = worse.message();
    assert!(
        message.contains("two") && !message.contains("url"),
        "{message}"
    );
}
