//! `kubectl apply -k manifests` with cert-manager, and the removal.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::Api;
use operating::admission::policies::POLICY_NAMES;
use operating::admission::routes::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use operating::cli::install::names;
use serde_json::json;
use testbed::wait;

use super::cluster::Cluster;

#[tokio::test]
async fn kustomization_installs_and_removes_everything() {
    let cluster = Cluster::start().await;
    cluster.plane().cert_manager().await.unwrap();
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
    let _ = cluster
        .plane()
        .ask_kubectl(&["apply", "-k", manifests])
        .await
        .success();
    let policies = [
        &["get", "validatingadmissionpolicybindings"][..],
        &POLICY_NAMES,
    ]
    .concat();
    let _ = cluster.plane().ask_kubectl(&policies).await.success();

    // The CA signed the certificate, and every webhook entry has this CA.
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), names::NAMESPACE);
    wait::until("the serving certificate is there", || async {
        secrets.get_opt(names::SECRET).await.unwrap().is_some()
    })
    .await;
    let secret = secrets.get(names::SECRET).await.unwrap().data.unwrap();
    let ca = json!(secret["ca.crt"]);
    for name in [MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION] {
        wait::until("the CA is in every entry", || async {
            let found = cluster.configuration(name).await;
            let entries = found.data["webhooks"].as_array().unwrap();
            entries.iter().all(|e| e["clientConfig"]["caBundle"] == ca)
        })
        .await;
    }
    let leaf = x509_parser::pem::parse_x509_pem(&secret["tls.crt"].0)
        .unwrap()
        .1;
    let leaf = leaf.parse_x509().unwrap();
    let names_of_leaf = leaf.subject_alternative_name().unwrap().unwrap();
    let service = format!("{}.{}.svc", names::SERVICE, names::NAMESPACE);
    assert!(format!("{:?}", names_of_leaf.value.general_names).contains(&format!("{service:?}")));

    // The namespace enforces the restricted Pod security standard, so the existing Pods comply with it.
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), names::NAMESPACE);
    wait::until("three Pods are created", || async {
        let status = deployments
            .get("operating")
            .await
            .unwrap()
            .status
            .unwrap_or_default();
        status.replicas == Some(3)
    })
    .await;

    let _ = cluster
        .plane()
        .ask_kubectl(&["delete", "-k", manifests])
        .await
        .success();
    let policies_left = [&policies[..], &["--ignore-not-found", "-o", "name"]].concat();
    let policies_left = cluster.plane().ask_kubectl(&policies_left).await;
    assert_eq!(policies_left.out, "");
    let namespaces: Api<Namespace> = Api::all(cluster.client());
    cluster.until_gone(&namespaces, names::NAMESPACE).await;
    for name in [MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION] {
        assert!(cluster.configuration_opt(name).await.is_none());
    }
}
