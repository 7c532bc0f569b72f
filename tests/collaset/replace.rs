//! Replacements that a user asks for.

use kube::ResourceExt;
use operating::api::keys;
use operating::api::podtransitionrule::PodTransitionRuleStatus as RuleStatus;
use operating::api::resourcecontext::{ContextDetail, ResourceContext};
use serde_json::{Value, json};
use testbed::pods::is_available;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Pods, Set, ids, is_paired, label, uids};

/// A template whose Pods need a node each. If there are as many Pods as nodes, a new half can't run.
fn one_per_node(port: u16) -> Value {
    json!({ "template": { "spec": { "containers": [{
        "name": "app", "image": "app:1", "ports": [{ "containerPort": 80, "hostPort": port }],
    }] } } })
}

/// Asks for a replacement and waits for the new half.
async fn ask(scope: &Scope, set: &Set<'_>, id: i64) -> Pods {
    let name = set.pod(id).await.name_any();
    scope
        .label(&name, json!({ keys::TO_REPLACE: "1" }))
        .await
        .unwrap();
    set.until_pods("a new half", |pods| {
        pods.values()
            .any(|p| label(p, keys::REPLACE_PAIR_ORIGIN_NAME) == Some(&name))
    })
    .await
}

async fn take_back(scope: &Scope, name: &str) {
    scope
        .label(name, json!({ keys::TO_REPLACE: null }))
        .await
        .unwrap();
}

fn alone(pods: &Pods, count: usize) -> bool {
    pods.len() == count && !pods.values().any(is_paired)
}

#[tokio::test]
async fn replaced_pod_is_deleted_once_its_replacement_serves() {
    let scope = Bed::shared().await.scope("to-replace").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let before = set.pods().await;
    let pods = ask(&scope, &set, 0).await;
    assert_eq!(ids(&pods), [0, 1, 2]);
    scope.until_gone(&before[&0]).await;
    let after = set
        .until_pods("two that serve", |pods| {
            alone(pods, 2) && pods.values().all(is_available)
        })
        .await;
    assert_eq!(ids(&after), [1, 2]);
    assert_eq!(after[&1].uid(), before[&1].uid());
    assert_eq!(
        label(&after[&2], keys::REVISION),
        label(&before[&0], keys::REVISION)
    );
    set.settled().await;
}

#[tokio::test]
async fn request_is_taken_back_before_new_pod_serves() {
    let scope = Bed::shared().await.scope("replace-cancel").await;
    let set = Set::new(&scope, "web", 2, one_per_node(7001)).await;
    let before = set.pods().await;
    ask(&scope, &set, 1).await;
    take_back(&scope, &before[&1].name_any()).await;
    let after = set
        .until_pods("the new half to be deleted", |pods| alone(pods, 2))
        .await;
    assert_eq!(uids(&after), uids(&before));
    set.settled().await;
}

#[tokio::test]
async fn replacement_can_be_cancelled_until_rules_release_the_origin() {
    let scope = Bed::shared().await.scope("replace-late").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let origin = set.pod(0).await;
    set.hold().await;
    ask(&scope, &set, 0).await;
    let is_marked = |p: &k8s_openapi::api::core::v1::Pod| label(p, keys::TO_DELETE).is_some();
    scope
        .until_pod(&origin.name_any(), "to get the label to-delete", is_marked)
        .await;
    take_back(&scope, &origin.name_any()).await;
    let is_unmarked = |p: &k8s_openapi::api::core::v1::Pod| label(p, keys::TO_DELETE).is_none();
    scope
        .until_pod(
            &origin.name_any(),
            "to lose the label to-delete",
            is_unmarked,
        )
        .await;
    set.release().await;
    let after = set
        .until_pods("one", |pods| {
            alone(pods, 1) && pods.values().all(is_available)
        })
        .await;
    assert_eq!(ids(&after), [0]);
    assert_eq!(after[&0].uid(), origin.uid());
    set.settled().await;
}

/// Sets the label as users of Kuperator do to end a replacement whose new Pod does not become Ready.
#[tokio::test]
async fn label_by_hand_on_a_new_half_completes_the_pair() {
    let scope = Bed::shared().await.scope("replace-by-hand").await;
    let set = Set::new(&scope, "web", 2, one_per_node(7004)).await;
    let before = set.pods().await;
    let new = ask(&scope, &set, 0).await[&2].clone();
    let by_hand = json!({ keys::SERVICE_AVAILABLE: "true" });
    scope.label(&new.name_any(), by_hand).await.unwrap();
    scope.until_gone(&before[&0]).await;
    let after = set
        .until_pods("two that serve", |pods| {
            alone(pods, 2) && pods.values().all(is_available)
        })
        .await;
    assert_eq!(ids(&after), [1, 2]);
    assert_eq!(after[&2].uid(), new.uid());
    set.settled().await;
}

#[tokio::test]
async fn rules_do_not_count_hand_labelled_replacement_pod() {
    let scope = Bed::shared().await.scope("replace-by-hand-rule").await;
    let set = Set::new(&scope, "web", 2, one_per_node(7005)).await;
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    let before = set.pods().await;
    let new = ask(&scope, &set, 0).await[&2].clone();
    let by_hand = json!({ keys::SERVICE_AVAILABLE: "true" });
    scope.label(&new.name_any(), by_hand).await.unwrap();
    scope
        .until_status("web", "the origin, which waits", |s: &RuleStatus| {
            (s.available_pods, s.waiting_pods) == (2, 1)
        })
        .await;
    let origin = before[&0].name_any();
    assert!(label(&scope.get(&origin).await, keys::TO_DELETE).is_some());
    let status = refusal(scope.delete(&origin).await);
    assert_eq!(status.code, 429, "{status:?}");
    let new = scope.get(&new.name_any()).await;
    assert_eq!(label(&new, keys::SERVICE_AVAILABLE), None);
    let delete = Default::default();
    scope.rules().delete("web", &delete).await.unwrap();
    scope.until_gone(&before[&0]).await;
    set.until_pods("two", |pods| alone(pods, 2)).await;
    set.settled().await;
}

#[tokio::test]
async fn pair_survives_loss_of_either_half() {
    let scope = Bed::shared().await.scope("replace-lost").await;
    let set = Set::new(&scope, "web", 2, one_per_node(7002)).await;
    let before = set.pods().await;
    let new = ask(&scope, &set, 0).await[&2].clone();
    scope.delete(&new.name_any()).await.unwrap();
    let pods = set
        .until_pods("the new half again", |pods| {
            pods.get(&2).is_some_and(|p| p.uid() != new.uid())
        })
        .await;
    assert_eq!(pods[&0].uid(), before[&0].uid());
    let origin = before[&0].name_any();
    assert_eq!(
        label(&pods[&2], keys::REPLACE_PAIR_ORIGIN_NAME),
        Some(origin.as_str())
    );

    scope.delete(&origin).await.unwrap();
    let after = set
        .until_pods("the new half alone", |pods| {
            alone(pods, 2) && pods.values().all(is_available)
        })
        .await;
    assert_eq!(ids(&after), [1, 2]);
    assert_eq!(after[&2].uid(), pods[&2].uid());
    set.settled().await;
}

#[tokio::test]
async fn pair_outlives_loss_of_pool() {
    let scope = Bed::shared().await.scope("replace-pool").await;
    let set = Set::new(&scope, "web", 2, one_per_node(7003)).await;
    let before = ask(&scope, &set, 0).await;
    let pool = set.pools().get("web").await.unwrap();
    set.pools()
        .delete("web", &Default::default())
        .await
        .unwrap();
    let again = wait::value("the pool again", async || {
        let found = set.pools().get_opt("web").await.unwrap();
        found.filter(|p| p.metadata.uid != pool.metadata.uid)
    })
    .await;
    let links = |pool: &ResourceContext| {
        let contexts = pool.spec.contexts.iter();
        let link = |c: &ContextDetail| {
            let of = |key: &str| c.data.get(key).cloned();
            (c.id, of("ReplaceNewPodID"), of("ReplaceOriginPodID"))
        };
        contexts.map(link).collect::<Vec<_>>()
    };
    assert_eq!(links(&again), links(&pool));
    assert_eq!(links(&again)[0], (0, Some("2".into()), None));
    assert_eq!(uids(&set.pods().await), uids(&before));
    take_back(&scope, &before[&0].name_any()).await;
    set.until_pods("two", |pods| alone(pods, 2)).await;
    set.settled().await;
}
