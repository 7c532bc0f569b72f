//! Label edits of managed Pods under a rule, without a pause. The API server sends each edit to two webhooks, and the
//! edit fails when a review fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use operating::api::keys;
use serde_json::json;
use testbed::wait;
use tokio::task::JoinSet;

/// Concurrent edits.
const PODS: usize = 8;
/// Pause between two edits of a Pod, for a steady load below the capacity of the machine.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Load {
    pub pods: Api<Pod>,
    outcomes: Arc<Outcomes>,
    _running: JoinSet<()>,
}

#[derive(Default)]
struct Outcomes {
    edits: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl Load {
    /// Creates the Pods, which no node runs, and starts the edits.
    pub async fn start(client: Client, namespace: &str) -> Load {
        let pods: Api<Pod> = Api::namespaced(client, namespace);
        let outcomes = Arc::<Outcomes>::default();
        let mut running = JoinSet::new();
        for name in (0..PODS).map(|i| format!("load-{i}")) {
            let pod = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"app": "load", keys::CONTROL: keys::CONTROL_VALUE}},
                "spec": {"containers": [{"name": "c", "image": "i:1"}], "schedulerName": "nobody"},
            }));
            let created = pods.create(&PostParams::default(), &pod.unwrap()).await;
            created.unwrap();
            running.spawn(edit(pods.clone(), name, outcomes.clone()));
        }
        let load = Load {
            pods,
            outcomes,
            _running: running,
        };
        load.more(10 * PODS).await;
        load
    }

    /// Waits until `count` more edits have ended.
    pub async fn more(&self, count: usize) {
        let goal = self.edits() + count;
        wait::until("more edits", async || self.edits() >= goal).await;
    }

    /// Edits so far.
    pub fn edits(&self) -> usize {
        self.outcomes.edits.load(Ordering::Relaxed)
    }

    /// Returns the errors so far, and forgets them.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.outcomes.failures.lock().unwrap())
    }

    /// Asserts that all Pods exist, and that none was replaced or terminated.
    pub async fn assert_pods_live_on(&self) {
        let pods = self.pods.list(&ListParams::default()).await.unwrap().items;
        let living = pods
            .iter()
            .filter(|p| p.metadata.deletion_timestamp.is_none());
        assert_eq!(living.count(), PODS);
    }
}

async fn edit(pods: Api<Pod>, name: String, outcomes: Arc<Outcomes>) {
    for count in 0_usize.. {
        let change = json!({"metadata": {"labels": {"edit": count.to_string()}}});
        let edited = pods
            .patch(&name, &PatchParams::default(), &Patch::Merge(change))
            .await;
        if let Err(error) = edited {
            let failure = format!("{:?} {name} {error}", std::time::SystemTime::now());
            outcomes.failures.lock().unwrap().push(failure);
        }
        outcomes.edits.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
}
