//! `cargo xtask bench`: measures the cost of the server, in counts and ratios, on its own control plane.
//!
//! No absolute time is checked: latencies are compared with a no-op of the same server in the same run, and
//! requests are counted in the audit log of the API server.

mod admission;
mod claims;
mod collaset;
mod crowd;
mod decorations;
mod floor;
mod herd;
mod idle;
mod plan;
mod report;
mod requests;
mod reviews;
mod roundtrip;
mod rules;
mod scale;
mod size;
mod traffic;
mod workload;

use std::path::PathBuf;

use anyhow::Result;
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

use crate::build::build;
use herd::Herd;
use report::Report;
use testbed::http_double::HttpDouble;
use testbed::plane::{Options, Plane};
use testbed::server::{Endpoints, Server};
use workload::Workload;

/// Flags of `bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Measure up to 1,000 Pods instead of 10,000, and 15 idle seconds instead of a minute
    #[arg(long)]
    quick: bool,
    /// Only the figures of CollaSets
    #[arg(long)]
    collasets: bool,
    /// Only the cost of plans of CollaSets, without a control plane
    #[arg(long, conflicts_with_all = ["collasets", "rules", "scale", "quick", "bin"])]
    plan: bool,
    /// Only the lines of Rust code without tests, for each folder of src
    #[arg(long, conflicts_with_all = ["plan", "collasets", "rules", "scale", "quick", "bin"])]
    size: bool,
    /// Only the figures of webhook rules
    #[arg(long, conflicts_with = "collasets")]
    rules: bool,
    /// Only the figures of PodDecorations
    #[arg(long, conflicts_with_all = ["plan", "size", "collasets", "rules", "scale"])]
    decorations: bool,
    /// Only the figures of ResourceConsist, which are in no other run: rollouts of 100 Pods, and 1,000 Services at rest,
    /// or 100 with `--quick`
    #[arg(long, conflicts_with_all = ["plan", "size", "collasets", "rules", "decorations", "scale"])]
    traffic: bool,
    /// Only a replica with this number of managed Pods, three times as many other Pods, and old ReplicaSets;
    /// prints which bars hold. The bars are for 10,000
    #[arg(long, value_name = "PODS", conflicts_with_all = ["collasets", "rules", "quick"])]
    scale: Option<usize>,
    /// Use this binary of the server instead of building an optimised one; the cost of plans is left out
    #[arg(long, value_name = "PATH")]
    bin: Option<PathBuf>,
}

/// The state that all figures share.
struct Bench {
    plane: Plane,
    client: Client,
    server: Server,
    report: Report,
    quick: bool,
    collasets: bool,
    rules: bool,
    decorations: bool,
    traffic: Option<HttpDouble>,
    scale: Option<usize>,
}

/// Measures all figures and prints the table; a Ctrl-C ends it early.
///
/// # Errors
/// If a figure could not be measured.
pub async fn run(args: Args) -> Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    tokio::select! {
        result = measure(&args) => result,
        _ = term.recv() => Err(anyhow::anyhow!("ended by SIGTERM")),
        _ = int.recv() => Err(anyhow::anyhow!("interrupted")),
    }
}

async fn measure(args: &Args) -> Result<()> {
    let mut report = Report::default();
    let is_part = args.plan || args.rules || args.collasets || args.decorations || args.traffic;
    if args.size || !(is_part || args.scale.is_some()) {
        size::measure(&mut report)?;
    }
    if args.size {
        report.print();
        return Ok(());
    }
    // The control plane would disturb the measurement, so it is started later.
    let has_plans = !args.rules && !args.traffic && args.scale.is_none() && args.bin.is_none();
    if args.plan || has_plans && !args.decorations {
        plan::measure(&mut report).await?;
    }
    if args.plan || has_plans && !args.collasets {
        plan::measure_decorations(&mut report).await?;
    }
    if args.plan {
        report.print();
        return Ok(());
    }
    let binary = match &args.bin {
        Some(path) => path.canonicalize()?,
        None => {
            eprintln!("building the server with optimisations (the first time takes some minutes)");
            build(true).await?
        }
    };
    eprintln!("starting a control plane and the server");
    let options = Options::default();
    let nodes = match args.traffic {
        true => traffic::NODES,
        false => options.nodes,
    };
    let plane = Plane::start(Options {
        audit: args.scale.is_none(), // a log of hundreds of thousands of requests that nobody counts
        nodes,
        ..options
    })
    .await?;
    let client = plane.client()?;
    let (provider, flags) = match args.traffic {
        true => {
            let provider = HttpDouble::start().await?;
            let flags = traffic::flags(&plane, &provider)?;
            (Some(provider), flags)
        }
        false => (None, Vec::new()),
    };
    let mut server = Server::start(
        &binary,
        plane.controlplane_binary(),
        plane.kubeconfig(),
        &plane.logs(),
        Endpoints::loopback()?,
        &flags,
    )?;
    server.ready(&client).await?;
    let mut bench = Bench {
        plane,
        client,
        server,
        report,
        quick: args.quick,
        collasets: args.collasets,
        rules: args.rules,
        decorations: args.decorations,
        traffic: provider,
        scale: args.scale,
    };
    let result = bench.figures().await;
    bench.report.print();
    if result.is_err() && !bench.server.runs() {
        eprintln!("the server has ended:\n{}", bench.server.log_tail());
    }
    bench.server.stop().await;
    bench.plane.stop().await;
    result
}

impl Bench {
    async fn figures(&mut self) -> Result<()> {
        if let Some(pods) = self.scale {
            return crowd::measure(self, pods).await;
        }
        if let Some(provider) = self.traffic.take() {
            return traffic::measure(self, &provider).await;
        }
        if self.rules {
            return rules::measure(self).await;
        }
        if self.decorations {
            return decorations::measure(self).await;
        }
        if !self.collasets {
            self.guarantee().await?;
            rules::measure(self).await?;
        }
        collaset::measure(self, 100).await?;
        if !self.quick {
            collaset::measure(self, 1_000).await?;
        }
        if !self.collasets {
            decorations::measure(self).await?;
        }
        Ok(())
    }

    async fn guarantee(&mut self) -> Result<()> {
        let busy = Workload::create(&self.plane, "busy", 100).await?;
        claims::measure(self, &busy).await?;
        roundtrip::measure(self, &busy).await?;
        admission::measure(self, &busy).await?;
        busy.end().await?;

        let namespace = self.plane.namespace("herd").await?;
        let mut herd = Herd::new(self.client.clone(), &namespace);
        herd.rule().await?;
        for size in [100, 1_000, 10_000] {
            if self.quick && size > 1_000 {
                break;
            }
            eprintln!("{size} Pods");
            herd.grow(size).await?;
            scale::measure(self, &herd).await?;
            if size == 1_000 {
                idle::measure(self, &herd).await?;
            }
        }
        Ok(())
    }
}
