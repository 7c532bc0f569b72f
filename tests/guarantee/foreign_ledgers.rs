//! Ledgers with impossible versions, ledgers of other builds and clusters, and an etcd that was restored from a backup.

use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, ResourceExt};
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleStatus as RuleStatus};
use serde_json::{Value, json};
use testbed::pods::{is_available, names};
use testbed::scope::{claims, refusal};
use testbed::{Bed, Scope, wait};

/// Writes the ledger of the rule `web` as a user may who has the right to write its status.
async fn forge(scope: &Scope, ledger: Value) {
    let patch = Patch::Merge(json!({"status": {"ledger": ledger}}));
    let params = PatchParams::default();
    scope
        .rules()
        .patch_status("web", &params, &patch)
        .await
        .unwrap();
}

/// Status and message of a condition of the rule `web`.
async fn condition(scope: &Scope, type_: &str) -> Option<(String, String)> {
    let all = scope.status::<RuleStatus>("web").await.conditions;
    let found = all.into_iter().find(|c| c.type_ == type_)?;
    Some((found.status, found.message))
}

async fn mark(scope: &Scope) -> u64 {
    scope
        .status::<RuleStatus>("web")
        .await
        .ledger
        .unwrap()
        .watermark
        .parse()
        .unwrap()
}

#[tokio::test]
async fn forged_watermark_counts_as_current_and_is_reported() {
    let bed = Bed::shared().await;
    let scope = bed.scope("forged").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    forge(&scope, json!({"watermark": u64::MAX.to_string()})).await;
    wait::until("a deletion to pass", async || {
        scope.delete(&pods[0]).await.is_ok()
    })
    .await;
    wait::until("the condition", async || {
        condition(&scope, "LedgerUsable")
            .await
            .is_some_and(|(status, message)| {
                status == "True"
                    && message.contains("it named resourceVersion 18446744073709551615")
            })
    })
    .await;
    assert!(mark(&scope).await < u64::MAX);
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
}

/// The ledger comes from a backup of another cluster: it names Pods that this cluster does not have, and versions that
/// this cluster has not reached. One claim has the name of an existing Pod.
#[tokio::test]
async fn claims_of_another_cluster_end_and_the_rule_holds() {
    let bed = Bed::shared().await;
    let scope = bed.scope("restored").await;
    let pods = scope.web_under_rule(3, json!(2)).await;
    let claim = |pod: &str, uid: &str, operation: &str| {
        json!({
            "podName": pod, "podUID": uid, "operation": operation, "resourceVersion": u64::MAX.to_string(), "attempt": 7,
            "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z",
        })
    };
    let restored = json!({
        "watermark": "900000000000", "attempts": 9,
        "claims": [
            claim(&pods[0], "1b4e28ba", "Delete"),
            claim("gone", "2fa1-16d3", "Evict"),
            claim("gone", "2fa1-16d3", "Teleport"),
        ],
    });
    forge(&scope, restored).await;
    wait::until("the claims to end", async || scope.claims("web").await == 0).await;
    for pod in &pods[..2] {
        wait::until("a place to be given", async || {
            scope.delete(pod).await.is_ok()
        })
        .await;
    }
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
}

#[tokio::test]
async fn ledger_of_a_newer_format_denies_and_is_left_alone() {
    let bed = Bed::shared().await;
    let scope = bed.scope("newer").await;
    let pods = scope.web_under_rule(3, json!(2)).await;
    forge(&scope, json!({"formatVersion": 2, "epoch": {"of": "etcd"}})).await;
    let message = wait::value("a denial", async || {
        let outcome = scope.delete(&pods[0]).await;
        outcome.is_err().then(|| refusal(outcome).message)
    })
    .await;
    for part in [
        "held by PodTransitionRule web",
        "formatVersion is 2",
        "run the newer version",
    ] {
        assert!(message.contains(part), "{message}");
    }
    wait::until("the condition", async || {
        condition(&scope, "LedgerUsable")
            .await
            .is_some_and(|(status, _)| status == "False")
    })
    .await;
    assert_eq!(
        scope.status::<RuleStatus>("web").await.disruptions_allowed,
        Some(0)
    );
    let status: RuleStatus = scope.status("web").await;
    let raw = serde_json::to_value(status.ledger).unwrap();
    assert_eq!(raw["formatVersion"], 2);
    // The remedy that the denial names.
    forge(&scope, Value::Null).await;
    wait::until("a place to be given", async || {
        pods.len() == 3 && scope.list("app=web").await.iter().any(is_available) && {
            let pod = scope.list("app=web").await[0].name_any();
            scope.delete(&pod).await.is_ok()
        }
    })
    .await;
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
}

/// The ledger of the rule `web` as it is stored.
async fn stored(scope: &Scope) -> Value {
    let kind = ApiResource::erase::<PodTransitionRule>(&());
    let rules: Api<DynamicObject> =
        Api::namespaced_with(scope.client.clone(), &scope.namespace, &kind);
    rules.get("web").await.unwrap().data["status"]["ledger"].clone()
}

/// A newer build of the same format knows more fields and operations. It shares the ledger with this build.
#[tokio::test]
async fn unknown_fields_and_operations_stay_in_the_ledger() {
    let bed = Bed::shared().await;
    let scope = bed.scope("unknown").await;
    let pods = scope.web_under_rule(4, json!(3)).await;
    let mut written = Vec::new();
    for (pod, (operation, attempt)) in pods.iter().zip([("Melt", 6), ("Delete", 7)]) {
        let pod = scope.get(pod).await;
        written.push(json!({
            "podName": pod.name_any(), "podUID": pod.uid(), "operation": operation, "attempt": attempt,
            "resourceVersion": pod.resource_version(), "shard": { "of": [1, 2] },
            "since": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:01:00Z",
            "containers": [{ "name": "main", "containerID": "run-1", "sidecar": true }],
        }));
    }
    let epoch = json!({ "of": "etcd" });
    let mark = written[1]["resourceVersion"].clone();
    let ledger = json!({ "watermark": mark, "attempts": 7, "claims": written, "epoch": epoch });
    forge(&scope, ledger).await;

    wait::until("a place to be given", async || {
        scope.delete(&pods[2]).await.is_ok()
    })
    .await;
    let ledger = stored(&scope).await;
    assert!(ledger["attempts"].as_i64() > Some(7), "{ledger}");
    let claims = ledger["claims"].as_array().unwrap();
    for claim in &written {
        assert!(claims.contains(claim), "{claim} is not in {ledger}");
    }
    assert_eq!(ledger["epoch"], epoch);
    // Pods that hold a claim need no further claim.
    for pod in &pods[..2] {
        scope.delete(pod).await.unwrap();
    }
    scope.all_available("app=web", 4).await;
    scope.until_at_rest("web", 4).await;
    assert_eq!(stored(&scope).await["epoch"], epoch);
}

/// A ledger as written by builds from before the format had a number.
#[tokio::test]
async fn ledger_without_a_format_is_taken_over() {
    let bed = Bed::shared().await;
    let scope = bed.scope("before").await;
    let pods = scope.web_under_rule(3, json!(1)).await;
    scope.delete(&pods[0]).await.unwrap();
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
    let before = mark(&scope).await;
    forge(&scope, json!({"formatVersion": null})).await;
    assert_eq!(
        scope
            .status::<RuleStatus>("web")
            .await
            .ledger
            .unwrap()
            .format_version,
        0
    );
    wait::until("a place to be given", async || {
        scope.delete(&pods[1]).await.is_ok()
    })
    .await;
    let ledger = scope.status::<RuleStatus>("web").await.ledger.unwrap();
    assert_eq!(ledger.format_version, 1);
    assert!(mark(&scope).await >= before);
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
}

/// In the backup the budget is used up; in the later state that the replicas have seen it is free.
#[tokio::test]
async fn restored_etcd_ends_the_replicas_and_admits_nothing() {
    let bed = Bed::own().await;
    let scope = bed.scope("etcd").await;
    scope.deploy_where_open("web", 5).await;
    let pods = names(&scope.all_available("app=web", 5).await);
    scope.rule("web", json!({"app": "web"}), json!(2)).await;
    scope.until_at_rest("web", 5).await;
    scope.close_nodes().await;
    for pod in &pods[..2] {
        scope.delete(pod).await.unwrap();
    }
    scope
        .until_status("web", "both to be gone", |s: &RuleStatus| {
            s.unavailable_pods == 2 && claims(s) == 0
        })
        .await;
    assert_eq!(refusal(scope.delete(&pods[2]).await).code, 429);
    let (deleted_scope, forgotten) = pods_under_zero_budget(&bed).await;
    let backup = bed.back_up_etcd().await.unwrap();
    scope.open_nodes().await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
    // Objects that the restoration brings back and no cache knows: the Pods and the only rule of a namespace.
    deleted_scope
        .rules()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    deleted_scope.scale("web", 0).await.unwrap();
    wait::until("the Pods to be deleted", async || {
        deleted_scope.list("app=web").await.is_empty()
    })
    .await;
    // The caches have a newer version of these Pods than the backup.
    for pod in &pods[2..4] {
        let touch = json!({"metadata": {"annotations": {"touched": "after the backup"}}});
        scope.patch(pod, touch).await.unwrap();
    }

    bed.restore_etcd(&backup).await.unwrap();
    let mut admitted = Vec::new();
    let ended = async {
        let ends = (0..3).map(|index| bed.until_ended(index));
        futures::future::join_all(ends).await
    };
    tokio::pin!(ended);
    let ended = loop {
        tokio::select! {
            ended = &mut ended => break ended,
            () = tokio::time::sleep(Duration::from_millis(20)) => {
                for pod in &pods[2..] {
                    admitted.extend(scope.delete(pod).await.is_ok().then_some(pod));
                }
                admitted.extend(deleted_scope.delete(&forgotten[0]).await.is_ok().then_some(&forgotten[0]));
                admitted.extend(deleted_scope.evict(&forgotten[1]).await.is_ok().then_some(&forgotten[1]));
            }
        }
    };
    assert!(
        admitted.is_empty(),
        "{admitted:?} of a budget that is used up"
    );
    for (code, log) in ended {
        assert_eq!(code, Some(1), "{log}");
        assert!(
            log.contains("etcd was restored to an earlier state"),
            "{log}"
        );
    }

    // Writes the status as the kubelet does.
    for index in 0..3 {
        bed.restart(index).await;
    }
    for pod in &pods[2..] {
        assert_eq!(refusal(scope.delete(pod).await).code, 429);
    }
    scope.open_nodes().await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
    wait::until("a place to be given", async || {
        scope.delete(&pods[2]).await.is_ok()
    })
    .await;
    scope.all_available("app=web", 5).await;
    scope.until_at_rest("web", 5).await;
}

/// A namespace with two Pods and a rule that allows no disruption.
async fn pods_under_zero_budget(bed: &Bed) -> (Scope, Vec<String>) {
    let scope = bed.scope("gone").await;
    scope.deploy_where_open("web", 2).await;
    scope.all_available("app=web", 2).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    let pods = names(&scope.list("app=web").await);
    wait::until("the rule to hold", async || {
        let outcome = scope.delete(&pods[0]).await;
        refusal(outcome).message.contains("PodTransitionRule web")
    })
    .await;
    (scope, pods)
}
