//! `cargo xtask demo`: a tour for new users on a real control plane, in a few minutes.

mod cluster;
pub mod keep;
mod narrator;
mod scenes;
mod workload;
pub(crate) mod worst;

use std::path::PathBuf;

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};

use cluster::Cluster;
use narrator::Narrator;
use workload::{LIMIT, REPLICAS, Workload};
use worst::Worst;

/// Flags of `demo`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Keep everything up at the end, and print how to use it and how to remove it
    #[arg(long)]
    keep: bool,
    /// Build the server with optimisations
    #[arg(long)]
    release: bool,
    /// Use this binary of the server instead of building one
    #[arg(long, value_name = "PATH", conflicts_with = "release")]
    bin: Option<PathBuf>,
    /// With KUBECONFIG set to a cluster elsewhere: URL by which its API server reaches this machine
    #[arg(long, value_name = "URL")]
    webhook_url: Option<String>,
}

/// Runs the demo. A Ctrl-C ends it early and removes everything.
///
/// # Errors
/// If an expectation failed, a scene could not be shown, or the demo was interrupted.
pub async fn run(args: Args) -> Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    if args.keep {
        keep::check_free()?;
    }
    let mut cluster = None;
    let mut workload = None;
    let result = tokio::select! {
        result = perform(&args, &mut cluster, &mut workload) => result,
        _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
        _ = int.recv() => Err(anyhow::anyhow!("interrupted")),
    };
    let keep = args.keep && result.is_ok();
    match (cluster, workload) {
        (Some(cluster), Some(workload)) if keep => {
            keep::explain(&cluster.plane, &workload.namespace)
        }
        (Some(cluster), workload) => {
            eprintln!("taking everything down");
            if let Some(workload) = workload
                && let Err(error) = cluster.clear(&workload).await
            {
                eprintln!("cleaning up: {error:#}");
            }
            cluster.down(&args).await?;
        }
        (None, _) if args.keep => {
            crate::daemon::down(keep::PLANE).await?;
        }
        (None, _) => {}
    }
    result
}

/// The state that the scenes share.
struct Stage<'a> {
    cluster: &'a Cluster,
    workload: &'a Workload,
    observer: Worst,
    narrator: Narrator,
}

/// Stores in `cluster` and `workload` what must be removed, even if the future is dropped halfway.
async fn perform(
    args: &Args,
    cluster: &mut Option<Cluster>,
    work: &mut Option<Workload>,
) -> Result<()> {
    let cluster = cluster.insert(Cluster::up(args).await?);
    let mut narrator = Narrator::default();
    narrator.scene("A Deployment of 10 Pods, and a rule: at most 30% of them may be unavailable");
    narrator.say(format!("API server: {}", cluster.plane.apiserver_url()));
    let workload = work.insert(cluster.workload().await?);
    workload.set_nodes_schedulable(true).await?;
    workload.webhooks_called().await?;
    workload.create().await?;
    workload.create_rule().await?;
    let pods = workload.whole().await?.len();
    narrator.check("10 Pods available", pods, pods == REPLICAS);
    let mut stage = Stage {
        observer: Worst::start(&cluster.plane.client()?, &workload.namespace, REPLICAS).await?,
        cluster,
        workload,
        narrator,
    };
    stage.show(&["get", "ptr"]).await?;
    stage
        .narrator
        .say("From here on an observer follows every change of every Pod, in order.");
    scenes::dry_run::play(&mut stage).await?;
    scenes::storm::play(&mut stage).await?;
    scenes::drain::play(&mut stage).await?;
    scenes::lifecycle::play(&mut stage).await?;
    scenes::traffic::play(&mut stage).await?;
    stage.narrator.end()
}

impl Stage<'_> {
    /// Runs `kubectl ARGS…` in the namespace of the demo and quotes its output.
    async fn show(&self, args: &[&str]) -> Result<()> {
        self.narrator.say(format!("$ kubectl {}", args.join(" ")));
        let namespace = ["--namespace", self.workload.namespace.as_str()];
        let args = namespace.iter().chain(args);
        let output = self.cluster.plane.kubectl(args).output().await?;
        self.narrator.quote(String::from_utf8_lossy(&output.stdout));
        self.narrator.quote(String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            bail!("kubectl ended with {}", output.status);
        }
        Ok(())
    }

    /// Checks that the observer never saw more unavailable Pods than the rule allows.
    async fn check_observer(&mut self) -> Result<()> {
        let most = self.observer.most_unavailable().await?;
        let expected = format!("never more than {LIMIT} of {REPLICAS} unavailable");
        let outcome = format!("{most} in the worst moment");
        self.narrator.check(&expected, outcome, most <= LIMIT);
        Ok(())
    }

    /// Waits until all Pods are available again.
    async fn recover(&mut self) -> Result<()> {
        let pods = self.workload.whole().await?.len();
        let expected = format!("all {REPLICAS} Pods available again");
        self.narrator.check(&expected, pods, pods == REPLICAS);
        Ok(())
    }
}
