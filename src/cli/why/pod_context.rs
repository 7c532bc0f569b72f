//! Reads the context of a Pod without its rules, with the rights of the user.

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod as CorePod;
use kube::api::{Api, DeleteParams, PartialObjectMeta, Preconditions};
use kube::core::Status;
use kube::{Client, Error};
use serde_json::Value;
use tokio::time::timeout;

use super::api_reads::{self, ReadNotes};
use super::collect::namespace_reads::NamespaceReads;
use crate::domain::diagnosis::PodContext;
use crate::domain::diagnosis::facts::DryRunDeletion;
use crate::domain::pod::Pod;

/// Longer than the longest timeout of Operating's webhooks (10 s).
const DRY_RUN_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of dry runs for a Pod that changes all the time.
const MAX_DRY_RUNS: u32 = 5;

/// The context of a Pod. `covered` is whether a rule selects the Pod.
/// `deployment` is the name of the Deployment behind its controller.
pub async fn observe_context(
    reads: &NamespaceReads,
    pod: &Pod,
    covered: bool,
    deployment: Option<&str>,
    notes: &mut ReadNotes,
) -> PodContext {
    let (client, namespace) = (&reads.client, pod.metadata.namespace.as_str());
    let mut context = PodContext {
        excluded: reads.exclusion_reason().await,
        ..PodContext::default()
    };
    match reads.disruption_budgets().await {
        Ok(listed) => context.disruption_budgets = listed,
        Err(e) => notes.add(
            "whether a PodDisruptionBudget holds evictions is not checked",
            &e,
        ),
    }
    if let Some(name) = deployment.filter(|_| covered) {
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let read = deployments.get_opt(name);
        match api_reads::call_with_timeout("get", "deployments", Some(namespace), read).await {
            Ok(found) => {
                context.recreate = found
                    .as_ref()
                    .is_some_and(is_recreate)
                    .then(|| name.to_owned())
            }
            Err(e) => notes.add(
                &format!("the strategy of Deployment {name} is not known"),
                &e,
            ),
        }
    }
    if pod.is_managed() && !pod.is_terminating() && !pod.is_finished() {
        context.dry_run_deletion = dry_run_deletion(client, pod).await;
    }
    context
}

fn is_recreate(deployment: &Deployment) -> bool {
    let spec = deployment.spec.as_ref();
    let strategy = spec.and_then(|spec| spec.strategy.as_ref());
    strategy.is_some_and(|strategy| strategy.type_.as_deref() == Some("Recreate"))
}

/// Message of the condition `PodScheduled` of a Pod, if the condition is False.
pub fn unscheduled_message(pod: &Value) -> Option<String> {
    let conditions = pod.pointer("/status/conditions")?.as_array()?;
    let scheduled = conditions
        .iter()
        .find(|c| c["type"] == "PodScheduled" && c["status"] == "False")?;
    Some(scheduled["message"].as_str().unwrap_or_default().to_owned())
}

/// Deletes the Pod in a dry run, which goes through admission and writes nothing. `None` if the Pod does not exist any
/// more.
async fn dry_run_deletion(client: &Client, pod: &Pod) -> Option<DryRunDeletion> {
    let pods: Api<PartialObjectMeta<CorePod>> =
        Api::namespaced(client.clone(), &pod.metadata.namespace);
    let not_checked = |reason: String| Some(DryRunDeletion::NotChecked { reason });
    match timeout(DRY_RUN_TIMEOUT, retry_dry_run(&pods, pod)).await {
        Ok(Ok(true)) => Some(DryRunDeletion::Allowed),
        Ok(Ok(false)) => None,
        Ok(Err(Error::Api(status))) if is_failed_precondition(&status) => {
            not_checked("the Pod changes all the time; try again".to_owned())
        }
        Ok(Err(Error::Api(status))) => Some(DryRunDeletion::from_api_refusal(
            status.code,
            &status.message,
        )),
        Ok(Err(e)) => not_checked(format!("the dry-run has failed: {e}")),
        Err(_) => not_checked(format!(
            "the API server has not answered within {}s",
            DRY_RUN_TIMEOUT.as_secs()
        )),
    }
}

/// Repeats the dry run while the Pod changes between the read and the dry run. False if the Pod is gone.
///
/// The resourceVersion is a precondition because a dry run with the UID alone is the mark of the server itself
/// (`admission::own_requests`), and the user may have the same name as the server.
async fn retry_dry_run(pods: &Api<PartialObjectMeta<CorePod>>, pod: &Pod) -> Result<bool, Error> {
    let mut version = Some(pod.metadata.resource_version.to_string());
    for attempt in 1.. {
        match dry_run_at(pods, pod, version).await {
            Ok(()) => return Ok(true),
            Err(Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(Error::Api(status))
                if is_failed_precondition(&status) && attempt < MAX_DRY_RUNS => {}
            Err(e) => return Err(e),
        }
        let now = pods.get_metadata_opt(&pod.metadata.name).await?;
        match now.map(|now| now.metadata) {
            Some(now) if now.uid.as_ref() == Some(&pod.metadata.uid) => {
                version = now.resource_version;
            }
            _ => break,
        }
    }
    Ok(false)
}

/// Whether the Pod is another one or has another version than the preconditions say (`BeforeDelete` of the API server).
/// A webhook may deny with 409, too.
fn is_failed_precondition(status: &Status) -> bool {
    status.code == 409
        && status.message.contains("recondition")
        && !status.message.starts_with("admission webhook ")
}

async fn dry_run_at(
    pods: &Api<PartialObjectMeta<CorePod>>,
    pod: &Pod,
    version: Option<String>,
) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: Some(pod.metadata.uid.clone()),
            resource_version: version,
        }),
        ..DeleteParams::default()
    };
    let deleted = pods.delete(&pod.metadata.name, &params.dry_run()).await;
    deleted.map(drop)
}
