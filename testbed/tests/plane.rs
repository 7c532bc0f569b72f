//! The test bed itself, on a real plane.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::SubjectAccessReview;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{Api, DynamicObject, EvictParams, ListParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::json;
use testbed::plane::audit::{Filter, TEST_USER_AGENT};
use testbed::plane::{Options, Plane, shared};
use testbed::pods::is_ready;
use testbed::wait;

async fn three_ready(pods: &Api<Pod>) -> Vec<Pod> {
    wait::value("three Ready Pods", || async {
        let list = pods.list(&ListParams::default()).await.unwrap().items;
        let ready: Vec<_> = list.into_iter().filter(is_ready).collect();
        (ready.len() == 3).then_some(ready)
    })
    .await
}

async fn deploy(plane: &Plane, namespace: &str) -> Api<Pod> {
    let client = plane.client().unwrap();
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "main", "image": "web:1"}]},
            },
        },
    }))
    .unwrap();
    Api::<Deployment>::namespaced(client.clone(), namespace)
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    Api::namespaced(client, namespace)
}

#[tokio::test]
async fn pods_get_ready_and_an_evicted_one_is_replaced() {
    let plane = shared().await.unwrap();
    let namespace = plane.namespace("evict").await.unwrap();
    let pods = deploy(plane, &namespace).await;
    let first = three_ready(&pods).await[0].clone();
    let name = first.metadata.name.unwrap();
    pods.evict(&name, &EvictParams::default()).await.unwrap();
    wait::value("the evicted Pod to be deleted", || async {
        pods.get_opt(&name).await.unwrap().is_none().then_some(())
    })
    .await;
    let names: Vec<_> = three_ready(&pods)
        .await
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect();
    assert!(!names.contains(&name));
}

#[tokio::test]
async fn kubectl_is_there_and_a_wrong_object_is_refused() {
    let plane = shared().await.unwrap();
    let namespace = plane.namespace("kubectl").await.unwrap();
    let output = plane
        .kubectl(["version", "--output=json"])
        .output()
        .await
        .unwrap();
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let kubernetes = testbed::binaries::Kubernetes::of_environment().unwrap();
    assert_eq!(version["clientVersion"]["gitVersion"], kubernetes.version());
    let output = plane
        .kubectl(["-n", &namespace, "run", "Bad_Name", "--image=x"])
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("Bad_Name"));
}

#[tokio::test]
async fn service_account_may_only_what_rbac_grants() {
    let plane = shared().await.unwrap();
    let namespace = plane.namespace("rbac").await.unwrap();
    let kubeconfig = plane
        .kubeconfig_for_service_account(&namespace, "default")
        .await
        .unwrap();
    let client = plane.client_from(&kubeconfig).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let kube::Error::Api(status) = pods.list(&ListParams::default()).await.unwrap_err() else {
        panic!("an answer of the API server")
    };
    assert_eq!(status.code, 403);
    let user = format!("system:serviceaccount:{namespace}:default");
    assert!(status.message.contains(&user), "{}", status.message);
}

#[tokio::test]
async fn no_component_is_an_administrator() {
    let plane = shared().await.unwrap();
    let reviews: Api<SubjectAccessReview> = Api::all(plane.client().unwrap());
    for (user, groups) in [
        ("system:kube-scheduler", vec![]),
        ("system:kube-controller-manager", vec![]),
        ("operating-plane:kwok", vec!["system:nodes"]),
    ] {
        let review: SubjectAccessReview = serde_json::from_value(json!({
            "metadata": {},
            "spec": {
                "user": user,
                "groups": groups,
                "resourceAttributes": {"verb": "delete", "resource": "namespaces"},
            },
        }))
        .unwrap();
        let answer = reviews
            .create(&PostParams::default(), &review)
            .await
            .unwrap();
        assert!(!answer.status.unwrap().allowed, "{user}");
    }
}

#[tokio::test]
async fn api_server_can_be_stopped_frozen_and_brought_back() {
    let plane = Plane::start(Options {
        nodes: 1,
        ..Options::default()
    })
    .await
    .unwrap();
    let namespace = plane.namespace("faults").await.unwrap();
    let pods: Api<Pod> = Api::namespaced(plane.client().unwrap(), &namespace);
    let all = ListParams::default();

    // One list is one event, even immediately after the answer, although the log is written in batches.
    let lists = Filter {
        user_agent: Some(TEST_USER_AGENT),
        verb: Some("list"),
        resource: Some("pods"),
        namespace: Some(&namespace),
        code: Some(200),
        ..Filter::default()
    };
    assert_eq!(plane.audit_count(&lists).await.unwrap(), 0);
    pods.list(&all).await.unwrap();
    assert_eq!(plane.audit_count(&lists).await.unwrap(), 1);

    plane.pause_apiserver().await.unwrap();
    let frozen = tokio::time::timeout(Duration::from_millis(300), pods.list(&all)).await;
    assert!(frozen.is_err(), "a frozen API server answers nothing");
    plane.resume_apiserver().await.unwrap();
    pods.list(&all).await.unwrap();

    plane.stop_apiserver().await.unwrap();
    assert!(pods.list(&all).await.is_err());
    let error = plane.pause_apiserver().await.unwrap_err();
    assert!(error.to_string().contains("start it first"));
    plane.start_apiserver().await.unwrap();
    pods.list(&all).await.unwrap();
    plane.stop().await;
}

#[tokio::test]
async fn component_that_fails_is_named_with_its_log() {
    let error = Plane::start(Options {
        apiserver_flags: vec!["--no-such-flag".to_owned()],
        ..Options::default()
    })
    .await
    .unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("kube-apiserver ended"), "{text}");
    assert!(text.contains("unknown flag: --no-such-flag"), "{text}");
}

#[tokio::test]
async fn cert_manager_issues_a_certificate() {
    let plane = Plane::start(Options {
        nodes: 1,
        ..Options::default()
    })
    .await
    .unwrap();
    plane.cert_manager().await.unwrap();
    let namespace = plane.namespace("certs").await.unwrap();
    let client = plane.client().unwrap();
    let create = async |kind: &str, spec: serde_json::Value| {
        let gvk = GroupVersionKind::gvk("cert-manager.io", "v1", kind);
        let resource = ApiResource::from_gvk(&gvk);
        let object = DynamicObject::new("test", &resource).data(json!({"spec": spec}));
        Api::<DynamicObject>::namespaced_with(client.clone(), &namespace, &resource)
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
    };
    create("Issuer", json!({"selfSigned": {}})).await;
    let dns = json!(["test.example"]);
    let issuer = json!({"name": "test"});
    create(
        "Certificate",
        json!({"secretName": "tls", "dnsNames": dns, "issuerRef": issuer}),
    )
    .await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let secret = wait::value("the certificate's Secret", || async {
        secrets.get_opt("tls").await.unwrap()
    })
    .await;
    assert!(secret.data.unwrap().contains_key("tls.crt"));
    plane.stop().await;
}
