//! kubectl, disruption budgets and autoscaling on a set.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, DeleteParams, PostParams};
use rustls::ServerConfig;
use rustls_pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use testbed::{Bed, Scope, wait};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::fixtures::Set;

/// Runs `kubectl ARGS… -n NAMESPACE`, which must succeed.
pub async fn kubectl(scope: &Scope, args: &[&str]) -> String {
    let output = Bed::shared().await.ask_kubectl_in(scope, args).await;
    output.success().text()
}

/// Runs the command of docs/collasets.md.
#[tokio::test]
async fn kubectl_takes_a_rollout_back() {
    let scope = Bed::shared().await.scope("undo").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let former = set.get().await;
    let revision = former.status.unwrap().current_revision;
    let added = json!({ "template": {
        "metadata": { "annotations": { "added": "1" } },
        "spec": { "containers": [{ "name": "app", "image": "app:2" }] },
    } });
    set.edit(added).await;
    set.settled().await;
    let template = [
        "get",
        "controllerrevision",
        &revision,
        "-o",
        "jsonpath={.data.spec.template}",
    ];
    let template = kubectl(&scope, &template).await;
    let template = template.replace("\"$patch\":\"replace\",", ""); // as sed does
    let patch = format!(r#"[{{"op":"replace","path":"/spec/template","value":{template}}}]"#);
    kubectl(
        &scope,
        &["patch", "collaset", "web", "--type=json", "-p", &patch],
    )
    .await;
    let undone = set.settled().await;
    assert_eq!(undone.spec.template, former.spec.template);
    assert_eq!(undone.status.unwrap().updated_revision, revision);
    assert_eq!(set.images().await, ["app:1"; 2]);
}

#[tokio::test]
async fn kubectl_scales_and_waits() {
    let scope = Bed::shared().await.scope("kubectl").await;
    let set = Set::unsettled(&scope, "web", 1, json!({})).await;
    let wait = [
        "wait",
        "--for=condition=Ready",
        "collaset/web",
        "--timeout=400s",
    ];
    kubectl(&scope, &wait).await;
    kubectl(
        &scope,
        &["scale", "cls/web", "--current-replicas=1", "--replicas=3"],
    )
    .await;
    let generation = set.settled().await.metadata.generation;
    assert_eq!(set.pods().await.len(), 3);
    let scale = set.api.get_scale("web").await.unwrap();
    let status = scale.status.unwrap();
    assert_eq!(
        (status.replicas, status.selector.as_deref()),
        (3, Some("app=web"))
    );
    assert_eq!(scale.spec.unwrap().replicas, Some(3));
    let shown = kubectl(&scope, &["get", "cls", "web"]).await;
    let (columns, row) = shown.split_once('\n').unwrap();
    assert!(columns.starts_with("NAME"), "{shown}");
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row[..6], ["web", "3", "3", "3", "3", "3"], "{shown}");
    assert_eq!(
        generation,
        Some(2),
        "nothing but the edit has changed the spec"
    );
}

#[tokio::test]
async fn disruption_budget_counts_by_scale_subresource() {
    let scope = Bed::shared().await.scope("pdb").await;
    let set = Set::new(&scope, "web", 3, json!({})).await;
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "maxUnavailable": "34%" },
    }))
    .unwrap();
    budgets
        .create(&PostParams::default(), &budget)
        .await
        .unwrap();
    let until = async |expected: i32, healthy: i32, allowed: i32| {
        wait::until(
            &format!("{allowed} of {expected} disruptions"),
            async || {
                let status = budgets.get("web").await.unwrap().status;
                status.is_some_and(|s| {
                    (s.expected_pods, s.current_healthy, s.disruptions_allowed)
                        == (Some(expected), Some(healthy), Some(allowed))
                })
            },
        )
        .await;
    };
    until(3, 3, 2).await;
    set.edit(json!({ "replicas": 5 })).await;
    set.settled().await;
    until(5, 5, 2).await;
}

#[tokio::test]
async fn autoscaler_scales_collaset() {
    let scope = Bed::shared().await.scope("hpa").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let _metrics = Metrics::serve(&scope).await;
    let scalers: Api<HorizontalPodAutoscaler> =
        Api::namespaced(scope.client.clone(), &scope.namespace);
    let scaler = serde_json::from_value(json!({
        "metadata": { "name": "web" },
        "spec": {
            "scaleTargetRef": { "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web" },
            "minReplicas": 1, "maxReplicas": 5,
            "metrics": [{ "type": "External", "external": {
                "metric": { "name": "work" }, "target": { "type": "AverageValue", "averageValue": "2" },
            } }],
        },
    }))
    .unwrap();
    scalers
        .create(&PostParams::default(), &scaler)
        .await
        .unwrap();
    set.until("to be scaled", |set| set.spec.replicas == Some(3))
        .await;
    set.settled().await;
    assert_eq!(set.pods().await.len(), 3);
    let services: Api<APIService> = Api::all(scope.client.clone());
    services
        .delete(METRICS, &DeleteParams::default())
        .await
        .unwrap();
}

const METRICS: &str = "v1beta1.external.metrics.k8s.io";

/// Installs an API of external metrics whose values are always 6.
struct Metrics {
    _serving: AbortOnDropHandle<()>,
}

impl Metrics {
    async fn serve(scope: &Scope) -> Metrics {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = AbortOnDropHandle::new(tokio::spawn(accept(listener)));
        register(scope, address).await;
        Metrics { _serving: serving }
    }
}

/// Registers the API with this address at the API server, and waits until it is served.
async fn register(scope: &Scope, address: SocketAddr) {
    let services: Api<Service> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let service = json!({
        "metadata": { "name": "metrics" }, "spec": { "type": "ExternalName", "externalName": "localhost" },
    });
    let service = serde_json::from_value(service).unwrap();
    services
        .create(&PostParams::default(), &service)
        .await
        .unwrap();
    let apis: Api<APIService> = Api::all(scope.client.clone());
    let api = json!({
        "metadata": { "name": METRICS },
        "spec": {
            "group": "external.metrics.k8s.io", "version": "v1beta1",
            "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
            "service": { "name": "metrics", "namespace": scope.namespace, "port": address.port() },
        },
    });
    let api = serde_json::from_value(api).unwrap();
    apis.create(&PostParams::default(), &api).await.unwrap();
    wait::until("the metrics to be served", async || {
        let status = apis.get(METRICS).await.unwrap().status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter().flatten();
        conditions.any(|c| c.type_ == "Available" && c.status == "True")
    })
    .await;
}

async fn accept(listener: TcpListener) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    let group = "/apis/external.metrics.k8s.io/v1beta1";
    let router = Router::new()
        .route(group, get(async || Json(resources())))
        .route(
            &format!("{group}/namespaces/{{namespace}}/work"),
            get(async || Json(values())),
        );
    while let Ok((stream, _)) = listener.accept().await {
        let (tls, router) = (tls.clone(), router.clone());
        tokio::spawn(async move {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let service = TowerToHyperService::new(router);
            let _ = Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

fn resources() -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "external.metrics.k8s.io/v1beta1",
        "resources": [{
            "name": "work", "singularName": "", "namespaced": true, "kind": "ExternalMetricValueList", "verbs": ["get"],
        }],
    })
}

fn values() -> Value {
    json!({
        "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
        "items": [{ "metricName": "work", "metricLabels": {}, "timestamp": "2026-01-01T00:00:00Z", "value": "6" }],
    })
}
