//! Reads all that a diagnosis needs from the API server, with the rights of the user.

pub mod jobs;
pub mod namespace_reads;
pub mod services;
pub mod workloads;

use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::api::Api;
use kube::{Client, Error};
use serde::Deserialize;

use self::namespace_reads::NamespaceReads;
use super::api_reads::{self, ReadNotes};
use super::pod_context;
use crate::api::collaset::CollaSet;
use crate::api::poddecoration::PodDecoration;
use crate::cluster::pod_requests;
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::diagnosis::{
    ObservedPod, PodController, may_be_bounded, may_wait_for_max_unavailable,
};
use crate::domain::pod::{Owner, Pod};

/// The Pod and its context. `None` if there is no such Pod.
///
/// # Errors
/// If the Pod or the rules can't be read. For anything else that can't be read there is a note.
pub async fn observe_pod(
    reads: &NamespaceReads,
    name: &str,
) -> anyhow::Result<Option<ObservedPod>> {
    let (client, namespace) = (&reads.client, &*reads.namespace);
    let raw = api_reads::call_with_timeout(
        "get",
        "pods",
        Some(namespace),
        pod_requests::get_raw_pod(client, namespace, name),
    )
    .await?;
    let Some(raw) = raw else {
        return Ok(None);
    };
    let unscheduled = pod_context::unscheduled_message(&raw);
    let pod: Pod = serde_json::from_value(raw).context("the Pod can't be read")?;
    let rules = reads.rules().await?;
    let covered = rules.iter().any(|rule| rule.set.selects(&pod));
    let mut notes = ReadNotes::default();
    let (controller, deployment) = observe_controller(client, &pod, &mut notes).await;
    let decorations = observe_decorations(reads, controller.as_ref(), &mut notes).await;
    let bounded = matches!(&controller, Some(PodController::CollaSet(set)) if may_be_bounded(set, &pod)
        || may_wait_for_max_unavailable(set, &pod, decorations.as_deref().unwrap_or_default()));
    let pods = observe_managed_pods(reads, covered, bounded, &mut notes).await;
    let jobs = jobs::observe_jobs(reads, &pod, &mut notes).await;
    let deployment = deployment.as_deref();
    let mut context =
        pod_context::observe_context(reads, &pod, covered, deployment, &mut notes).await;
    context.unscheduled = unscheduled;
    context.decorations = decorations;
    context.employers = services::observe_awaited(client, &pod, &mut notes).await;
    Ok(Some(ObservedPod {
        pod: Arc::new(pod),
        rules,
        pods,
        controller,
        jobs,
        context,
        notes: notes.into_lines(),
        now: Timestamp::now(),
    }))
}

/// The controller of a Pod, and the name of the Deployment that controls this controller.
async fn observe_controller(
    client: &Client,
    pod: &Pod,
    notes: &mut ReadNotes,
) -> (Option<PodController>, Option<String>) {
    let Some(owner) = pod.controller() else {
        return (None, None);
    };
    match read_controller(client, &pod.metadata.namespace, owner).await {
        Ok(found) => found,
        Err(e) => {
            let unknown = format!("what {} {} is about is not known", owner.kind, owner.name);
            notes.add(&unknown, &e);
            (None, None)
        }
    }
}

/// The PodDecorations of the namespace, if a CollaSet controls the Pod. `None` if they can't be read.
async fn observe_decorations(
    reads: &NamespaceReads,
    controller: Option<&PodController>,
    notes: &mut ReadNotes,
) -> Option<Vec<PodDecoration>> {
    if !matches!(controller, Some(PodController::CollaSet(_))) {
        return None;
    }
    let decorations = reads.decorations().await;
    decorations
        .map_err(|e| notes.add("which PodDecorations the Pod should have", &e))
        .ok()
}

/// The managed Pods of the namespace, if budgets of rules (`covered`) or of an update (`bounded`) depend on them.
async fn observe_managed_pods(
    reads: &NamespaceReads,
    covered: bool,
    bounded: bool,
    notes: &mut ReadNotes,
) -> Vec<Arc<Pod>> {
    if !covered && !bounded {
        return Vec::new();
    }
    match reads.managed_pods().await {
        Ok(listed) => return listed,
        Err(e) if covered => notes.add("only the claims show which Pods use a budget", &e),
        Err(e) => notes.add(
            "whether updateStrategy.maxUnavailable or maxSurge holds the Pod is not known",
            &e,
        ),
    }
    Vec::new()
}

/// The fields of a workload that the diagnosis needs.
#[derive(Deserialize)]
struct ControllerObject {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    uid: String,
    #[serde(default, rename = "ownerReferences")]
    owner_references: Vec<Owner>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    replicas: Option<u32>,
}

/// The controller of a Pod, and the name of the Deployment that controls this controller. The controller is `None` if
/// the diagnosis does not cover its kind.
async fn read_controller(
    client: &Client,
    namespace: &str,
    owner: &Owner,
) -> anyhow::Result<(Option<PodController>, Option<String>)> {
    let (group, plural) = match owner.kind.as_str() {
        "CollaSet" => {
            request_path::checked_name(&owner.name)?;
            let sets: Api<CollaSet> = request_path::namespaced_api(client, namespace)?;
            let set = api_reads::call_with_timeout(
                "get",
                "collasets",
                Some(namespace),
                sets.get_opt(&owner.name),
            )
            .await?;
            let set = set.filter(|set| set.metadata.uid.as_deref() == Some(&owner.uid));
            let set = set.map_or(PodController::Gone, |set| {
                PodController::CollaSet(Arc::new(set))
            });
            return Ok((Some(set), None));
        }
        "ReplicaSet" => ("/apis/apps/v1", "replicasets"),
        "StatefulSet" => ("/apis/apps/v1", "statefulsets"),
        "ReplicationController" => ("/api/v1", "replicationcontrollers"),
        _ => return Ok((None, None)),
    };
    let request = ResourcePath::from_parts(group, namespace, plural)?.get(&owner.name)?;
    let read = async {
        match client.request::<ControllerObject>(request).await {
            Ok(found) => Ok(Some(found)),
            Err(Error::Api(status)) if status.code == 404 => Ok(None),
            Err(e) => Err(e),
        }
    };
    let found = api_reads::call_with_timeout("get", plural, Some(namespace), read).await?;
    let found = found.filter(|workload| workload.metadata.uid == owner.uid);
    let Some(workload) = found else {
        return Ok((Some(PodController::Gone), None));
    };
    let mut owners = workload.metadata.owner_references.into_iter();
    let deployment = owners.find(|owner| owner.controller && owner.kind == "Deployment");
    let replicas = workload.spec.replicas;
    Ok((
        Some(PodController::Other { replicas }),
        deployment.map(|owner| owner.name),
    ))
}

#[cfg(test)]
mod tests;
