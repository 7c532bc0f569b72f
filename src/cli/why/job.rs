//! `operating why opj/NAME`.

use kube::api::{Api, PartialObjectMeta};

use super::Explaining;
use super::collect::jobs::observe_job;
use super::object::ExplainedObject;
use super::{api_reads, follow_mode, job_tree};
use crate::api::operationjob::OperationJob;
use crate::domain::diagnosis::operationjob::diagnose_job;

/// Explains an OperationJob, once or after each change until it is deleted.
pub async fn explain_job(explaining: &Explaining<'_>, name: &str) -> anyhow::Result<()> {
    let (client, namespace) = (explaining.client(), explaining.namespace());
    let jobs: Api<PartialObjectMeta<OperationJob>> = Api::namespaced(client.clone(), namespace);
    let explained = ExplainedObject {
        title: format!("OperationJob {name}"),
        missing: api_reads::no_such_job(namespace, name),
        uid: |job: &OperationJob| job.metadata.uid.as_deref(),
        diagnose: diagnose_job,
        render: job_tree::render_job,
        burst_window: follow_mode::BURST_WINDOW,
        changes: follow_mode::watch_changes(jobs, Some(name)),
    };
    let read = async || observe_job(client, namespace, name).await;
    explained.explain(explaining, read).await
}
