//! Requests that no rule covers, and what continues when every replica is dead.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use operating::api::keys;
use serde_json::json;
use testbed::observer::Observer;
use testbed::pods::labels;
use testbed::scope::refusal;
use testbed::{Bed, Scope, wait};

/// Creates, updates, evicts and deletes Pods.
async fn everything(scope: &Scope, labels: serde_json::Value) {
    scope.evict(&live(scope, labels).await).await.unwrap();
    wait::until("both to be deleted", async || {
        scope.list("note=x").await.is_empty()
    })
    .await;
}

/// Creates, updates and deletes Pods. Returns the name of a Pod that is left.
async fn live(scope: &Scope, labels: serde_json::Value) -> String {
    for name in ["one", "two"] {
        scope
            .pod(name, json!({"metadata": {"labels": labels}}))
            .await;
        scope
            .until_pod(name, "run", |p| {
                p.status
                    .as_ref()
                    .is_some_and(|s| s.phase.as_deref() == Some("Running"))
            })
            .await;
        scope.label(name, json!({"note": "x"})).await.unwrap();
        let status = Patch::Merge(json!({"status": {"message": "x"}}));
        scope
            .pods()
            .patch_status(name, &PatchParams::default(), &status)
            .await
            .unwrap();
    }
    scope.delete("two").await.unwrap();
    "one".to_owned()
}

/// A namespace with two available Pods and a rule that allows no disruption.
async fn closed(bed: &Bed) -> Scope {
    let scope = bed.scope("closed").await;
    scope.deploy("web", 2, json!({})).await;
    scope.all_available("app=web", 2).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 2).await;
    scope
}

#[tokio::test]
async fn owner_deletion_deletes_its_pods_despite_rule() {
    let scope = closed(Bed::shared().await).await;
    let pods = scope.list("app=web").await;
    scope
        .deployments()
        .delete("web", &DeleteParams::background())
        .await
        .unwrap();
    for pod in &pods {
        scope.until_gone(pod).await;
    }
    scope.until_at_rest("web", 0).await;
}

#[tokio::test]
async fn namespace_with_rules_and_pods_can_be_deleted() {
    closed(Bed::shared().await).await.delete_namespace().await;
}

/// The Pod garbage collector sets the Pods of a Node that is gone to Failed, and then deletes them.
#[tokio::test]
async fn pods_of_deleted_node_are_deleted_and_use_the_budget() {
    let bed = Bed::own().await;
    let scope = bed.scope("node").await;
    scope.deploy_where_open("web", 6).await;
    let pods = scope.all_available("app=web", 6).await;
    scope.close_nodes().await;
    scope.rule("web", json!({"app": "web"}), json!(1)).await;
    scope.until_at_rest("web", 6).await;
    let node_of = |pod: &Pod| pod.spec.as_ref().unwrap().node_name.clone().unwrap();
    let node = node_of(&pods[0]);
    let (lost, others): (Vec<_>, Vec<_>) = pods.iter().partition(|pod| node_of(pod) == node);
    assert!(!others.is_empty(), "Pods on other nodes");

    let nodes: Api<Node> = Api::all(scope.client.clone());
    nodes.delete(&node, &DeleteParams::default()).await.unwrap();
    // The limit is one, so all these deletions can only pass because they are exempt.
    for pod in &lost {
        scope.until_gone(pod).await;
    }
    let figures = format!("{} of 6 Pods are unavailable, the limit is 1", lost.len());
    for pod in others {
        let status = refusal(scope.delete(&pod.name_any()).await);
        assert!(
            status.code == 429 && status.message.contains(&figures),
            "{status:?}"
        );
    }
}

/// The Job controller deletes the Pods of a failed Job before it writes the failure to the status.
#[tokio::test]
async fn job_past_its_deadline_ends_under_zero_budget() {
    let scope = Bed::shared().await.scope("job").await;
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "parallelism": 3, "completions": 3,
            "template": {
                "metadata": {"labels": labels("web")},
                "spec": {
                    "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "web:1"}],
                },
            },
        },
    }))
    .unwrap();
    let jobs: Api<Job> = Api::namespaced(scope.client.clone(), &scope.namespace);
    jobs.create(&PostParams::default(), &job).await.unwrap();
    scope.all_available("app=web", 3).await;
    scope.rule("web", json!({"app": "web"}), json!(0)).await;
    scope.until_at_rest("web", 3).await;
    let pod = &scope.list("app=web").await[0];
    assert_eq!(refusal(scope.delete(&pod.name_any()).await).code, 429);
    let deadline = Patch::Merge(json!({"spec": {"activeDeadlineSeconds": 1}}));
    jobs.patch("web", &PatchParams::default(), &deadline)
        .await
        .unwrap();
    wait::until("the Job to fail", async || {
        let job = jobs.get("web").await.unwrap();
        let mut all = job.status.and_then(|s| s.conditions).into_iter().flatten();
        all.any(|c| c.type_ == "Failed" && c.status == "True")
    })
    .await;
}

/// The Job controller deletes all Pods of a suspended Job, including Pods that the Job has adopted and not created.
#[tokio::test]
async fn job_that_adopts_pods_does_not_free_them() {
    let scope = Bed::shared().await.scope("adopts").await;
    let never = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"restartPolicy": "Never"}});
    for name in ["one", "two", "three"] {
        scope.pod(name, never.clone()).await;
    }
    scope.all_available("app=web", 3).await;
    let all = json!([{"name": "all", "availablePolicy": {"minAvailableValue": 3}}]);
    let selector = json!({"matchLabels": {"app": "web"}});
    scope
        .try_rule("web", json!({"selector": selector, "rules": all}))
        .await
        .unwrap();
    scope.until_at_rest("web", 3).await;
    let observer = Observer::start(&scope).await;
    // Creation times are whole seconds, and the Job must be younger than the Pods.
    tokio::time::sleep(std::time::Duration::from_millis(1_100)).await;
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "manualSelector": true, "selector": {"matchLabels": {"app": "web"}},
            "suspend": true, "parallelism": 3,
            "template": {
                "metadata": {"labels": labels("web")},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }))
    .unwrap();
    let jobs: Api<Job> = Api::namespaced(scope.client.clone(), &scope.namespace);
    jobs.create(&PostParams::default(), &job).await.unwrap();
    let events: Api<Event> = Api::namespaced(scope.client.clone(), &scope.namespace);
    wait::until("a deletion that was refused", async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let mut failed = all
            .into_iter()
            .filter(|e| e.reason.as_deref() == Some("FailedDelete"));
        failed.any(|e| e.involved_object.kind.as_deref() == Some("Job"))
    })
    .await;
    observer.fewest_available(|_| true, 3).await.at_least(3);
}

#[tokio::test]
async fn unmanaged_pods_are_never_held() {
    let bed = Bed::shared().await;
    let scope = closed(bed).await;
    scope.rule("all", json!({}), json!(0)).await;
    everything(&scope, json!({keys::CONTROL: null})).await;
}

#[tokio::test]
async fn dead_replicas_block_only_requests_that_rules_cover() {
    let bed = Bed::own().await;
    let free = bed.scope("free").await;
    let (ruled, going) = (closed(&bed).await, closed(&bed).await);
    bed.kill_all().await;
    everything(&free, json!({})).await;
    everything(&free, json!({keys::CONTROL: null})).await;
    // The match conditions can't select an eviction by its Pod, so without a server the API server refuses all
    // evictions in namespaces with rules.
    let unmanaged = live(&ruled, json!({keys::CONTROL: null})).await;
    assert!(
        refusal(ruled.evict(&unmanaged).await)
            .message
            .contains("failed calling webhook")
    );
    ruled.delete(&unmanaged).await.unwrap();
    going.delete_namespace().await;
    let pod = &ruled.list("app=web").await[0];
    let name = pod.metadata.name.as_deref().unwrap();
    let status = Patch::Merge(json!({"status": {"message": "x"}}));
    ruled
        .pods()
        .patch_status(name, &PatchParams::default(), &status)
        .await
        .unwrap();
    for outcome in [ruled.delete(name).await, ruled.evict(name).await] {
        assert!(refusal(outcome).message.contains("failed calling webhook"));
    }
    // The replicas start again and enforce the rule again.
    for index in 0..3 {
        bed.restart(index).await;
    }
    wait::until("the rule to answer", async || {
        let answer = refusal(ruled.delete(name).await);
        answer.code == 429 && answer.message.contains("the limit is 0")
    })
    .await;
}
