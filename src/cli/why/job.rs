//! `operating why opj/NAME`.

use anyhow::Context as _;
use futures::stream::SelectAll;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};

use super::collect::jobs::observe_job;
use super::follow_mode::{self, FollowFrame};
use super::{api_reads, format_gone, job_tree, to_json_text};
use crate::api::operationjob::OperationJob;
use crate::cli::args::{Output, WhyArgs};
use crate::cli::output;
use crate::domain::diagnosis::operationjob::diagnose_job;

/// Explains an OperationJob, once or after each change until it is deleted.
pub async fn explain_job(
    args: &WhyArgs,
    client: Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<()> {
    let form = args.format.output;
    let first = observe_job(&client, namespace, name).await?;
    let first = first.with_context(|| api_reads::no_such_job(namespace, name))?;
    let began = Timestamp::now();
    if !args.watch {
        return output::write_stdout(&format_job(&first, began, form, false)?);
    }
    let jobs: Api<PartialObjectMeta<OperationJob>> = Api::namespaced(client.clone(), namespace);
    let changes = SelectAll::from_iter([follow_mode::watch_changes(jobs, Some(name))]);
    let observe = async || {
        let job = observe_job(&client, namespace, name).await?;
        let Some(job) = job.filter(|job| job.metadata.uid == first.metadata.uid) else {
            let text = format_gone(&format!("OperationJob {name}"), form)?;
            return Ok(FollowFrame::final_frame(text));
        };
        // A change of ages alone is not printed.
        let key = format_job(&job, began, form, true)?;
        let text = format_job(&job, Timestamp::now(), form, true)?;
        Ok(FollowFrame::open_frame(text, key))
    };
    follow_mode::follow_changes(changes, observe).await
}

/// Formats the diagnosis of a job. With `line`, JSON is on one line.
fn format_job(
    job: &OperationJob,
    now: Timestamp,
    form: Output,
    line: bool,
) -> anyhow::Result<String> {
    let diagnosis = diagnose_job(job, now);
    match form {
        Output::Text => Ok(job_tree::render_job(&diagnosis, now)),
        Output::Json => to_json_text(&diagnosis, line),
    }
}
