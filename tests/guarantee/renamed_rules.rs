//! A rule that is renamed by creating the new object first, while requests wait for the old rule: the new rule holds
//! them.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::pods::{at_once, names};
use testbed::{Bed, Scope};
use tokio::time::sleep;

const PODS: usize = 8;
const ROUNDS: usize = 6;

/// The change of the rule `old` once `new` is stored beside it.
async fn end(scope: &Scope, round: usize) {
    let (rules, params) = (scope.rules(), PatchParams::default());
    let change = match round % 3 {
        0 => {
            rules.delete("old", &Default::default()).await.unwrap();
            return;
        }
        1 => json!({"selector": {"matchLabels": {"app": "other"}}}),
        _ => {
            json!({"rules": [{"name": "availability", "availablePolicy": {"maxUnavailableValue": "100%"}}]})
        }
    };
    let patch = Patch::Merge(json!({"spec": change}));
    rules.patch("old", &params, &patch).await.unwrap();
}

#[tokio::test]
async fn requests_waiting_for_deleted_rule_are_held_by_its_successor() {
    // The namespace has no other writes, so the first claim of a rule waits for the Pod cache.
    let bed = Bed::own().await;
    for round in 0..ROUNDS {
        let scope = bed.scope("renamed").await;
        scope.deploy_where_open("web", PODS).await;
        let pods = names(&scope.all_available("app=web", PODS).await);
        scope.close_nodes().await;
        scope.rule("old", json!({"app": "web"}), json!(1)).await;
        sleep(Duration::from_millis(300)).await;
        let rename = async {
            sleep(Duration::from_millis(400)).await;
            scope.rule("new", json!({"app": "web"}), json!(1)).await;
            sleep(Duration::from_secs(1)).await;
            end(&scope, round).await;
        };
        let disrupt = async {
            let (deleted, evicted) = pods.split_at(PODS / 2);
            futures::future::join(
                at_once(deleted, async |pod| scope.delete(&pod).await),
                at_once(evicted, async |pod| scope.evict(&pod).await),
            )
            .await
        };
        let ((), (deleted, evicted)) = tokio::join!(rename, disrupt);
        let passed_count = deleted.iter().chain(&evicted).filter(|o| o.is_ok()).count();
        assert!(
            passed_count <= 1,
            "round {round}: {passed_count} of {PODS} went"
        );
    }
}
