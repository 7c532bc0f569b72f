//! Reads all that the diagnosis of a Pod needs from the API server, with the rights of the user.

use std::sync::Arc;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::api::Api;
use kube::{Client, Error};
use serde::Deserialize;

use super::{api, pod_context};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::operationjob::OperationJob;
use crate::cluster::pod_requests;
use crate::cluster::request_path::{self, ResourcePath};
use crate::domain::diagnosis::{ObservedPod, PodController, may_be_bounded};
use crate::domain::lifecycle::stored_phases;
use crate::domain::pod::{Owner, Pod};

/// The Pod and its context. `None` if there is no such Pod.
///
/// # Errors
/// If the Pod or the rules can't be read. For anything else that can't be read there is a note.
pub async fn observe_pod(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<ObservedPod>> {
    let raw = api::call_with_timeout(
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
    let rules = api::list_rules(client, Some(namespace)).await?;
    let mut notes = Vec::new();
    let mut noted = |what: &str, error: anyhow::Error| notes.push(format!("{what}: {error:#}"));
    let all = ResourcePath::from_parts("/api/v1", namespace, "pods")?;
    let labels = format!("{}={}", keys::CONTROL, keys::CONTROL_VALUE);
    let covered = rules.iter().any(|rule| rule.set.selects(&pod));
    let mut deployment = None;
    let controller = match pod.controller() {
        Some(owner) => match read_controller(client, namespace, owner).await {
            Ok((controller, owned_by)) => {
                deployment = owned_by;
                controller
            }
            Err(e) => {
                noted(
                    &format!("what {} {} is about is not known", owner.kind, owner.name),
                    e,
                );
                None
            }
        },
        None => None,
    };
    let bounded =
        matches!(&controller, Some(PodController::CollaSet(set)) if may_be_bounded(set, &pod));
    let mut others: Vec<Pod> = Vec::new();
    if covered || bounded {
        let listed = api::list_all_pages(client, all.path(), &labels);
        match api::call_with_timeout("list", "pods", Some(namespace), listed).await {
            Ok(listed) => others = listed,
            Err(e) if covered => noted("which Pods use budgets up is known from claims alone", e),
            Err(e) => noted(
                "whether updateStrategy.maxUnavailable or maxSurge holds the Pod is not known",
                e,
            ),
        }
    }
    let mut jobs = Vec::new();
    for id in stored_phases(&pod)
        .into_keys()
        .filter(|id| !["collaset", "pod-delete"].contains(&id.as_str()))
    {
        let api: Api<OperationJob> = Api::namespaced(client.clone(), namespace);
        match api::call_with_timeout("get", "operationjobs", Some(namespace), api.get_opt(&id))
            .await
        {
            Ok(job) => jobs.extend(job.map(Arc::new)),
            Err(e) => noted(
                &format!("whether operation {id} is an OperationJob's is not known"),
                e,
            ),
        }
    }
    let (mut around, missing) =
        pod_context::observe_context(client, &pod, covered, deployment.as_deref()).await;
    around.unscheduled = unscheduled;
    notes.extend(missing);
    Ok(Some(ObservedPod {
        pod: Arc::new(pod),
        rules,
        pods: others.into_iter().map(Arc::new).collect(),
        controller,
        jobs,
        context: around,
        notes,
        now: Timestamp::now(),
    }))
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
            let set = api::call_with_timeout(
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
    let found = api::call_with_timeout("get", plural, Some(namespace), read).await?;
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
