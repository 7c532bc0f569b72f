//! `operating why` about workloads and about several objects, on a real API server.

use kube::api::{Api, Patch, PatchParams, PostParams};
use operating::api::collaset::CollaSet;
use serde_json::{Value, json};
use testbed::{Scope, wait};

use crate::plugin::ask_plugin;
use crate::wait_events::bed;

/// The diagnosis of an object, once it satisfies the condition.
async fn until_diagnosis(
    scope: &Scope,
    object: &str,
    condition: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    wait::value(condition, async || {
        let args = ["why", object, "-n", &scope.namespace, "-o", "json"];
        let said = ask_plugin(bed().await, None, &args).await;
        Some(said.json()).filter(|diagnosis| wanted(diagnosis))
    })
    .await
}

/// The first group of Pods that wait.
fn first_group(diagnosis: &Value) -> (&str, &str) {
    let group = &diagnosis["waits"][0];
    let text = |field: &str| group[field].as_str().unwrap_or_default();
    (text("kind"), text("reason"))
}

#[tokio::test]
async fn unschedulable_pod_is_explained_by_the_scheduler() {
    let scope = bed().await.scope("why-workload").await;
    let sets: Api<CollaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": {
                    "nodeSelector": { "no": "such" },
                    "containers": [{ "name": "main", "image": "web:1" }],
                },
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    sets.create(&PostParams::default(), &set).await.unwrap();
    let scheduler = "it is not scheduled to a node: 0/";
    let diagnosis = until_diagnosis(&scope, "cls/web", "both Pods to be unschedulable", |why| {
        let (kind, reason) = first_group(why);
        kind == "stuck" && reason.starts_with(scheduler) && why["waits"][0]["count"] == 2
    })
    .await;
    assert_eq!(diagnosis["workload"]["replicas"], 2);
    let summary = diagnosis["summary"].as_str().unwrap();
    assert!(
        summary.starts_with("CollaSet web: 2 replicas, ") && summary.contains(scheduler),
        "{summary}"
    );
    let pod = diagnosis["waits"][0]["pods"][0].as_str().unwrap();
    let pod = until_diagnosis(&scope, pod, "the message of the scheduler", |why| {
        let reason = why["pod"]["unavailableBecause"].as_str();
        reason.is_some_and(|reason| reason.starts_with(scheduler))
    })
    .await;
    let summary = pod["summary"].as_str().unwrap();
    assert!(!summary.contains("service-ready"), "{summary}");
}

#[tokio::test]
async fn rule_that_stops_rollout_of_deployment_is_named() {
    let scope = bed().await.scope("why-workload").await;
    scope.web_under_rule(2, json!(0)).await;
    let idle = until_diagnosis(&scope, "deploy/web", "the Deployment at rest", |why| {
        why["waits"] == json!([]) && why["workload"]["available"] == 2
    })
    .await;
    let summary = idle["summary"].as_str().unwrap();
    assert!(summary.ends_with("and nothing waits"), "{summary}");
    assert_eq!(idle["rules"][0]["pods"], 2);

    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "web:2" }] } } } });
    let (deployments, image) = (scope.deployments(), Patch::Strategic(image));
    let params = PatchParams::default();
    let patched = deployments.patch("web", &params, &image);
    patched.await.unwrap();
    let diagnosis = until_diagnosis(
        &scope,
        "deployment.apps/web",
        "the old Pods to be held",
        |why| {
            let group = &why["waits"][0];
            group["kind"] == "rule" && group["count"] == 2
        },
    )
    .await;
    let (_, reason) = first_group(&diagnosis);
    assert_eq!(reason, "rule availability of PodTransitionRule web");
}

#[tokio::test]
async fn missing_object_is_reported_after_the_others() {
    let bed = bed().await;
    let scope = bed.scope("why-several").await;
    for pod in ["a", "b"] {
        scope.pod(pod, json!({})).await;
    }
    let namespace = scope.namespace.as_str();
    let objects = ["why", "pod/a", "deploy/nobody", "pod/b", "-n", namespace];
    let said = ask_plugin(bed, None, &[&objects[..], &["-o", "json"]].concat()).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    let lines = said.out.lines();
    let names =
        lines.map(|line| serde_json::from_str::<Value>(line).unwrap()["pod"]["name"].clone());
    assert_eq!(names.collect::<Vec<_>>(), [json!("a"), json!("b")]);
    assert!(
        said.err.contains("there is no Deployment nobody")
            && said.err.contains("kubectl get deployments"),
        "{said:?}"
    );
    let text = ask_plugin(bed, None, &["why", "pod", "a", "b", "-n", namespace]).await;
    assert_eq!(text.code, Some(0), "{text:?}");
    assert!(text.out.starts_with("Pod a "), "{text:?}");
    assert!(text.out.contains("\n\nPod b "), "{text:?}");
}
