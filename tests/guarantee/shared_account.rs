//! A kube-controller-manager without `--use-service-account-credentials`: the garbage collector and the namespace
//! controller have the same user name as the controllers that scale and roll out.

use kube::api::{Patch, PatchParams};
use serde_json::json;
use testbed::observer::Observer;
use testbed::plane::audit::Filter;
use testbed::pods::is_available;
use testbed::{Bed, Scope, wait};

/// Requests of the shared account to delete a Pod of a namespace, answered with this code.
async fn deletions(bed: &Bed, scope: &Scope, code: u16) -> usize {
    let filter = Filter {
        user: Some("system:kube-controller-manager"),
        verb: Some("delete"),
        resource: Some("pods"),
        namespace: Some(&scope.namespace),
        code: Some(code),
        ..Filter::default()
    };
    bed.audit_count(&filter).await.unwrap()
}

async fn web_under_rule(bed: &Bed, replicas: usize, max_unavailable: i32) -> Scope {
    let scope = bed.scope("shared-account").await;
    scope.web_under_rule(replicas, json!(max_unavailable)).await;
    scope
}

async fn deletion_of_a_deployment_ends_all_pods(bed: &Bed) {
    let scope = web_under_rule(bed, 4, 0).await;
    let delete = ["delete", "deploy", "web", "-n", &scope.namespace];
    let _ = bed.ask_kubectl(&delete).await.success();
    wait::until("all Pods to be deleted", async || {
        scope.list("app=web").await.is_empty()
    })
    .await;
    assert!(deletions(bed, &scope, 200).await >= 4);
}

async fn deletion_of_a_namespace_ends_all_pods(bed: &Bed) {
    let scope = web_under_rule(bed, 2, 0).await;
    scope.delete_namespace().await;
}

async fn rollout_keeps_to_the_limit(bed: &Bed) {
    let scope = web_under_rule(bed, 6, 1).await;
    let observer = Observer::start(&scope).await;
    // The ReplicaSet controller deletes three old Pods at the same time.
    let containers = json!([{"name": "main", "image": "web:2"}]);
    let patch = Patch::Merge(json!({"spec": {
        "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}},
        "template": {"spec": {"containers": containers}},
    }}));
    let deployments = scope.deployments();
    deployments
        .patch("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
    wait::until("the rollout to end", async || {
        let pods = scope.list("app=web").await;
        let new = pods.iter().filter(|pod| {
            let containers = &pod.spec.as_ref().unwrap().containers;
            containers[0].image.as_deref() == Some("web:2") && is_available(pod)
        });
        pods.len() == 6 && new.count() == 6
    })
    .await;
    observer.fewest_available(|_| true, 6).await.at_least(5);
    assert!(deletions(bed, &scope, 429).await > 0);
    assert!(deletions(bed, &scope, 200).await >= 6);
}

async fn scale_in_ends_the_surplus_alone(bed: &Bed) {
    let scope = web_under_rule(bed, 6, 1).await;
    let observer = Observer::start(&scope).await;
    scope.scale("web", 3).await.unwrap();
    scope.all_available("app=web", 3).await;
    scope.until_at_rest("web", 3).await;
    observer.fewest_available(|_| true, 6).await.at_least(3);
    assert!(deletions(bed, &scope, 200).await >= 3);
}

/// These are one test, because each would need a control plane of its own.
#[tokio::test]
async fn shared_controller_account_collects_garbage_within_limits() {
    let bed = Bed::with_shared_controller_account().await;
    tokio::join!(
        deletion_of_a_deployment_ends_all_pods(&bed),
        deletion_of_a_namespace_ends_all_pods(&bed),
        rollout_keeps_to_the_limit(&bed),
        scale_in_ends_the_surplus_alone(&bed),
    );
}
