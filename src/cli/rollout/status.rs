//! `rollout status`: shows the state of a rollout, and which Pods wait for what, until the rollout ends.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, PartialObjectMeta};
use tokio::time::Instant;

use super::Target;
use super::progress::{RolloutState, rollout_counts, rollout_state};
use crate::api::collaset::CollaSet;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::cli::args::WhyKind;
use crate::cli::args::steer::StatusArgs;
use crate::cli::output;
use crate::cli::retries::Retries;
use crate::cli::why::collect::namespace_reads::NamespaceReads;
use crate::cli::why::collect::workloads::observe_workload;
use crate::cli::why::follow_mode::{self, WatchChange};
use crate::domain::diagnosis::workload::{describe_group, diagnose_workload};

const INTERRUPTED: &str = "interrupted; the rollout goes on";
/// How long the wait without end of `--timeout=0s` is.
const NO_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Shows a rollout until it ends, and returns the exit code.
pub async fn wait_for_rollout(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let target = Target::connect(&args.set).await?;
    let first = target.read().await?;
    let mut view = View::new(args.watch);
    let timeout = match args.timeout.is_zero() {
        true => NO_TIMEOUT,
        false => args.timeout,
    };
    let deadline = Instant::now() + timeout;
    let mut changes = watch_rollout(&target);
    let mut set = first.clone();
    // One listener: a signal during a read is not lost.
    let mut interrupt = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let state = rollout_state(&set);
        let waits = match state {
            RolloutState::Complete(_) => Vec::new(),
            _ => describe_waits(&target).await,
        };
        let ended = match state {
            RolloutState::Complete(text) => Some((text, ExitCode::SUCCESS)),
            RolloutState::Stopped(text) => Some((text, ExitCode::FAILURE)),
            RolloutState::Going(text) if !args.watch => Some((text, ExitCode::SUCCESS)),
            RolloutState::Going(text) => {
                view.show(&set, &text, &waits)?;
                None
            }
        };
        if let Some((text, code)) = ended {
            view.end(&text, &waits)?;
            return Ok(code);
        }
        tokio::select! {
            interrupted = &mut interrupt => {
                interrupted?;
                view.end(INTERRUPTED, &[])?;
                return Ok(ExitCode::FAILURE);
            }
            () = tokio::time::sleep_until(deadline) => {
                let text = format!(
                    "the rollout is not complete after {}s (--timeout): see operating why cls/{} -n {}",
                    args.timeout.as_secs(), target.name, target.namespace
                );
                view.end(&text, &[])?;
                return Ok(ExitCode::FAILURE);
            }
            change = follow_mode::next_change(follow_mode::LIST_BURST_WINDOW, &mut changes) => {
                anyhow::ensure!(change?, "the watch of the CollaSet has ended: run the command again");
            }
        }
        let read = target.read_with(Retries::until(Some(deadline)));
        set = tokio::select! {
            read = read => read?,
            interrupted = &mut interrupt => {
                interrupted?;
                view.end(INTERRUPTED, &[])?;
                return Ok(ExitCode::FAILURE);
            }
        };
        anyhow::ensure!(
            set.metadata.uid == first.metadata.uid,
            "CollaSet {} was deleted, and another has its name",
            target.name
        );
    }
}

/// Changes of the set, its Pods and the rules. Only the set must be readable: without the others the command shows
/// fewer reasons.
fn watch_rollout(target: &Target) -> SelectAll<BoxStream<'static, WatchChange>> {
    let (client, namespace) = (&target.client, target.namespace.as_str());
    let sets: Api<PartialObjectMeta<CollaSet>> = Api::namespaced(client.clone(), namespace);
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let rules: Api<PartialObjectMeta<PodTransitionRule>> =
        Api::namespaced(client.clone(), namespace);
    let readable = |change: &WatchChange| std::future::ready(change.is_ok());
    SelectAll::from_iter([
        follow_mode::watch_changes(sets, Some(&target.name)),
        follow_mode::watch_changes(pods, None)
            .filter(readable)
            .boxed(),
        follow_mode::watch_changes(rules, None)
            .filter(readable)
            .boxed(),
    ])
}

/// Which Pods wait for what, one line for each reason. Empty if this can't be read.
async fn describe_waits(target: &Target) -> Vec<String> {
    let reads = NamespaceReads::new(&target.client, &target.namespace);
    let observed = observe_workload(&reads, WhyKind::CollaSet, &target.name).await;
    let Ok(Some(observed)) = observed else {
        return Vec::new();
    };
    let diagnosis = diagnose_workload(&observed, Timestamp::now());
    let waits = diagnosis.waits.iter().map(|group| {
        let detail = group.detail.as_ref();
        describe_group(group) + &detail.map_or_else(String::new, |detail| format!(": {detail}"))
    });
    waits.collect()
}

/// Where the state is shown: a bar on a terminal, otherwise lines.
enum View {
    Bar(ProgressBar),
    Lines { shown: Vec<String> },
}

impl View {
    fn new(watch: bool) -> View {
        let lines = View::Lines { shown: Vec::new() };
        if !watch || !std::io::stdout().is_terminal() {
            return lines;
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
        match ProgressStyle::with_template("[{bar:30}] {pos}/{len}  {msg}") {
            Ok(style) => View::Bar(bar.with_style(style.progress_chars("=> "))),
            Err(_) => lines,
        }
    }

    fn show(&mut self, set: &CollaSet, text: &str, waits: &[String]) -> anyhow::Result<()> {
        match self {
            View::Bar(bar) => {
                let counts = rollout_counts(set);
                bar.set_length(counts.wanted);
                bar.set_position(counts.done);
                bar.set_message(to_text(text, waits));
            }
            View::Lines { shown } => {
                // A reason is printed again only after it was absent.
                let fresh: Vec<String> = waits
                    .iter()
                    .filter(|w| !shown.contains(w))
                    .cloned()
                    .collect();
                if shown.first().map(String::as_str) != Some(text) || !fresh.is_empty() {
                    output::write_stdout(&(to_text(text, &fresh) + "\n"))?;
                }
                *shown = std::iter::once(text.to_owned())
                    .chain(waits.iter().cloned())
                    .collect();
            }
        }
        Ok(())
    }

    fn end(&mut self, text: &str, waits: &[String]) -> anyhow::Result<()> {
        if let View::Bar(bar) = self {
            bar.finish_and_clear();
        }
        output::write_stdout(&(to_text(text, waits) + "\n"))
    }
}

fn to_text(text: &str, waits: &[String]) -> String {
    let waits = waits.iter().map(|wait| format!("\n  {wait}"));
    std::iter::once(text.to_owned()).chain(waits).collect()
}
