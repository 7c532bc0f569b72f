//! `operating install` and `operating uninstall` against a real API server, and what the installed objects do while no
//! server runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod collasets_without_server;
mod components;
mod label_policies;
mod manifests;
mod user_rights;

use std::time::Duration;

use cluster::{Cluster, pod};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, Resource, ResourceExt};
use operating::admission::routes::{
    ClientConfig, ConfigurationSettings, MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION, WEBHOOKS,
};
use operating::api::collaset::CollaSet;
use operating::api::{crd, keys};
use operating::cli::install::{self, names};
use operating::cli::uninstall::{leftovers, uninstall};
use serde_json::{Value, json};
use testbed::wait;

/// No server listens at this address.
const NOWHERE: &str = "https://localhost:1";

fn settings(client: ClientConfig) -> ConfigurationSettings {
    ConfigurationSettings {
        client,
        namespace: names::NAMESPACE.into(),
        ca_bundle: None,
        grace_delete: false,
        collasets: true,
        cert_manager: None,
        segment: None,
    }
}

fn url() -> ConfigurationSettings {
    settings(ClientConfig::Url(NOWHERE.into()))
}

async fn everything(client: Client, settings: ConfigurationSettings) {
    install::install_crds(&client, names::NAMESPACE)
        .await
        .unwrap();
    install::install_rbac(
        &client,
        names::NAMESPACE,
        install::EnabledFeatures::ALL_FEATURES,
    )
    .await
    .unwrap();
    install::apply_policies(&client).await.unwrap();
    install::apply_configurations(&client, &settings, false)
        .await
        .unwrap();
}

/// `(name, clientConfig)` of all entries of both configurations.
async fn entries(cluster: &Cluster) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for name in [MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION] {
        let object = cluster.configuration(name).await;
        for entry in object.data["webhooks"].as_array().unwrap() {
            let name = entry["name"].as_str().unwrap().to_owned();
            found.push((name, entry["clientConfig"].clone()));
        }
    }
    found
}

#[tokio::test]
async fn three_installers_at_once_take_over_what_kuperator_left() {
    let cluster = Cluster::start().await;
    cluster.create(kuperator()).await;
    let install = || tokio::spawn(everything(cluster.client(), url()));
    let (a, b, c) = tokio::join!(install(), install(), install());
    a.and(b).and(c).unwrap();

    let found = entries(&cluster).await;
    let all: Vec<_> = WEBHOOKS.iter().map(|w| w.name).collect();
    assert_eq!(
        found.iter().map(|(n, _)| n).collect::<Vec<_>>(),
        all.iter().collect::<Vec<_>>()
    );
    for (webhook, (_, client)) in WEBHOOKS.iter().zip(&found) {
        assert_eq!(
            client,
            &json!({"url": format!("{NOWHERE}{}", webhook.route.path())})
        );
    }

    // A second installation writes nothing.
    let before = cluster
        .configuration(MUTATING_CONFIGURATION)
        .await
        .resource_version();
    everything(cluster.client(), url()).await;
    assert_eq!(
        cluster
            .configuration(MUTATING_CONFIGURATION)
            .await
            .resource_version(),
        before
    );

    // An installer without a CA keeps the stored CA, and so does a change from URL to Service and back.
    install::set_ca_bundle(&cluster.client(), &cluster.ca())
        .await
        .unwrap();
    let service = ClientConfig::Service {
        name: "s".into(),
        namespace: "n".into(),
        port: 443,
    };
    everything(cluster.client(), settings(service)).await;
    let found = entries(&cluster).await;
    assert!(
        found
            .iter()
            .all(|(_, c)| c["service"]["name"] == "s" && c["url"].is_null()),
        "{found:?}"
    );
    everything(cluster.client(), url()).await;
    let found = entries(&cluster).await;
    assert!(
        found
            .iter()
            .all(|(_, c)| c["url"].is_string() && c["service"].is_null()),
        "{found:?}"
    );
    assert!(
        found.iter().all(|(_, c)| c["caBundle"].is_string()),
        "{found:?}"
    );
}

#[tokio::test]
async fn dead_webhook_stops_only_what_rules_may_hold() {
    let cluster = Cluster::start().await;
    everything(cluster.client(), url()).await;
    let (ruled, free) = (
        cluster.namespace("ruled").await,
        cluster.namespace("free").await,
    );
    let labels = json!({"metadata": {"labels": {keys::NAMESPACE_ENFORCEMENT: "true"}}});
    cluster
        .patch::<Namespace>(None, &ruled, "", &labels)
        .await
        .unwrap();
    cluster.until_denied(&ruled).await;

    create_pods_of_both_namespaces(&cluster, &ruled, &free).await;
    assert_covered_requests_are_denied(&cluster, &ruled, &free).await;
    assert_other_requests_pass(&cluster, &ruled, &free).await;

    // The deletion of a namespace deletes its available Pods, too.
    Api::<Namespace>::all(cluster.client())
        .delete(&ruled, &DeleteParams::default())
        .await
        .unwrap();
    cluster
        .until_gone(&Api::<Namespace>::all(cluster.client()), &ruled)
        .await;
    assert_eq!(
        cluster
            .metric("apiserver_admission_match_condition_evaluation_errors_total")
            .await,
        0.0
    );
}

/// Both namespaces have an available Pod, an unavailable Pod and a finished Pod; `ruled` also has an unmanaged Pod.
async fn create_pods_of_both_namespaces(cluster: &Cluster, ruled: &str, free: &str) {
    for namespace in [ruled, free] {
        for name in ["available", "unavailable", "finished"] {
            cluster.create_pod(namespace, pod(name)).await;
        }
        let unavailable = json!({"metadata": {"labels": {keys::SERVICE_AVAILABLE: null}}});
        let finished = json!({"status": {"phase": "Succeeded"}});
        cluster
            .patch::<Pod>(Some(namespace), "finished", "status", &finished)
            .await
            .unwrap();
        let taken_off = cluster
            .patch::<Pod>(Some(namespace), "unavailable", "", &unavailable)
            .await;
        assert_eq!(taken_off.is_ok(), namespace == free, "{taken_off:?}");
    }
    cluster
        .create_pod(
            ruled,
            json!({"metadata": {"name": "plain"}, "spec": pod("plain")["spec"]}),
        )
        .await;
}

/// The API server denies every request in `ruled` that a rule may cover, each by the webhook that reviews it. In `free`
/// these requests pass.
async fn assert_covered_requests_are_denied(cluster: &Cluster, ruled: &str, free: &str) {
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let image = json!({"spec": {"containers": [{"name": "c", "image": "i:2"}]}});
    let resize =
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2m"}}}]}});
    for (subresource, change, webhook) in [
        ("", &label, "pod-update.apps.kusionstack.io"),
        ("status", &label, "pod-update.apps.kusionstack.io"),
        ("", &image, "pod-update.validate.apps.kusionstack.io"),
        ("resize", &resize, "pod-update.validate.apps.kusionstack.io"),
    ] {
        let denied = cluster
            .patch::<Pod>(Some(ruled), "available", subresource, change)
            .await;
        assert_called(denied, webhook);
        cluster
            .patch::<Pod>(Some(free), "available", subresource, change)
            .await
            .unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client(), ruled);
    let now = DeleteParams::default().grace_period(0);
    assert_called(
        pods.delete("available", &now).await.map(drop),
        "pod-delete.apps.kusionstack.io",
    );
    let evicted = pods.evict("available", &Default::default()).await;
    assert_called(evicted.map(drop), "pod-eviction.apps.kusionstack.io");
    assert_called(
        cluster.create_rule(ruled).await,
        "podtransitionrule.apps.kusionstack.io",
    );
}

/// Requests that no rule covers pass.
async fn assert_other_requests_pass(cluster: &Cluster, ruled: &str, free: &str) {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), ruled);
    let now = DeleteParams::default().grace_period(0);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let note = json!({"metadata": {"annotations": {"note": "x"}}});
    cluster
        .patch::<Pod>(Some(ruled), "available", "", &note)
        .await
        .unwrap();
    let status = json!({"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
    cluster
        .patch::<Pod>(Some(ruled), "available", "status", &status)
        .await
        .unwrap();
    cluster
        .patch::<Pod>(Some(ruled), "plain", "", &label)
        .await
        .unwrap();
    for name in ["finished", "plain"] {
        pods.delete(name, &now).await.unwrap();
    }
    let free_pods: Api<Pod> = Api::namespaced(cluster.client(), free);
    free_pods
        .evict("available", &Default::default())
        .await
        .unwrap();
    free_pods.delete("unavailable", &now).await.unwrap();
}

#[tokio::test]
async fn status_of_idle_pods_is_never_sent() {
    let cluster = Cluster::start().await;
    everything(cluster.client(), url()).await;
    let namespace = cluster.namespace("status").await;
    for (name, label) in [
        ("idle", None),
        ("in-flight", Some(keys::Family::Preparing.key("x"))),
    ] {
        let mut pod = pod(name);
        if let Some(label) = label {
            pod["metadata"]["labels"][label] = "1".into();
        }
        cluster.create_pod(&namespace, pod).await;
    }
    // This entry has failurePolicy Ignore. The API server counts its calls to a dead webhook.
    let sent =
        "apiserver_admission_webhook_fail_open_count{name=\"pod-status.apps.kusionstack.io\"";
    cluster.until_configured(&namespace).await;
    for status in ["True", "False"] {
        let change = json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        cluster
            .patch::<Pod>(Some(&namespace), "idle", "status", &change)
            .await
            .unwrap();
    }
    let beat = json!({"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}});
    cluster
        .patch::<Pod>(Some(&namespace), "in-flight", "status", &beat)
        .await
        .unwrap();
    assert_eq!(cluster.metric(sent).await, 0.0);
    let change =
        json!({"status": {"conditions": [{"type": keys::SERVICE_READY, "status": "False"}]}});
    cluster
        .patch::<Pod>(Some(&namespace), "in-flight", "status", &change)
        .await
        .unwrap();
    assert_eq!(cluster.metric(sent).await, 1.0);
    assert_eq!(
        cluster
            .metric("apiserver_admission_match_condition_evaluation_errors_total")
            .await,
        0.0
    );
}

#[tokio::test]
async fn uninstall_nudges_crds_whose_deletion_is_pending() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    install::install_crds(&client, names::NAMESPACE)
        .await
        .unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = "operationjobs.apps.kusionstack.io";
    let finalizer = json!({"metadata": {"finalizers": ["test.io/held"]}});
    let params = PatchParams::default();
    let finalizer = crds.patch(name, &params, &Patch::Merge(finalizer)).await;
    finalizer.unwrap();
    let freed = async {
        let is_nudged = || async {
            let crd = crds.get(name).await.unwrap();
            crd.annotations().contains_key(keys::DELETION_NUDGED)
        };
        while !is_nudged().await {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        crds.patch(name, &params, &free).await.unwrap();
    };
    let (uninstalled, ()) = tokio::join!(uninstall(&client, names::NAMESPACE, false), freed);
    uninstalled.unwrap();
    assert!(crds.get_opt(name).await.unwrap().is_none());
}

/// A server that is ending may still write its finalizer.
#[tokio::test]
async fn uninstalling_removes_finalizers_that_are_added_again() {
    let cluster = Cluster::start().await;
    let client = cluster.client();
    install::install_crds(&client, names::NAMESPACE)
        .await
        .unwrap();
    let namespace = cluster.namespace("again").await;
    for object in objects(&namespace) {
        cluster.create(object).await;
    }
    let sets: Api<CollaSet> = Api::namespaced(client.clone(), &namespace);
    let come_back = async {
        let add = Patch::Merge(json!({"metadata": {"finalizers": [keys::PRE_RECLAIM_FINALIZER]}}));
        let params = PatchParams::default();
        while let Ok(set) = sets.patch("s", &params, &add).await {
            if set.metadata.deletion_timestamp.is_some() {
                break;
            }
        }
    };
    let (uninstalled, ()) = tokio::join!(uninstall(&client, names::NAMESPACE, false), come_back);
    uninstalled.unwrap();
}

#[tokio::test]
async fn uninstalling_leaves_pods_and_nothing_else() {
    let cluster = Cluster::with_crds_and_rights().await;
    let client = cluster.client();
    install::apply_policies(&client).await.unwrap();
    let namespace = cluster.namespace("left").await;
    let labels = json!({"metadata": {
        "labels": {keys::NAMESPACE_ENFORCEMENT: "true"},
        "annotations": {keys::RULE_ADMITTED: "now"},
    }});
    cluster
        .patch::<Namespace>(None, &namespace, "", &labels)
        .await
        .unwrap();
    create_owned_pod_and_gated_deployment(&cluster, &namespace).await;
    let warned = leftovers::leftover_warnings(&client).await.unwrap();
    assert!(
        warned[0].ends_with(&format!(": {namespace}/owned")),
        "{warned:#?}"
    );
    assert!(
        warned[1].ends_with(&format!(": {namespace}/gated")),
        "{warned:#?}"
    );
    let secret = json!({"metadata": {"name": names::SECRET}});
    let secrets: Api<Secret> = Api::namespaced(client.clone(), names::NAMESPACE);
    secrets
        .create(
            &PostParams::default(),
            &serde_json::from_value(secret).unwrap(),
        )
        .await
        .unwrap();
    // Here a webhook has no server, as when the servers were removed first.
    install::apply_configurations(&client, &url(), false)
        .await
        .unwrap();

    let output = uninstall(&client, names::NAMESPACE, false).await.unwrap();
    let plain = "uninstalled from namespace kusionstack-system\n";
    let served = format!("{plain}1 Pod was off traffic and may serve again\n");
    assert_eq!(output, served);
    assert_uninstalled(&cluster, &namespace).await;

    // A second uninstallation is no error, and everything can be installed again.
    assert_eq!(
        uninstall(&client, names::NAMESPACE, false).await.unwrap(),
        plain
    );
    everything(client.clone(), url()).await;
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    assert_eq!(
        uninstall(&client, names::NAMESPACE, true).await.unwrap(),
        plain
    );
    for crd in crd::all_crds() {
        assert!(
            crds.get_opt(crd.meta().name.as_deref().unwrap())
                .await
                .unwrap()
                .is_some()
        );
    }
}

#[tokio::test]
async fn uninstalling_stops_the_deployment_of_the_server() {
    let cluster = Cluster::with_crds_and_rights().await;
    let client = cluster.client();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), names::NAMESPACE);
    let labels = json!({"app.kubernetes.io/name": names::APP_NAME});
    let deployment = json!({
        "metadata": {"name": "server", "labels": labels},
        "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": pod("server")["spec"],
        }},
    });
    // The Pods of this test need no security context.
    let open = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": null,
                                              names::MANAGED_BY: null}}});
    cluster
        .patch::<Namespace>(None, names::NAMESPACE, "", &open)
        .await
        .unwrap();
    let deployment = serde_json::from_value(deployment).unwrap();
    deployments
        .create(&PostParams::default(), &deployment)
        .await
        .unwrap();
    wait::until("the Deployment has Pods", async || {
        let now = deployments.get("server").await.unwrap();
        now.status.and_then(|s| s.replicas) == Some(2)
    })
    .await;
    uninstall(&client, names::NAMESPACE, false).await.unwrap();
    let now = deployments.get("server").await.unwrap();
    assert_eq!(now.spec.and_then(|spec| spec.replicas), Some(0));
    assert_eq!(now.status.and_then(|s| s.replicas).unwrap_or(0), 0);
}

/// Creates an object of each of our kinds, a Pod that a CollaSet owns, and a Deployment with the readiness gate.
async fn create_owned_pod_and_gated_deployment(cluster: &Cluster, namespace: &str) {
    let (mut owner, mut decoration) = (None, None);
    for object in objects(namespace) {
        let created = cluster.create(object).await;
        match created.types.as_ref().unwrap().kind.as_str() {
            "CollaSet" => owner = created.uid(),
            "PodDecoration" => decoration = Some((created.name_any(), created.uid())),
            _ => {}
        }
    }
    let mut owned = pod("owned");
    owned["metadata"]["finalizers"] = json!([keys::REPLACE_PROTECTED_FINALIZER]);
    owned["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "s", "uid": owner.unwrap(),
        "controller": true,
    }]);
    // When the CollaSet is gone, the garbage collector would delete the Pod with its last owner.
    let (decoration, uid) = decoration.unwrap();
    let references = owned["metadata"]["ownerReferences"].as_array_mut().unwrap();
    references.push(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration", "name": decoration, "uid": uid.unwrap(),
    }));
    owned["spec"]["readinessGates"] = json!([{"conditionType": keys::SERVICE_READY}]);
    cluster.create_pod(namespace, owned.clone()).await;
    let template = json!({"metadata": {"labels": {"app": "gated"}}, "spec": owned["spec"]});
    let gated = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "gated", "namespace": namespace},
        "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "gated"}}, "template": template},
    });
    let gated: DynamicObject = serde_json::from_value(gated).unwrap();
    cluster.create(gated).await;
}

/// The Pod stays as a managed Pod without owner and finalizers, and no object of the installation is left.
async fn assert_uninstalled(cluster: &Cluster, namespace: &str) {
    let client = cluster.client();
    let remaining_pod: Pod = Api::namespaced(client.clone(), namespace)
        .get("owned")
        .await
        .unwrap();
    assert_eq!(remaining_pod.metadata.deletion_timestamp, None);
    assert_eq!(
        (remaining_pod.finalizers(), remaining_pod.owner_references()),
        (&[][..], &[][..])
    );
    assert_eq!(
        remaining_pod
            .labels()
            .get(keys::CONTROL)
            .map(String::as_str),
        Some(keys::CONTROL_VALUE)
    );
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let kept = namespaces.get(namespace).await.unwrap();
    assert!(!kept.labels().contains_key(keys::NAMESPACE_ENFORCEMENT));
    assert!(!kept.annotations().contains_key(keys::RULE_ADMITTED));
    assert!(
        namespaces
            .get_opt(names::NAMESPACE)
            .await
            .unwrap()
            .is_none()
    );
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in crd::all_crds() {
        assert!(
            crds.get_opt(crd.meta().name.as_deref().unwrap())
                .await
                .unwrap()
                .is_none()
        );
    }
    for name in [MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION] {
        assert!(cluster.configuration_opt(name).await.is_none());
    }
}

/// The error text of a webhook call without an answer.
fn assert_called(outcome: kube::Result<()>, webhook: &str) {
    let error = outcome.expect_err(webhook).to_string();
    assert!(
        error.contains(&format!("failed calling webhook \"{webhook}\"")),
        "{error}"
    );
}

/// The objects that Kuperator installs (contract 4.1), one of each kind.
fn kuperator() -> DynamicObject {
    let client = json!({"service": {"name": "kusionstack-controller-manager", "namespace": "kusionstack-system",
                                    "path": "/mutating-generic"}});
    let entry = |name: &str, group: &str, resource: &str| {
        json!({"name": name, "clientConfig": client, "failurePolicy": "Fail", "sideEffects": "None",
               "admissionReviewVersions": ["v1", "v1beta1"],
               "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource],
                          "operations": ["CREATE", "UPDATE", "DELETE"]}]})
    };
    serde_json::from_value(json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": MUTATING_CONFIGURATION},
        "webhooks": [
            entry("mutating-pod.apps.kusionstack.io", "*", "pods"),
            entry("mutating-generic.apps.kusionstack.io", keys::GROUP, "*/*"),
        ],
    }))
    .unwrap()
}

/// An object of each kind, with the finalizers that Kuperator gives them.
fn objects(namespace: &str) -> Vec<DynamicObject> {
    let object = |kind: &str, name: &str, finalizers: Value, spec: Value| {
        serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "spec": spec,
            "metadata": {"name": name, "namespace": namespace, "finalizers": finalizers},
        }))
        .unwrap()
    };
    let protected = json!([keys::PROTECTED_FINALIZER]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let rules = json!([{"name": "m", "availablePolicy": {"maxUnavailableValue": "30%"}}]);
    vec![
        object(
            "PodTransitionRule",
            "r",
            protected.clone(),
            json!({"selector": {}, "rules": rules}),
        ),
        object(
            "OperationJob",
            "j",
            protected.clone(),
            json!({"action": "Replace", "targets": [{"name": "p"}]}),
        ),
        object(
            "PodDecoration",
            "d",
            protected,
            json!({"selector": {"matchLabels": {"a": "b"}}, "template": {}}),
        ),
        object(
            "CollaSet",
            "s",
            json!([keys::PRE_RECLAIM_FINALIZER]),
            json!({"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}),
        ),
        object(
            "ResourceContext",
            "s",
            json!([]),
            json!({"contexts": [{"id": 0}]}),
        ),
    ]
}

#[tokio::test]
async fn definitions_of_a_newer_build_stay() {
    let cluster = Cluster::start().await;
    install::install_crds(&cluster.client(), names::NAMESPACE)
        .await
        .unwrap();
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client());
    let name = "podtransitionrules.apps.kusionstack.io";
    let mut newer = api.get(name).await.unwrap();
    let revision = (crd::CRD_REVISION + 1).to_string();
    newer
        .annotations_mut()
        .insert(keys::CRD_REVISION.to_owned(), revision);
    let column = newer.spec.versions[0]
        .additional_printer_columns
        .get_or_insert_default();
    column[0].description = Some("of a newer build".to_owned());
    let newer = api
        .replace(name, &PostParams::default(), &newer)
        .await
        .unwrap();
    install::install_crds(&cluster.client(), names::NAMESPACE)
        .await
        .unwrap();
    let stored = api.get(name).await.unwrap();
    assert_eq!(stored.spec.versions, newer.spec.versions);
    assert_eq!(stored.annotations(), newer.annotations());

    // A definition of the same revision is corrected.
    let annotation = json!({"metadata": {"annotations": {(keys::CRD_REVISION): "1"}}});
    api.patch(name, &PatchParams::default(), &Patch::Merge(annotation))
        .await
        .unwrap();
    install::install_crds(&cluster.client(), names::NAMESPACE)
        .await
        .unwrap();
    let stored = api.get(name).await.unwrap();
    assert_ne!(stored.spec.versions, newer.spec.versions);
}
