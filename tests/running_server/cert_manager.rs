//! `kubectl apply -k manifests` with cert-manager, ten rotations under load, and the removal while no server runs.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use operating::api::crd;
use operating::cli::install::names;
use serde_json::{Value, json};
use testbed::wait;

use super::cluster::Cluster;
use super::dial::{serial, serial_in};
use super::load::Load;
use super::projection::Projection;

const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
const ROTATIONS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn ten_rotations_by_cert_manager_fail_no_review() {
    let cluster = Cluster::start(3).await;
    cluster.plane.cert_manager().await.unwrap();
    cluster.kubectl(&["apply", "-k", MANIFESTS]).await;
    assert_pods_run_as_meant(&cluster).await;

    // The server of this test runs outside of the cluster: change the name and the URL, and keep the rest as applied.
    let change = json!({"spec": {"dnsNames": ["localhost", "operating.kusionstack-system.svc"]}});
    certificates(&cluster)
        .patch(SERVING, &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    wait::until("the certificate has the name", async || {
        let leaf = cluster.secret(names::SECRET, "tls.crt").await;
        leaf.is_some_and(|pem| names_of(&pem).contains("localhost"))
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client(), names::NAMESPACE);
    let files = Projection::start(secrets.clone(), names::SECRET).await;
    let account = cluster
        .plane
        .kubeconfig_for_service_account(names::NAMESPACE, names::SERVICE_ACCOUNT)
        .await
        .unwrap();
    let flags = ["--kubeconfig", account.to_str().unwrap(), "--cert-dir"];
    let flags = [&flags[..], &[files.path().to_str().unwrap()]].concat();
    let replica = cluster.replica("replica", &flags).await;
    redirect(
        &cluster,
        &format!("https://localhost:{}", replica.listen.port()),
    )
    .await;
    wait::until("the CA is injected", async || is_injected(&cluster).await).await;

    let namespace = cluster.ruled_namespace(&[]).await;
    let load = Load::start(cluster.client(), &namespace).await;
    let mut served = BTreeSet::new();
    let mut bundles = BTreeSet::new();
    for rotation in 0..ROTATIONS {
        let trusted = cluster.bundle().await.unwrap();
        let before = serial(replica.listen, &trusted).await.unwrap();
        served.insert(before.clone()); // so that the first check below does not find the next certificate already
        // Now and then the authority is reissued too: then the caBundle changes, and the API server connects again.
        if rotation % 3 == 2 {
            renew(&cluster, "webhook-ca", "webhook-ca").await;
        }
        if rotation % 2 == 0 {
            renew(&cluster, SERVING, names::SECRET).await;
        } else {
            secrets
                .delete(names::SECRET, &Default::default())
                .await
                .unwrap();
        }
        wait::until("another leaf is served", async || {
            // cert-manager writes the two configurations one after the other.
            let mut now = String::new();
            for trusted in cluster.bundles().await {
                let leaf = serial(replica.listen, &trusted).await;
                now = leaf.expect("a leaf that every entry trusts");
            }
            assert_ne!(now, "", "the configurations are gone");
            let changed = now != before;
            served.insert(now);
            changed
        })
        .await;
        wait::until("its CA is injected", async || is_injected(&cluster).await).await;
        bundles.insert(cluster.bundle().await);
        load.more(50).await;
    }
    assert_eq!(load.take_failures(), Vec::<String>::new());
    assert!(served.len() > ROTATIONS, "{served:?}");
    assert!(bundles.len() > ROTATIONS / 3, "{}", bundles.len());
    let metrics = replica.metrics().await.unwrap();
    let reviews = metrics.sum("operating_reviews_total");
    assert!(reviews >= 2.0 * load.edits() as f64 - 32.0);

    drop(replica);
    remove_while_nobody_serves(&cluster, &load).await;
}

/// Without a server the edits are denied, and `kubectl delete -k` still works.
async fn remove_while_nobody_serves(cluster: &Cluster, load: &Load) {
    load.more(50).await;
    let denied = load.take_failures();
    assert!(!denied.is_empty());
    for failure in &denied {
        assert!(failure.contains("failed calling webhook"), "{failure}");
    }
    // In a cluster that has run for a short time, the deletion of a kind that no client has requested may take five
    // minutes. In other clusters the garbage collector requests each kind within half a minute.
    for crd in crd::all_crds() {
        let kind = format!("{}.{}", crd.spec.names.plural, crd.spec.group);
        cluster.kubectl(&["get", &kind, "-A"]).await;
    }
    cluster.kubectl(&["delete", "-k", MANIFESTS]).await;
    cluster.assert_gone().await;
    load.assert_pods_live_on().await;
    wait::until("edits are free again", async || {
        load.take_failures();
        load.more(50).await;
        load.take_failures().is_empty()
    })
    .await;
}

/// Name of the Certificate of the server.
const SERVING: &str = "webhook-serving";

fn certificates(cluster: &Cluster) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    let kind = ApiResource::from_gvk(&kind);
    Api::namespaced_with(cluster.client(), names::NAMESPACE, &kind)
}

/// Makes cert-manager issue a Certificate again, as `cmctl renew` does. Returns when its Secret holds the new
/// certificate.
async fn renew(cluster: &Cluster, certificate: &str, secret: &str) {
    let before = cluster.secret(secret, "tls.crt").await.unwrap();
    let api = certificates(cluster);
    wait::until("a renewal is asked for", async || {
        let mut object = api.get(certificate).await.unwrap();
        let asked = json!({
            "type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
            "message": "Certificate re-issuance manually triggered",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": object.metadata.generation,
        });
        let conditions = &mut object.data["status"]["conditions"];
        let conditions = conditions.as_array_mut().unwrap();
        conditions.retain(|c| c["type"] != "Issuing");
        conditions.push(asked);
        // cert-manager writes the object as well, so a conflict may happen.
        let written = api
            .replace_status(certificate, &Default::default(), &object)
            .await;
        written.is_ok()
    })
    .await;
    wait::until("it is renewed", async || {
        let now = cluster.secret(secret, "tls.crt").await;
        now.is_some_and(|now| serial_in(&now) != serial_in(&before))
    })
    .await;
}

/// Whether every entry trusts the authority of the serving certificate. Entries may also trust former authorities.
async fn is_injected(cluster: &Cluster) -> bool {
    let authority = cluster.secret(names::SECRET, "ca.crt").await;
    let (Some(bundle), Some(authority)) = (cluster.bundle().await, authority) else {
        return false;
    };
    let [bundle, authority] = [bundle, authority].map(|pem| String::from_utf8(pem).unwrap());
    bundle.contains(authority.trim())
}

/// Applies the webhook configurations once more, with a URL.
async fn redirect(cluster: &Cluster, url: &str) {
    let certificate = format!("{}/{SERVING}", names::NAMESPACE);
    let print = ["webhook-config", "--webhook-url", url, "--cert-manager"];
    let printed = cluster
        .operating(&[&print[..], &[&certificate]].concat())
        .await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, printed).unwrap();
    let file = file.path().to_str().unwrap();
    cluster.kubectl(&["apply", "-f", file]).await;
}

fn names_of(pem: &[u8]) -> String {
    let (_, pem) = x509_parser::pem::parse_x509_pem(pem).unwrap();
    let leaf = pem.parse_x509().unwrap();
    let names = leaf.subject_alternative_name().unwrap();
    format!("{:?}", names.unwrap().value.general_names)
}

/// Three Pods run on three nodes, in a namespace that accepts only restricted Pods; a drain may disrupt one of them.
async fn assert_pods_run_as_meant(cluster: &Cluster) {
    let pods: Api<Pod> = Api::namespaced(cluster.client(), names::NAMESPACE);
    let mut running = Vec::new();
    wait::until("three Pods run", async || {
        let found = pods.list(&ListParams::default()).await.unwrap().items;
        let phases = found
            .iter()
            .flat_map(|p| p.status.as_ref()?.phase.as_deref());
        let count = phases.filter(|phase| *phase == "Running").count();
        running = found;
        count == 3
    })
    .await;
    let mut nodes = BTreeSet::new();
    for pod in running {
        let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
        nodes.insert(spec["nodeName"].to_string());
        let container = &spec["containers"][0];
        let context = &container["securityContext"];
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            assert_ne!(container[probe], Value::Null, "{probe}");
        }
    }
    assert_eq!(nodes.len(), 3);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(cluster.client(), names::NAMESPACE);
    wait::until("the budget allows one", async || {
        let budget = budgets.get("operating").await.unwrap().status;
        budget.is_some_and(|status| status.disruptions_allowed == Some(1))
    })
    .await;
}
