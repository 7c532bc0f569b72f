//! The order in which Kuperator is stopped and Operating is installed, and what each order costs: Pods that nobody could
//! create, and Pods without readiness gate, which a lifecycle cannot take off traffic. To print the figures:
//! `cargo test --test takeover switch -- --nocapture`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, Error};
use parking_lot::Mutex;
use serde_json::json;
use testbed::balancer::LoadBalancer;
use testbed::fleet::{HOME, SERVICE_ACCOUNT};
use testbed::observer::resource;
use testbed::plane::{Options, Plane};
use testbed::replica::{Replica, Setup};
use testbed::server::{self, CONFIGURATIONS};
use testbed::{keys, wait};
use tokio::task::JoinHandle;

use crate::kuperator::Kuperator;

/// Pods per second.
const RATE: u32 = 20;

/// Creations of Pods so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    created: usize,
    refused: usize,
    /// Created without readiness gate.
    ungated: usize,
}

/// Creates managed Pods at a fixed rate until it is dropped.
struct Load {
    counts: Arc<Mutex<Counts>>,
    task: JoinHandle<()>,
}

impl Drop for Load {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Load {
    fn start(pods: Api<Pod>) -> Load {
        let counts = Arc::new(Mutex::new(Counts::default()));
        let counted = counts.clone();
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE);
            loop {
                ticks.tick().await;
                tokio::spawn(create(pods.clone(), counted.clone()));
            }
        });
        Load { counts, task }
    }

    fn counts(&self) -> Counts {
        *self.counts.lock()
    }

    /// Waits until some more Pods were created.
    async fn more(&self, description: &str) {
        let before = self.counts().created;
        let description = format!("more Pods {description}");
        wait::until(&description, async || self.counts().created > before + 20).await;
    }
}

/// Creates a Pod that no node runs.
async fn create(pods: Api<Pod>, counts: Arc<Mutex<Counts>>) {
    let pod = json!({
        "metadata": { "generateName": "load-", "labels": { keys::CONTROL: keys::CONTROL_VALUE } },
        "spec": { "containers": [{ "name": "c", "image": "i:1" }], "schedulerName": "nobody" },
    });
    let pod = serde_json::from_value(pod).unwrap();
    let made = pods.create(&PostParams::default(), &pod).await;
    let mut counts = counts.lock();
    match made {
        Ok(pod) => {
            counts.created += 1;
            let gates = pod.spec.and_then(|spec| spec.readiness_gates);
            counts.ungated += usize::from(gates.is_none());
        }
        Err(Error::Api(_)) => counts.refused += 1,
        Err(error) => panic!("{error}"),
    }
}

/// A cluster with Kuperator's stand-in, and Operating as far as a test has installed it.
struct Cluster {
    kuperator: Option<Kuperator>,
    operating: Option<Replica>,
    balancer: LoadBalancer,
    load: Load,
    plane: Plane,
}

impl Cluster {
    async fn start() -> Cluster {
        let plane = Plane::start(Options::bare()).await.unwrap();
        let client = plane.client().unwrap();
        let kuperator = Some(Kuperator::start(&client).await);
        let namespace = plane.namespace("switch").await.unwrap();
        let pods: Api<Pod> = Api::namespaced(client, &namespace);
        let is_gated = async || {
            let counts = Arc::new(Mutex::new(Counts::default()));
            create(pods.clone(), counts.clone()).await;
            let counts = *counts.lock();
            counts.created == 1 && counts.ungated == 0
        };
        wait::until("Kuperator's webhooks to be called", is_gated).await;
        let cluster = Cluster {
            kuperator,
            operating: None,
            balancer: LoadBalancer::start([]).await.unwrap(),
            load: Load::start(pods),
            plane,
        };
        cluster.load.more("under Kuperator").await;
        let counts = cluster.load.counts();
        assert_eq!((counts.refused, counts.ungated), (0, 0));
        cluster
    }

    fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    fn stop_kuperator(&mut self) {
        self.kuperator = None;
    }

    async fn install(&self, flags: &[&str]) {
        let url = format!("https://localhost:{}", self.balancer.address().port());
        let output = tokio::process::Command::new(server::binary())
            .args(["install", "--webhook-url", &url, "--kubeconfig"])
            .arg(self.plane.kubeconfig())
            .args(flags)
            .env_remove("KUBECONFIG")
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    /// Starts the server, and waits until it is ready.
    async fn serve(&mut self) {
        let own: PathBuf = self
            .plane
            .kubeconfig_for_service_account(HOME, SERVICE_ACCOUNT)
            .await
            .unwrap();
        let url = format!("https://localhost:{}", self.balancer.address().port());
        let setup = Setup {
            name: "operating-0".to_owned(),
            supervisor: self.plane.controlplane_binary().to_owned(),
            logs: self.plane.logs(),
            flags: vec![
                "--kubeconfig".into(),
                own.into(),
                "--webhook-url".into(),
                url.into(),
            ],
            task_faults: None,
        };
        let replica = Replica::start(&setup, &server::binary()).await.unwrap();
        self.balancer.add(replica.listen);
        self.operating = Some(replica);
    }

    /// Waits until Operating leads and judges Pods. Returns the counts.
    async fn taken_over(&self, order: &str) -> Counts {
        let leases: Api<Lease> = Api::namespaced(self.client(), HOME);
        wait::until("Operating to lead", async || {
            let lease = leases.get("kusionstack-controller-manager").await.unwrap();
            let holder = lease.spec.and_then(|spec| spec.holder_identity);
            holder.is_some_and(|holder| holder.starts_with("operating-0"))
        })
        .await;
        wait::until("Pods to have the gate", async || {
            let before = self.load.counts();
            self.load.more("after the switch").await;
            let now = self.load.counts();
            now.ungated == before.ungated && now.refused == before.refused
        })
        .await;
        for name in self.entries().await {
            assert!(
                !name.starts_with("mutating-") && !name.starts_with("validating-"),
                "{name}"
            );
        }
        let counts = self.load.counts();
        println!("{order}: {counts:?}");
        counts
    }

    /// Names of all webhooks.
    async fn entries(&self) -> Vec<String> {
        let mut names = Vec::new();
        let kinds = [
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
        ];
        for (kind, name) in kinds.into_iter().zip(CONFIGURATIONS) {
            let kind = resource("admissionregistration.k8s.io", "v1", kind);
            let api: Api<DynamicObject> = Api::all_with(self.client(), &kind);
            let found = api.get(name).await.unwrap();
            let entries = found.data["webhooks"].as_array().unwrap().iter();
            names.extend(entries.map(|entry| entry["name"].as_str().unwrap().to_owned()));
        }
        names
    }
}

#[tokio::test]
async fn stop_first_refuses_pods() {
    let mut cluster = Cluster::start().await;
    cluster.stop_kuperator();
    wait::until("a refusal", async || cluster.load.counts().refused > 0).await;
    cluster.install(&[]).await;
    cluster.serve().await;
    let counts = cluster.taken_over("stop, install, serve").await;
    assert!(counts.refused > 0);
}

#[tokio::test]
async fn install_first_refuses_no_pod() {
    let mut cluster = Cluster::start().await;
    cluster.install(&[]).await;
    cluster.load.more("before the stop").await;
    cluster.stop_kuperator();
    cluster.serve().await;
    let counts = cluster.taken_over("install, stop, serve").await;
    assert_eq!(counts.refused, 0);
}

#[tokio::test]
async fn server_beside_kuperator_refuses_no_pod() {
    let mut cluster = Cluster::start().await;
    cluster.install(&["--no-webhooks"]).await;
    cluster.serve().await;
    cluster.load.more("with both").await;
    cluster.install(&[]).await;
    cluster.stop_kuperator();
    let counts = cluster.taken_over("serve, install, stop").await;
    assert_eq!(counts.refused, 0);
}
