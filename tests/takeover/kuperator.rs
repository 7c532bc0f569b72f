//! Stands in for a running Kuperator, as far as the switch to Operating depends on it. The stand-in
//! - answers its webhooks, which fail closed, and gives each managed Pod the readiness gate;
//! - keeps its certificates in the Secret, and its authority in every entry of both webhook configurations;
//! - holds the Lease.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::routing::post;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use testbed::authority::Authority;
use testbed::fleet::HOME;
use testbed::observer::resource;
use testbed::server::CONFIGURATIONS;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

/// How often the stand-in looks for what others have changed. Kuperator watches.
const LOOK: Duration = Duration::from_millis(100);
const GATE: &str = "pod.kusionstack.io/service-ready";

/// Ends when it is dropped: nobody listens at its address then.
pub struct Kuperator {
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Kuperator {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Kuperator {
    /// Starts the stand-in, and stores what Kuperator's chart and Kuperator store.
    pub async fn start(client: &Client) -> Kuperator {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!(
            "https://localhost:{}",
            listener.local_addr().unwrap().port()
        );
        let authority = Authority::new();
        let (leaf, key) = authority.leaf(24);
        let namespaces: Api<Namespace> = Api::all(client.clone());
        apply(&namespaces, HOME, json!({})).await;
        let pem = authority.pem();
        let [mutating, validating] = configurations(&url, &pem);
        let secret = json!({
            "type": "kubernetes.io/tls",
            "stringData": { "tls.crt": leaf, "tls.key": key, "ca.crt": pem, "ca.key": authority.key_pem() },
        });
        let secrets: Api<Secret> = Api::namespaced(client.clone(), HOME);
        apply(&secrets, "webhook-certs", secret).await;
        let (sender, served) = watch::channel(acceptor(&leaf, &key));
        let serving = tokio::spawn(serve(listener, served));
        let keeper = Keeper {
            client: client.clone(),
            acceptor: sender,
        };
        let mutating_api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating_api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        apply(&mutating_api, CONFIGURATIONS[0], mutating).await;
        apply(&validating_api, CONFIGURATIONS[1], validating).await;
        keeper.renew_lease().await;
        let keeping = tokio::spawn(async move {
            loop {
                keeper.keep_certificates().await;
                keeper.renew_lease().await;
                tokio::time::sleep(LOOK).await;
            }
        });
        Kuperator {
            tasks: vec![serving, keeping],
        }
    }
}

async fn apply<K>(api: &Api<K>, name: &str, mut object: Value)
where
    K: Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    object["apiVersion"] = json!(K::api_version(&()));
    object["kind"] = json!(K::kind(&()));
    object["metadata"] = json!({ "name": name });
    let params = PatchParams::apply("kuperator").force();
    api.patch(name, &params, &Patch::Apply(object))
        .await
        .unwrap();
}

/// The entries that Kuperator's chart installs.
fn configurations(url: &str, pem: &str) -> [Value; 2] {
    let entry = |name: &str, path: &str, rule: Value, managed: bool| {
        let mut entry = json!({
            "name": format!("{name}.apps.kusionstack.io"), "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1", "v1beta1"], "rules": [rule],
            "clientConfig": { "url": format!("{url}{path}"), "caBundle": BASE64_STANDARD.encode(pem) },
        });
        if managed {
            let control =
                json!({ "key": "kusionstack.io/control", "operator": "In", "values": ["true"] });
            entry["objectSelector"] = json!({ "matchExpressions": [control] });
        }
        entry
    };
    let rule = |group: &str, version: &str, operations: &[&str], resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": resources,
        })
    };
    let all = ["CREATE", "UPDATE", "DELETE"];
    let own = rule("apps.kusionstack.io", "*", &all, &["*/*"]);
    let (mutate, validate) = ("/mutating-generic", "/validating-generic");
    let pods = rule("*", "v1", &all, &["pods", "pods/status"]);
    let mutating = [
        entry("mutating-pod", mutate, pods, true),
        entry("mutating-generic", mutate, own.clone(), false),
    ];
    let claims = rule("*", "v1", &["DELETE"], &["persistentvolumeclaims"]);
    let validating = [
        entry(
            "validating-pod",
            validate,
            rule("*", "v1", &all, &["pods"]),
            true,
        ),
        entry("validating-pvc", validate, claims, true),
        entry("validating-generic", validate, own, false),
    ];
    [
        json!({ "webhooks": mutating }),
        json!({ "webhooks": validating }),
    ]
}

/// Keeps objects as Kuperator does.
struct Keeper {
    client: Client,
    /// What the webhooks are served with.
    acceptor: watch::Sender<TlsAcceptor>,
}

impl Keeper {
    /// Serves the certificate of the Secret, and sets its authority in every entry of both configurations. Kuperator
    /// accepts a certificate of somebody else that is valid for its own name.
    async fn keep_certificates(&self) {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), HOME);
        let data = secrets.get("webhook-certs").await.unwrap().data.unwrap();
        let text = |key: &str| std::str::from_utf8(&data[key].0).unwrap();
        self.acceptor
            .send_replace(acceptor(text("tls.crt"), text("tls.key")));
        let bundle = BASE64_STANDARD.encode(text("ca.crt"));
        let kinds = [
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ];
        for (kind, name) in kinds.into_iter().zip(CONFIGURATIONS) {
            let kind = resource("admissionregistration.k8s.io", "v1", kind);
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind);
            let mut found = api.get(name).await.unwrap();
            let mut changed = false;
            for entry in found.data["webhooks"].as_array_mut().into_iter().flatten() {
                if entry["clientConfig"]["caBundle"] != bundle.as_str() {
                    entry["clientConfig"]["caBundle"] = json!(bundle);
                    changed = true;
                }
            }
            if changed {
                // After a conflict, the next look sees what the other has written.
                let _ = api.replace(name, &Default::default(), &found).await;
            }
        }
    }

    async fn renew_lease(&self) {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), HOME);
        let now = format!("{:.6}", Timestamp::now());
        let spec = json!({
            "holderIdentity": "kuperator-0", "leaseDurationSeconds": 15, "acquireTime": now, "renewTime": now,
        });
        apply(
            &leases,
            "kusionstack-controller-manager",
            json!({ "spec": spec }),
        )
        .await;
    }
}

fn acceptor(leaf: &str, key: &str) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(leaf.as_bytes())
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Serves connections. They end with the task, because the set drops them.
async fn serve(listener: TcpListener, acceptor: watch::Receiver<TlsAcceptor>) {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let acceptor = acceptor.borrow().clone();
        connections.spawn(answer(stream, acceptor));
        while connections.try_join_next().is_some() {}
    }
}

async fn answer(stream: TcpStream, acceptor: TlsAcceptor) {
    let router = axum::Router::new()
        .route("/mutating-generic", post(mutate))
        .route("/validating-generic", post(allow));
    // The API server gives up a connection when it does not trust the certificate.
    if let Ok(stream) = acceptor.accept(stream).await {
        let service = TowerToHyperService::new(router);
        let io = TokioIo::new(stream);
        let _ = Builder::new(TokioExecutor::new())
            .serve_connection(io, service)
            .await;
    }
}

async fn allow(Json(review): Json<Value>) -> Json<Value> {
    Json(allowed(&review))
}

fn allowed(review: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": { "uid": review["request"]["uid"], "allowed": true },
    })
}

/// Adds the readiness gate to a new Pod.
async fn mutate(Json(review): Json<Value>) -> Json<Value> {
    let mut answer = allowed(&review);
    let request = &review["request"];
    if request["kind"]["kind"] == "Pod" && request["operation"] == "CREATE" {
        let gates = json!([{ "conditionType": GATE }]);
        let patch = json!([{ "op": "add", "path": "/spec/readinessGates", "value": gates }]);
        answer["response"]["patchType"] = json!("JSONPatch");
        answer["response"]["patch"] = json!(BASE64_STANDARD.encode(patch.to_string()));
    }
    Json(answer)
}
