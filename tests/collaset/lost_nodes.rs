//! Nodes whose kubelet is gone: their Pods get a deletion timestamp, and no kubelet confirms that the containers have
//! ended.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use testbed::observer::Observer;
use testbed::pods::is_available;
use testbed::scope::PAUSED;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Set, condition, ids, uids};
use crate::invariants::no_id_was_shared;

/// Holder of the lease of a lost node, instead of its kubelet.
const NOBODY: &str = "nobody";

/// A node that runs only Pods of its namespace.
struct OwnNode<'a> {
    scope: &'a Scope,
    name: String,
}

impl<'a> OwnNode<'a> {
    async fn register(scope: &'a Scope, suffix: &str) -> OwnNode<'a> {
        let name = format!("{}-{suffix}", scope.namespace);
        let node = OwnNode { scope, name };
        node.create().await;
        wait::until("a kubelet", async || node.holder().await.is_some()).await;
        node
    }

    async fn create(&self) {
        let node = json!({
            "metadata": {
                "name": self.name, "annotations": { "kwok.x-k8s.io/node": "fake" },
                "labels": { self.scope.namespace.clone(): "own" },
            },
            "spec": { "taints": [{ "key": self.scope.namespace, "effect": "NoSchedule" }] },
        });
        let node = serde_json::from_value(node).unwrap();
        self.nodes()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.scope.client.clone())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.scope.client.clone(), "kube-node-lease")
    }

    async fn holder(&self) -> Option<String> {
        let lease = self.leases().get_opt(&self.name).await.unwrap();
        lease?.spec?.holder_identity
    }

    async fn patch(&self, patch: Value) {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = self.nodes().patch(&self.name, &params, &patch).await;
        patched.unwrap();
    }

    /// Keeps new Pods away from the node.
    async fn cordon(&self) {
        self.patch(json!({ "spec": { "unschedulable": true } }))
            .await;
    }

    /// Stops the kubelet of the node: the simulator ignores a node whose lease another process holds. A renewal may be
    /// in flight, so this function takes the lease again until the controller-manager has given the node up.
    async fn lose(&self) {
        wait::until("the node to be given up", async || {
            if self.holder().await.as_deref() != Some(NOBODY) {
                self.take_lease().await;
            }
            self.is_given_up().await
        })
        .await;
    }

    async fn take_lease(&self) {
        let taken = json!({ "holderIdentity": NOBODY, "leaseDurationSeconds": 3600 });
        let (params, taken) = (
            PatchParams::default(),
            Patch::Merge(json!({ "spec": taken })),
        );
        let taken = self.leases().patch(&self.name, &params, &taken).await;
        taken.unwrap();
    }

    /// Whether the controller-manager has missed the kubelet for long enough.
    async fn is_given_up(&self) -> bool {
        let node = self.nodes().get(&self.name).await.unwrap();
        let conditions = node.status.and_then(|s| s.conditions).unwrap_or_default();
        let mut ready = conditions.iter().filter(|c| c.type_ == "Ready");
        ready.any(|c| c.status == "Unknown")
    }

    async fn remove(&self) {
        let params = DeleteParams::default();
        let lease = self.leases().delete(&self.name, &params).await;
        drop(lease); // if this fails, the lease goes with the node
        self.nodes().delete(&self.name, &params).await.unwrap();
        wait::until("the node to be deleted", async || {
            self.nodes().get_opt(&self.name).await.unwrap().is_none()
        })
        .await;
    }

    /// Deletes the Node object. The machine then registers anew.
    async fn come_back(&self) {
        loop {
            self.remove().await;
            self.create().await;
            // The simulator may have missed that the lease is free.
            for _ in 0..200 {
                if self.holder().await.is_some_and(|holder| holder != NOBODY) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
}

/// Deletes Pods under a rule once they are not Ready. The taint manager deletes them too, but tries only a few times
/// within a moment. On a busy machine this moment may end before all Pods are marked, and then its requests are
/// refused.
async fn give_up(scope: &Scope, pods: [&Pod; 2]) {
    for pod in pods {
        let name = pod.name_any();
        let mut last_reason = String::new();
        wait::until("the deletion of a Pod that is not ready", async || {
            let pod = scope.pods().get(&name).await;
            let is_lost = pod.as_ref().is_ok_and(|pod| !is_available(pod));
            if pod.as_ref().is_ok_and(is_available) {
                // The controller-manager marks a Pod only once, and the simulator may have marked it Ready again
                // afterwards.
                scope.lose_readiness(&name).await;
            }
            let now = match is_lost {
                true => scope.delete(&name).await.map_err(|e| e.to_string()),
                false => Err(pod.map_or_else(
                    |e| e.to_string(),
                    |pod| format!("{:?}", pod.status.and_then(|status| status.conditions)),
                )),
            };
            let Err(reason) = now else { return true };
            if reason != last_reason {
                println!("{name} is not deleted: {reason}");
                last_reason = reason;
            }
            false
        })
        .await;
    }
}

/// Spec of Pods that run on the nodes of the namespace and are deleted soon after the loss of their node, and not
/// immediately: a rule holds a Pod until the controller-manager has marked it as not Ready.
fn on_own_nodes(scope: &Scope, naming: &str) -> Value {
    let lost = |key: &str| json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 15 });
    json!({
        "namingStrategy": { "podNamingSuffixPolicy": naming },
        "template": { "spec": {
            "nodeSelector": { scope.namespace.clone(): "own" },
            "tolerations": [{ "key": scope.namespace, "operator": "Exists" }, lost("unreachable"), lost("not-ready")],
        } },
    })
}

#[tokio::test]
async fn lost_node_pods_with_random_names_are_recreated_elsewhere() {
    let scope = Bed::shared().await.scope("lost").await;
    let node = OwnNode::register(&scope, "a").await;
    let random = Set::new(&scope, "random", 2, on_own_nodes(&scope, "Random")).await;
    let named = on_own_nodes(&scope, "PersistentSequence");
    let named = Set::new(&scope, "named", 2, named).await;
    let other = OwnNode::register(&scope, "b").await;
    node.cordon().await;
    for set in [&random, &named] {
        set.edit(json!({ "replicas": 3 })).await;
        set.settled().await;
    }
    scope
        .rule("named", json!({ "app": "named" }), json!(1))
        .await;
    scope.until_at_rest("named", 3).await;
    let (randoms, nameds) = (random.pods().await, named.pods().await);
    let observer = Observer::start(&scope).await;

    node.lose().await;
    let lost = [0, 1].map(|id| [randoms[&id].clone(), nameds[&id].clone()]);
    for pod in lost.as_flattened() {
        // The simulated kubelet may still act on these Pods.
        scope.pause_kubelet(&pod.name_any()).await;
    }
    give_up(&scope, [&nameds[&0], &nameds[&1]]).await;
    for set in [&random, &named] {
        until_terminating(set, 2).await;
    }
    // With random names, other Pods replace the Pods of the lost node. Terminating Pods do not count.
    let set = random.settled().await;
    let status = set.status.unwrap();
    assert_eq!(
        (
            status.replicas,
            status.available_replicas,
            status.terminating_replicas
        ),
        (3, 3, 2)
    );
    let after = random.pods().await;
    assert_eq!(ids(&after), [0, 1, 2]);
    assert_eq!(after[&2].uid(), randoms[&2].uid());
    // A persistent name stays in use as long as its Pod may still run, and the condition reports it.
    let set = named
        .until("to say what it waits for", |set| {
            let ready = condition(set, "Ready").unwrap();
            ready.status == "False" && ready.message.contains("named-0, named-1")
        })
        .await;
    assert_eq!(condition(&set, "Ready").unwrap().reason, "Scaling");
    let status = set.status.unwrap();
    assert_eq!((status.replicas, status.available_replicas), (1, 1));
    assert_eq!(
        uids(&named.pods().await),
        [(2, nameds[&2].uid().unwrap())].into()
    );

    node.come_back().await;
    for pod in lost.as_flattened() {
        let resumed = json!({ "metadata": { "annotations": { PAUSED: null } } });
        drop(scope.patch(&pod.name_any(), resumed).await); // may be deleted already
        scope.until_gone(pod).await;
    }
    for set in [&random, &named] {
        until_terminating(set, 0).await;
        set.settled().await;
    }
    assert_eq!(
        uids(&random.pods().await),
        uids(&after),
        "no Pod goes twice"
    );
    let pods = named.pods().await;
    assert_eq!(named.names().await, ["named-0", "named-1", "named-2"]);
    assert!([0, 1].iter().all(|id| pods[id].uid() != nameds[id].uid()));
    assert_eq!(pods[&2].uid(), nameds[&2].uid());
    scope.until_at_rest("named", 3).await;
    no_id_was_shared(&observer).await;
    for set in [&random, &named] {
        set.edit(json!({ "replicas": 0 })).await;
        set.settled().await;
    }
    node.remove().await;
    other.remove().await;
}

async fn until_terminating(set: &Set<'_>, count: i32) {
    set.until(&format!("{count} Pods to be terminating"), |set| {
        set.status
            .as_ref()
            .is_some_and(|s| s.terminating_replicas == count)
    })
    .await;
}
