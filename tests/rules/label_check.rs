//! Rules of kind labelCheck.

use kube::ResourceExt;
use operating::api::keys::{self, Family};
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::{Bed, wait};

use crate::helpers::{RuleScope, is_past_precheck, reason, waits};

fn check(name: &str, label: &str, extra: Value) -> Value {
    let mut rule =
        json!({"name": name, "labelCheck": {"requires": {"matchLabels": {label: "yes"}}}});
    json_patch::merge(&mut rule, &extra);
    rule
}

#[tokio::test]
async fn pod_with_required_labels_passes_in_its_begin_request() {
    let scope = Bed::shared().await.scope("labels").await;
    let pods = scope.deployed("web", 2).await;
    scope
        .create_rule("web", json!([check("fit", "fit", json!({}))]))
        .await;
    scope
        .until_status("web", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    scope.label(&pods[0], json!({"fit": "yes"})).await.unwrap();
    let waiting = scope.begin(&pods[1], "x").await.unwrap();
    assert!(waits(&waiting, "x"), "{:?}", waiting.labels());
    // A dry run shows that no controller has helped. A replica that has not seen the rule yet denies the request.
    wait::until("an operation to begin and pass at once", async || {
        let begun = scope.dry_begin(&pods[0], "x").await;
        is_past_precheck(&begun, "x") && !is_available(&begun)
    })
    .await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_past_precheck(&pods[0], "x").await;
    scope
        .until_reason(
            "web",
            &pods[1],
            "fit",
            &format!(
                "block by label check policy, pod {}/{} labels not match fit=yes",
                scope.namespace, pods[1]
            ),
        )
        .await;

    // The rule is evaluated again when the labels change.
    scope.label(&pods[1], json!({"fit": "yes"})).await.unwrap();
    scope.until_past_precheck(&pods[1], "x").await;
    for pod in &pods {
        scope.operate(pod, "x").await;
        scope.until_idle(pod).await;
    }
}

#[tokio::test]
async fn post_check_holds_the_way_back() {
    let scope = Bed::shared().await.scope("labels-after").await;
    let pods = scope.deployed("web", 1).await;
    let rule = check("done", "done", json!({"stage": "PostCheck"}));
    scope.create_rule("web", json!([rule])).await;
    scope
        .until_status("web", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    scope.begin(&pods[0], "x").await.unwrap();
    scope.operate(&pods[0], "x").await;
    scope
        .until_status("web", "the reason", |s: &RuleStatus| {
            reason(s, &pods[0], "PostCheck", "done").is_some()
        })
        .await;
    let waiting = scope.get(&pods[0]).await;
    assert!(waiting.labels().contains_key(&Family::PostCheck.key("x")));
    scope.label(&pods[0], json!({"done": "yes"})).await.unwrap();
    scope.until_idle(&pods[0]).await;
}

#[tokio::test]
async fn filter_disabled_and_the_skip_annotation_let_pass() {
    let scope = Bed::shared().await.scope("labels-not").await;
    let pods = scope.deployed("web", 2).await;
    let filter = json!({"filter": {"labelSelector": {"matchLabels": {"tier": "front"}}}});
    let rules = json!([
        check("filtered", "a", filter),
        check("off", "b", json!({"disabled": true})),
        check("skipped", "c", json!({})),
    ]);
    scope.create_rule("web", rules).await;
    scope
        .until_status("web", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    let skip = json!({keys::SKIP_RULE_CONDITIONS: r#"{"skipRules":["skipped"]}"#});
    let patch = json!({"metadata": {"annotations": skip}});
    scope.patch(&pods[0], patch).await.unwrap();
    scope.begin(&pods[0], "x").await.unwrap();
    scope.until_past_precheck(&pods[0], "x").await;

    scope
        .label(&pods[1], json!({"tier": "front"}))
        .await
        .unwrap();
    scope.begin(&pods[1], "x").await.unwrap();
    scope
        .until_status("web", "both reasons and no more", |s: &RuleStatus| {
            let detail = s.details.iter().find(|d| d.name == pods[1]);
            let rejected = detail.into_iter().flat_map(|d| &d.reject_info);
            let rules: Vec<_> = rejected.map(|r| r.rule_name.as_str()).collect();
            rules == ["filtered", "skipped"]
        })
        .await;
}

/// See contract Q13: rules of other namespaces do not reach Pods of the same name here.
#[tokio::test]
async fn rules_apply_only_to_their_namespace() {
    let bed = Bed::shared().await;
    let (other_namespace, ruled_namespace) = (
        bed.scope("labels-here").await,
        bed.scope("labels-there").await,
    );
    for scope in [&other_namespace, &ruled_namespace] {
        scope.pod("web", json!({})).await;
        scope.until_idle("web").await;
    }
    ruled_namespace
        .create_rule("web", json!([check("fit", "fit", json!({}))]))
        .await;
    ruled_namespace
        .until_status("web", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    ruled_namespace.begin("web", "x").await.unwrap();
    other_namespace.begin("web", "x").await.unwrap();
    other_namespace.until_past_precheck("web", "x").await;
    let pod = ruled_namespace.get("web").await;
    assert!(waits(&pod, "x"), "{:?}", pod.labels());
}

#[tokio::test]
async fn pods_that_details_leave_out_are_counted_by_reason() {
    const PODS: usize = 104;
    let scope = Bed::shared().await.scope("labels-many").await;
    let pods = scope.deployed("web", PODS).await;
    scope
        .create_rule("web", json!([check("fit", "fit", json!({}))]))
        .await;
    scope
        .until_status("web", "observedGeneration 1", |s: &RuleStatus| {
            s.observed_generation == 1
        })
        .await;
    for pod in &pods {
        scope.begin(pod, "x").await.unwrap();
    }
    let counted = format!(
        "block by label check policy, pod {}/* labels not match fit=yes",
        scope.namespace
    );
    scope
        .until_status("web", "a count of all Pods", |status: &RuleStatus| {
            let mut reasons = status.wait_reasons.iter();
            status.details.len() <= 100
                && reasons.any(|r| {
                    let known = (r.stage.as_str(), r.rule_name.as_str(), r.reason.as_str());
                    known == ("PreCheck", "fit", &*counted) && usize::try_from(r.pods) == Ok(PODS)
                })
        })
        .await;
    // So few Pods wait that `status.details` lists them all.
    for pod in &pods[..10] {
        scope.label(pod, json!({"fit": "yes"})).await.unwrap();
        scope.until_past_precheck(pod, "x").await;
    }
    scope
        .until_status("web", "no count", |s: &RuleStatus| {
            s.wait_reasons.is_empty() && s.details.len() == PODS - 10
        })
        .await;
}
