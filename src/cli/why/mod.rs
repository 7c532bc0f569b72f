//! The commands `why` and `budget`, which explain the state in the API server. They only read, with the rights of their
//! user.

mod api_reads;
pub(crate) mod budget;
mod collect;
mod follow_mode;
mod job;
pub mod job_tree;
mod object;
mod pod_context;
mod service;
pub mod service_tree;
pub mod tree;
mod tree_node;

use anyhow::Context as _;
use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use serde::Serialize;

use super::args::{BudgetArgs, Output, WhyArgs, WhySubject};
use super::{connect, output};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::diagnosis::facts::DryRunDeletion;
use crate::domain::diagnosis::{ObservedPod, diagnose};
use follow_mode::FollowFrame;

/// `operating why`.
pub async fn run_why(args: WhyArgs) -> anyhow::Result<()> {
    let subject = args.subject().map_err(anyhow::Error::msg)?;
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    match subject {
        WhySubject::Pod(name) => explain_pod(&args, client, &namespace, name).await,
        WhySubject::OperationJob(name) => job::explain_job(&args, client, &namespace, name).await,
        WhySubject::Service(name) => {
            service::explain_service(&args, client, &namespace, name).await
        }
    }
}

async fn explain_pod(
    args: &WhyArgs,
    client: Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<()> {
    let first = collect::observe_pod(&client, namespace, name).await?;
    let first = first.with_context(|| api_reads::no_such_pod(namespace, name))?;
    if !args.watch {
        return output::write_stdout(&format_diagnosis(&first, args.format.output, false)?);
    }
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let rules: Api<PartialObjectMeta<PodTransitionRule>> =
        Api::namespaced(client.clone(), namespace);
    let changes = SelectAll::from_iter([
        follow_mode::watch_changes(pods, Some(name)),
        follow_mode::watch_changes(rules, None),
    ]);
    let (uid, began) = (first.pod.metadata.uid.clone(), first.now);
    let observe = async || {
        let observed = collect::observe_pod(&client, namespace, name).await?;
        let Some(mut observed) = observed.filter(|o| o.pod.metadata.uid == uid) else {
            let text = format_gone(&format!("Pod {name}"), args.format.output)?;
            return Ok(FollowFrame::final_frame(text));
        };
        let text = format_diagnosis(&observed, args.format.output, true)?;
        observed.now = began; // a change of ages alone is not printed
        observed.context.dry_run_deletion = observed
            .context
            .dry_run_deletion
            .map(DryRunDeletion::without_text);
        Ok(FollowFrame::open_frame(
            text,
            format_diagnosis(&observed, args.format.output, true)?,
        ))
    };
    follow_mode::follow_changes(changes, observe).await
}

/// `operating budget`.
pub async fn run_budget(args: BudgetArgs) -> anyhow::Result<()> {
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    let namespace = (!args.all_namespaces).then_some(namespace);
    let read = async |line: bool| {
        let rules = api_reads::list_rules(&client, namespace.as_deref()).await?;
        budget::format_budgets(&rules, namespace.as_deref(), args.format.output, line)
    };
    if !args.watch {
        return output::write_stdout(&read(false).await?);
    }
    read(true).await?; // if the first read fails, the command ends with the error
    let rules: Api<PartialObjectMeta<PodTransitionRule>> = match &namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let changes = SelectAll::from_iter([follow_mode::watch_changes(rules, None)]);
    follow_mode::follow_changes(changes, async || {
        let text = read(true).await?;
        Ok(FollowFrame::open_frame(text.clone(), text))
    })
    .await
}

/// Formats the diagnosis. With `line`, JSON is on one line.
fn format_diagnosis(observed: &ObservedPod, form: Output, line: bool) -> anyhow::Result<String> {
    let diagnosis = diagnose(observed);
    match form {
        Output::Text => Ok(tree::render_diagnosis(&diagnosis, observed.now)),
        Output::Json => to_json_text(&diagnosis, line),
    }
}

/// Formats that an object is gone. `object` is its kind and its name.
fn format_gone(object: &str, form: Output) -> anyhow::Result<String> {
    let summary = format!("{object} is gone");
    match form {
        Output::Text => Ok(summary + "\n"),
        Output::Json => to_json_text(&serde_json::json!({ "summary": summary }), true),
    }
}

/// JSON text that ends with a line break.
pub(super) fn to_json_text(value: &impl Serialize, line: bool) -> anyhow::Result<String> {
    let text = match line {
        true => serde_json::to_string(value),
        false => serde_json::to_string_pretty(value),
    };
    Ok(text.context("cannot write JSON")? + "\n")
}
