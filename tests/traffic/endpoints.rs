//! The built-in adapter, which follows EndpointSlices.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt;
use kube::api::{DeleteParams, PostParams};
use operating::api::keys::{self, Family};
use serde_json::json;
use testbed::observer::Observer;
use testbed::{Bed, wait};

use crate::fixtures::Employer;
use crate::sets::{Set, label};

/// The status of the condition Ready.
fn ready(pod: &Pod) -> String {
    let conditions = pod.status.clone().unwrap().conditions.unwrap();
    let ready = conditions.into_iter().find(|c| c.type_ == "Ready");
    ready.unwrap().status
}

#[tokio::test]
async fn operation_begins_when_traffic_is_off_and_ends_when_it_is_on() {
    let scope = Bed::shared().await.scope("traffic-operation").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    web.consistent(3).await;
    let condition = web.condition().await.unwrap();
    assert_eq!(condition.0, "True", "{condition:?}");
    for pod in set.pods().await.values() {
        assert!(web.protects(pod) && web.is_expected(pod));
        assert!(label(pod, keys::SERVICE_AVAILABLE).is_some());
    }
    let pod = set.pod(0).await;
    let name = pod.name_any();
    scope.begin(&name, "manual").await.unwrap();
    let pod = web.marks(&name, (true, false)).await;
    assert_eq!(ready(&pod), "False", "traffic was off before");
    wait::until("the operation to begin", async || {
        let pod = scope.get(&name).await;
        label(&pod, &Family::Operate.key("manual")).is_some()
    })
    .await;
    scope.finish(&name, "manual").await.unwrap();
    let pod = web.marks(&name, (true, true)).await;
    assert_eq!(
        ready(&pod),
        "True",
        "traffic is on only when the Pod is Ready"
    );
    scope.all_available("app=web", 3).await;
    web.consistent(3).await;
}

/// A Pod is not available before requests reach it, from its creation on.
#[tokio::test]
async fn new_pod_expects_traffic_from_its_creation() {
    let scope = Bed::shared().await.scope("traffic-birth").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    web.until("the first report", |_| true).await;
    let set = Set::unsettled(&scope, "web", 1, json!({})).await;
    let pod = wait::value("the Pod", async || scope.list("app=web").await.pop()).await;
    let born = scope.get(&pod.name_any()).await;
    assert!(web.is_expected(&born));
    set.settled().await;
    web.consistent(1).await;
}

/// A Pod that serves already stays available when its Service begins to be managed.
#[tokio::test]
async fn serving_pods_stay_available_when_a_service_joins_and_leaves() {
    let scope = Bed::shared().await.scope("traffic-join").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let observer = Observer::start(&scope).await;
    let web = Employer::new(&scope, "web", json!({})).await;
    web.consistent(2).await;
    let names: Vec<_> = set
        .pods()
        .await
        .values()
        .map(|pod| pod.name_any())
        .collect();
    for name in &names {
        web.marks(name, (true, true)).await;
    }
    web.delete().await;
    web.gone().await;
    for name in &names {
        web.marks(name, (false, false)).await;
    }
    observer.fewest_available(|_| true, 2).await.at_least(2);
}

#[tokio::test]
async fn pod_that_leaves_the_selection_loses_its_marks() {
    let scope = Bed::shared().await.scope("traffic-relabel").await;
    let web = Employer::new(
        &scope,
        "web",
        json!({ "spec": { "selector": { "lane": "a" } } }),
    )
    .await;
    let template = json!({ "template": { "metadata": { "labels": { "lane": "a" } } } });
    let set = Set::new(&scope, "web", 1, template).await;
    web.consistent(1).await;
    let name = set.pod(0).await.name_any();
    web.marks(&name, (true, true)).await;
    let lane = |value| json!({ "metadata": { "labels": { "lane": value } } });
    scope.patch(&name, lane("b")).await.unwrap();
    web.marks(&name, (false, false)).await;
    scope.all_available("app=web", 1).await;
    scope.patch(&name, lane("a")).await.unwrap();
    web.marks(&name, (true, true)).await;
}

#[tokio::test]
async fn plain_deletion_waits_for_the_drain_time() {
    let scope = Bed::shared().await.scope("traffic-delete").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    web.consistent(2).await;
    let pod = set.pod(0).await;
    scope.delete(&pod.name_any()).await.unwrap();
    wait::until("the Pod to be replaced", async || {
        let pods = scope.list("app=web").await;
        pods.len() == 2 && pods.iter().all(|p| p.uid() != pod.uid())
    })
    .await;
    web.consistent(2).await;
    set.settled().await;
}

/// The slice names the Pod, and nobody fills in the UID.
#[tokio::test]
async fn operation_waits_for_a_slice_that_a_person_has_written() {
    let scope = Bed::shared().await.scope("traffic-slice").await;
    let web = Employer::new(&scope, "web", json!({})).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    web.consistent(1).await;
    let pod = set.pod(0).await;
    let name = pod.name_any();
    let address = pod.status.unwrap().pod_ip.unwrap();
    let slice: EndpointSlice = serde_json::from_value(json!({
        "metadata": { "name": "by-hand", "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": [address], "conditions": { "ready": true },
            "targetRef": { "kind": "Pod", "namespace": scope.namespace, "name": name },
        }],
        "ports": [{ "name": "", "port": 80, "protocol": "TCP" }],
    }))
    .unwrap();
    let slices = scope.api::<EndpointSlice>();
    slices.create(&PostParams::default(), &slice).await.unwrap();
    scope.begin(&name, "manual").await.unwrap();
    web.until("the Pod to be ready in one slice of two", |report| {
        let mut waiting = report.waiting.iter();
        report.draining == 1 && waiting.any(|member| member.state == "Pending")
    })
    .await;
    slices
        .delete("by-hand", &DeleteParams::default())
        .await
        .unwrap();
    scope
        .until_pod(&name, "the operation to begin", |pod| {
            label(pod, &Family::Operate.key("manual")).is_some()
        })
        .await;
}

#[tokio::test]
async fn services_that_say_nothing_about_readiness_are_refused() {
    let scope = Bed::shared().await.scope("traffic-refused").await;
    let part = json!({ "spec": { "publishNotReadyAddresses": true } });
    let web = Employer::new(&scope, "web", part).await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let report = web
        .until("the refusal", |report| report.last_error.is_some())
        .await;
    let error = report.last_error.unwrap();
    assert!(
        error.starts_with("spec.publishNotReadyAddresses is true"),
        "{error}"
    );
    let pod = set.pod(0).await;
    assert!(!web.protects(&pod) && !web.is_expected(&pod));
    let condition = web.condition().await.unwrap();
    assert_eq!((&*condition.0, &*condition.1), ("False", "Failed"));
    web.edit(json!({ "spec": { "publishNotReadyAddresses": false } }))
        .await;
    web.consistent(1).await;
    web.marks(&pod.name_any(), (true, true)).await;
    web.delete().await;
    web.gone().await;
}
