//! Brings the soak to rest: faults have ended, and all operations in progress are finished.

use std::time::Duration;

use anyhow::{Result, bail};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use testbed::fleet::Fleet;
use testbed::observer::{Pod, resource};
use tokio::time::{Instant, sleep};

use super::act::{Actor, FINALIZER, PROTECTION, finalizers, list, own_labels};
use super::{tenant, unrest};

/// Interval of progress lines.
const TELL: Duration = Duration::from_secs(20);
/// A little longer than the `ExpectationsTimeout` of the controllers of Kubernetes.
const EXPECTATIONS: Duration = Duration::from_secs(310);
const FAMILIES: [&str; 1] = ["operating"];

/// Finishes the operations, and waits until all objects are at rest.
///
/// # Errors
/// After `bound`, with the objects that are not at rest.
pub async fn come_to_rest(fleet: &Fleet, actor: &Actor, bound: Duration) -> Result<Duration> {
    let start = Instant::now();
    let mut last_report = start;
    loop {
        let unrest = match settle(fleet, actor, start).await {
            Ok(unrest) if unrest.is_empty() => return Ok(start.elapsed()),
            Ok(unrest) => unrest,
            Err(error) => vec![format!("{error:#}")],
        };
        if last_report.elapsed() > TELL {
            last_report = Instant::now();
            eprintln!(
                "not at rest yet: {} things, such as {}",
                unrest.len(),
                unrest[0]
            );
        }
        if start.elapsed() > bound {
            let context = unrest::context(&actor.admin, &actor.namespace).await;
            bail!(
                "not at rest after {bound:?}:\n  {}\nbeside it, at {}:\n  {}",
                unrest.join("\n  "),
                Timestamp::now(),
                context.unwrap_or_else(|error| format!("{error:#}"))
            );
        }
        sleep(Duration::from_secs(2)).await;
    }
}

/// Runs one round, and returns the objects that are not at rest.
async fn settle(fleet: &Fleet, actor: &Actor, start: Instant) -> Result<Vec<String>> {
    let mut unrest = Vec::new();
    let (admin, namespace) = (&actor.admin, actor.namespace.as_str());
    let api = |kind| Api::<DynamicObject>::namespaced_with(admin.clone(), namespace, &kind);
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(admin.clone());
    for node in nodes.list(&ListParams::default()).await?.items {
        if node
            .spec
            .as_ref()
            .is_some_and(|s| s.unschedulable == Some(true))
        {
            nodes.uncordon(&node.name_any()).await?;
        }
    }
    let budgets = api(resource("policy", "v1", "PodDisruptionBudget"));
    let all = ListParams::default();
    budgets
        .delete_collection(&DeleteParams::default(), &all)
        .await?;
    for kind in [
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "DaemonSet",
        "CollaSet",
    ] {
        let owners = api(tenant::kind(kind));
        for owner in owners.list(&all).await?.items {
            if owner.data["spec"]["paused"] == true {
                let patch = Patch::Merge(json!({"spec": {"paused": false}}));
                owners
                    .patch(&owner.name_any(), &PatchParams::default(), &patch)
                    .await?;
            }
            if lacks_pods(kind, &owner) || missed_a_deletion(kind, &owner, start) {
                touch(&owners, &owner, start).await?;
            }
            if !is_done(kind, &owner) {
                unrest.push(format!(
                    "{kind}/{} generation {:?}: spec {}, status {}",
                    owner.name_any(),
                    owner.metadata.generation,
                    owner.data["spec"]["replicas"],
                    short(&owner.data["status"])
                ));
            }
        }
    }
    for pod in list(admin, namespace).await? {
        settle_pod(actor, &pod, &mut unrest).await?;
    }
    match fleet.claims(namespace).await? {
        0 => {}
        claims => unrest.push(format!("{claims} claims")),
    }
    Ok(unrest)
}

/// Whether the owner has fewer Pods than desired. No rule refuses the creation of a Pod, so a touch of such
/// an owner hides no fault of the server.
fn lacks_pods(kind: &str, owner: &DynamicObject) -> bool {
    let (spec, status) = (&owner.data["spec"], &owner.data["status"]);
    let (has, desired) = match kind {
        // The controller of a CollaSet is under test, so it must come to rest by itself.
        "CollaSet" => return false,
        "DaemonSet" => ("currentNumberScheduled", &status["desiredNumberScheduled"]),
        _ => ("replicas", &spec["replicas"]),
    };
    status[has].as_i64() < desired.as_i64()
}

/// Whether a ReplicaSet with too many Pods may wait for an event that never comes. It requests no deletion
/// while it expects to observe an earlier one. If the Pod lost its owner in the meantime, this is never
/// observed, so the ReplicaSet waits for `EXPECTATIONS`, and then for any event. A deletion that the server
/// refused is repeated sooner: the pause doubles, and all of these pauses began within the soak.
fn missed_a_deletion(kind: &str, owner: &DynamicObject, start: Instant) -> bool {
    let (spec, status) = (&owner.data["spec"], &owner.data["status"]);
    kind == "ReplicaSet"
        && start.elapsed() > EXPECTATIONS
        && status["replicas"].as_i64() > spec["replicas"].as_i64()
}

/// Causes the owner's controller to reconcile again. The controller may be waiting: for up to 1,000 s after
/// failed creations, for example while the former Pod of a StatefulSet still terminates under the same name;
/// or for the `ExpectationsTimeout` of 5 minutes and then for any event, if a ReplicaSet missed the creation
/// of a Pod that was deleted at once, or if its Pod lost its owner while the ReplicaSet deleted it.
async fn touch(
    owners: &Api<DynamicObject>,
    owner: &DynamicObject,
    start: Instant,
) -> kube::Result<()> {
    let touched = start.elapsed().as_secs().to_string();
    let patch = Patch::Merge(json!({"metadata": {"annotations": {"touched": touched}}}));
    let (name, params) = (owner.name_any(), PatchParams::default());
    owners.patch(&name, &params, &patch).await.map(|_| ())
}

async fn settle_pod(actor: &Actor, pod: &DynamicObject, unrest: &mut Vec<String>) -> Result<()> {
    let kind = resource("", "v1", "Pod");
    let pods: Api<DynamicObject> =
        Api::namespaced_with(actor.admin.clone(), &actor.namespace, &kind);
    let name = pod.name_any();
    let fact = Pod::read(pod);
    let params = PatchParams::default();
    for finalizer in [FINALIZER, PROTECTION] {
        if pod.finalizers().iter().any(|f| f == finalizer) {
            let patch = Patch::Merge(finalizers(pod, finalizer, false));
            let _ = pods.patch(&name, &params, &patch).await;
        }
    }
    let labels = own_labels(pod, &FAMILIES);
    if labels.as_object().is_some_and(|l| !l.is_empty()) {
        let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
        let _ = pods.patch(&name, &params, &patch).await;
    }
    let mut images = pod.data["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten();
    let bad = images.any(|c| c["image"].as_str().is_some_and(|i| i.contains(":bad-")));
    let left_rule = !pod.labels().contains_key(tenant::TIER.0);
    // Its StatefulSet released it because of its labels, and cannot create another Pod of the same name.
    let mut owners = pod.owner_references().iter();
    let is_kept = owners.any(|owner| owner.kind == "StatefulSet");
    let in_the_way = name.starts_with(tenant::STATEFUL_POD) && !is_kept;
    // No controller removes these.
    if !fact.is_managed() || left_rule || fact.finished || in_the_way || (bad && !fact.serves()) {
        let _ = pods.delete(&name, &DeleteParams::default()).await;
    }
    let in_flight = pod
        .labels()
        .keys()
        .any(|key| key.contains(".podopslifecycle.kusionstack.io/"));
    if !fact.serves() || in_flight || left_rule || !fact.is_managed() {
        let keys: Vec<_> = pod
            .labels()
            .keys()
            .filter(|key| key.contains("podopslifecycle"))
            .cloned()
            .collect();
        unrest.push(format!(
            "Pod/{name}: ready {}, deleting {}, finalizers {:?}, labels {keys:?}, runs {:?} of {:?}",
            fact.ready,
            fact.deleting,
            pod.finalizers(),
            fact.running,
            fact.wanted
        ));
    }
    Ok(())
}

/// Whether an owner has the desired number of Pods of its current template.
fn is_done(kind: &str, owner: &DynamicObject) -> bool {
    let (spec, status) = (&owner.data["spec"], &owner.data["status"]);
    let count = |field: &str| status[field].as_i64().unwrap_or_default();
    let current = count("observedGeneration") == owner.metadata.generation.unwrap_or_default();
    if owner.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let desired = spec["replicas"].as_i64().unwrap_or(1);
    let all = |fields: &[&str]| fields.iter().all(|field| count(field) == desired);
    current
        && match kind {
            "Deployment" => all(&["replicas", "updatedReplicas", "availableReplicas"]),
            "StatefulSet" => all(&["replicas", "updatedReplicas", "readyReplicas"]),
            "ReplicaSet" => {
                // The ReplicaSet of a Deployment is complete when the Deployment is.
                !owner.owner_references().is_empty() || all(&["replicas", "availableReplicas"])
            }
            "CollaSet" => all(&["replicas", "updatedReplicas", "availableReplicas"]),
            _ => {
                let desired = count("desiredNumberScheduled");
                count("updatedNumberScheduled") == desired && count("numberAvailable") == desired
            }
        }
}

fn short(status: &Value) -> String {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|_, value| value.is_number());
    }
    status.to_string()
}
