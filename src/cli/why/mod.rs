//! The commands `why` and `budget`, which explain the state in the API server. They only read, with the rights of their
//! user.

pub(in crate::cli) mod api_reads;
pub(crate) mod budget;
pub(in crate::cli) mod collect;
pub(super) mod follow_mode;
mod job;
pub mod job_tree;
mod object;
mod pod_context;
mod service;
pub mod service_tree;
pub mod tree;
pub(in crate::cli) mod tree_node;
mod workload;
pub mod workload_tree;

use std::cell::Cell;

use anyhow::Context as _;
use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use serde::Serialize;

use super::args::{BudgetArgs, Output, WhyArgs, WhyKind, WhySubject};
use super::{connect, output};
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::diagnosis::facts::DryRunDeletion;
use crate::domain::diagnosis::{ObservedPod, diagnose};
use collect::namespace_reads::NamespaceReads;
use follow_mode::FollowFrame;

/// The flags, and what was read of the namespace for all objects that are explained.
struct Explaining<'a> {
    args: &'a WhyArgs,
    reads: &'a NamespaceReads,
    /// Whether several objects are explained. If so, each JSON document is on one line.
    has_several: bool,
    /// Whether an object has been printed.
    has_printed: Cell<bool>,
}

impl Explaining<'_> {
    fn client(&self) -> &Client {
        &self.reads.client
    }

    fn namespace(&self) -> &str {
        &self.reads.namespace
    }

    /// Prints the diagnosis of an object. An empty line separates it from the one before.
    fn print(&self, text: &str) -> anyhow::Result<()> {
        let is_text = self.args.format.output == Output::Text;
        let separator = match self.has_printed.replace(true) && is_text {
            true => "\n",
            false => "",
        };
        output::write_stdout(&format!("{separator}{text}"))
    }
}

/// `operating why`.
pub async fn run_why(args: WhyArgs) -> anyhow::Result<()> {
    let subjects = args.subjects().map_err(anyhow::Error::msg)?;
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    let explaining = Explaining {
        args: &args,
        reads: &NamespaceReads::new(&client, &namespace),
        has_several: subjects.len() > 1,
        has_printed: Cell::new(false),
    };
    let mut errors = Vec::new();
    for subject in subjects {
        match explain_subject(&explaining, subject).await {
            Err(error) if explaining.has_several => {
                let is_last = api_reads::is_for_all_reads(&error);
                let error = format!("{error:#}");
                if !errors.contains(&error) {
                    errors.push(error);
                }
                if is_last {
                    break;
                }
            }
            explained => explained?,
        }
    }
    // The objects that exist are shown first.
    anyhow::ensure!(errors.is_empty(), "{}", errors.join("\n"));
    Ok(())
}

async fn explain_subject(
    explaining: &Explaining<'_>,
    WhySubject { kind, name }: WhySubject<'_>,
) -> anyhow::Result<()> {
    match kind {
        WhyKind::Pod => explain_pod(explaining, name).await,
        WhyKind::OperationJob => job::explain_job(explaining, name).await,
        WhyKind::Service => service::explain_service(explaining, name).await,
        WhyKind::CollaSet
        | WhyKind::Deployment
        | WhyKind::StatefulSet
        | WhyKind::DaemonSet
        | WhyKind::ReplicaSet => workload::explain_workload(explaining, kind, name).await,
    }
}

async fn explain_pod(explaining: &Explaining<'_>, name: &str) -> anyhow::Result<()> {
    let (client, namespace) = (explaining.client(), explaining.namespace());
    let form = explaining.args.format.output;
    let first = collect::observe_pod(explaining.reads, name).await?;
    let first = first.with_context(|| api_reads::no_such_object("Pod", "pods", namespace, name))?;
    if !explaining.args.watch {
        return explaining.print(&format_diagnosis(&first, form, explaining.has_several)?);
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
        let reads = NamespaceReads::new(client, namespace);
        let observed = collect::observe_pod(&reads, name).await?;
        let Some(mut observed) = observed.filter(|o| o.pod.metadata.uid == uid) else {
            let text = format_gone(&format!("Pod {name}"), form)?;
            return Ok(FollowFrame::final_frame(text));
        };
        let text = format_diagnosis(&observed, form, true)?;
        observed.now = began; // a change of ages alone is not printed
        observed.context.dry_run_deletion = observed
            .context
            .dry_run_deletion
            .map(DryRunDeletion::without_text);
        Ok(FollowFrame::open_frame(
            text,
            format_diagnosis(&observed, form, true)?,
        ))
    };
    follow_mode::follow_changes(follow_mode::BURST_WINDOW, changes, observe).await
}

/// What a Pod waits for, in one sentence. `None` if the Pod does not exist.
pub(super) async fn summarize_pod(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Option<String>> {
    let reads = NamespaceReads::new(client, namespace);
    let observed = collect::observe_pod(&reads, name).await?;
    Ok(observed.map(|observed| diagnose(&observed).summary))
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
    follow_mode::follow_changes(follow_mode::BURST_WINDOW, changes, async || {
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
