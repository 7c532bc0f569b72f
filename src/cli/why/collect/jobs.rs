//! Reads OperationJobs.

use anyhow::Context as _;
use kube::Client;
use serde_json::Value;

use super::namespace_reads::{NamespaceReads, OWN_API};
use crate::api::operationjob::OperationJob;
use crate::cli::why::api_reads::{self, ReadNotes};
use crate::cluster::request_path::ResourcePath;
use crate::domain::pod::Pod;

const PLURAL: &str = "operationjobs";

/// The OperationJobs of the namespace of a Pod. A job names its Pods, not the other way round, so all are read. `None` if
/// they can't be read, or if the Pod is not managed: no job operates on such a Pod.
pub async fn observe_jobs(
    reads: &NamespaceReads,
    pod: &Pod,
    notes: &mut ReadNotes,
) -> Option<Vec<OperationJob>> {
    if !pod.is_managed() {
        return None;
    }
    let jobs = reads.jobs().await;
    jobs.map_err(|e| notes.add("which OperationJobs operate on the Pod", &e))
        .ok()
}

/// An OperationJob. `None` if there is none of this name.
///
/// # Errors
/// If the job can't be read.
pub async fn observe_job(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<OperationJob>> {
    let request = ResourcePath::from_parts(OWN_API, namespace, PLURAL)?.get(name)?;
    let read = async { api_reads::found(client.request::<Value>(request).await) };
    let job = api_reads::call_with_timeout("get", PLURAL, Some(namespace), read).await?;
    let job = job.map(serde_json::from_value).transpose();
    job.with_context(|| {
        format!(
            "OperationJob {name} can't be read, so nothing is operated on: delete it, and create a correct one"
        )
    })
}
