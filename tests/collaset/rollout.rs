//! Sets under a rule: no more Pods are out of service than the rule allows, and no Pod waits for the slowest Pod.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use operating::api::keys::Family;
use serde_json::json;
use testbed::observer::Observer;
use testbed::{Bed, Scope};

use crate::external_tools::kubectl;
use crate::fixtures::{Set, is_operating, label};

const PODS: i32 = 20;

/// A set of 20 Pods, of which one in ten may be unavailable.
async fn twenty<'a>(scope: &'a Scope) -> (Set<'a>, Observer) {
    let labels = json!({ "template": { "metadata": { "labels": { "drain": scope.namespace } } } });
    let set = Set::new(scope, "web", PODS, labels).await;
    scope
        .rule("web", json!({ "app": "web" }), json!("10%"))
        .await;
    scope.until_at_rest("web", PODS).await;
    let observer = Observer::start(scope).await;
    (set, observer)
}

#[tokio::test]
async fn all_pods_begin_but_two_at_a_time_operate() {
    let scope = Bed::shared().await.scope("window").await;
    let (set, observer) = twenty(&scope).await;
    set.image("app:2").await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 20]);
    observer.fewest_available(|_| true, 20).await.at_least(18);
    let operate = Family::Operate.key("collaset");
    let (mut now, mut begun, mut operated) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let mut most = 0;
    for pod in observer.versions().await {
        let (name, operates) = (pod.name_any(), label(&pod, &operate).is_some());
        if is_operating(&pod) {
            begun.insert(name.clone());
        }
        if operates && operated.insert(name.clone()) && operated.len() == 3 {
            assert_eq!(
                begun.len(),
                20,
                "no waves: all have begun before the third has its turn"
            );
        }
        now.insert(name, operates);
        most = now.values().filter(|operates| **operates).count().max(most);
    }
    assert_eq!(most, 2, "as many as may, and no more");
}

#[tokio::test]
async fn concurrent_update_drain_and_scale_in_respect_the_rule() {
    let scope = Bed::shared().await.scope("together").await;
    let (set, observer) = twenty(&scope).await;
    set.image("app:2").await;
    let mine = format!("--pod-selector=drain={}", scope.namespace);
    let drain = ["drain", "worker-0", &mine, "--timeout=400s"];
    tokio::join!(kubectl(&scope, &drain), set.edit(json!({ "replicas": 16 })));
    // The last Pod is recreated after the drain has ended.
    set.settled().await;
    kubectl(&scope, &["uncordon", "worker-0"]).await;
    assert_eq!(set.images().await, ["app:2"; 16]);
    for pod in set.pods().await.values() {
        assert_eq!(
            pod.spec.as_ref().unwrap().node_name.as_deref(),
            Some("worker-1")
        );
    }
    // From the edit on 16 Pods are expected, of which two may be unavailable.
    observer.fewest_available(|_| true, 20).await.at_least(14);
}

#[tokio::test]
async fn update_that_moves_pods_under_another_rule_completes() {
    let scope = Bed::shared().await.scope("enters").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let tier = json!({ "app": "web", "tier": "new" });
    scope.rule("tier", tier.clone(), json!(1)).await;
    let template = json!({
        "metadata": { "labels": tier },
        "spec": { "containers": [{ "name": "app", "image": "app:2" }] },
    });
    set.edit(json!({ "template": template })).await;
    set.settled().await;
    assert_eq!(set.images().await, ["app:2"; 3]);
    scope.until_at_rest("tier", 3).await;
}
