//! `--keep`: a plane and a server that stay up after the demo.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use testbed::plane::{Plane, directory};
use testbed::server::{Endpoints, Server};
use testbed::wait;
use tokio::signal::unix::{SignalKind, signal};

/// Name of the plane.
pub const PLANE: &str = "demo";
/// Timeout from the start until rules are enforced.
const READY: Duration = Duration::from_secs(120);

/// Flags of the process that holds the server.
#[derive(Debug, clap::Args)]
pub struct HoldArgs {
    #[arg(long)]
    bin: PathBuf,
    #[arg(long)]
    listen: String,
    #[arg(long)]
    url: String,
    #[arg(long)]
    metrics: String,
    /// Further flags of the server, after `--`
    #[arg(last = true)]
    flags: Vec<OsString>,
}

/// The directory of the logs of the plane.
pub fn logs() -> Result<PathBuf> {
    Ok(directory::resolve_plane_directory(PLANE)?.join("logs"))
}

/// Fails if an earlier demo is still up.
pub fn check_free() -> Result<()> {
    if is_up()? {
        bail!(
            "a demo is up already: look at it with KUBECONFIG={}, or take it down first: cargo \
             xtask plane down --name {PLANE}",
            directory::resolve_plane_directory(PLANE)?
                .join("kubeconfig")
                .display()
        );
    }
    Ok(())
}

fn is_up() -> Result<bool> {
    Ok(directory::alive()?.iter().any(|name| name == PLANE))
}

/// Starts a server on the plane that ends with it, and waits until it enforces. `flags` are further flags of the server.
pub async fn serve(
    plane: &Plane,
    binary: &Path,
    endpoints: Endpoints,
    flags: &[OsString],
) -> Result<()> {
    let log = logs()?.join("demo.log");
    let output = File::create(&log)?;
    Command::new(std::env::current_exe()?)
        .arg("hold-server")
        .args(["--listen", &endpoints.listen, "--url", &endpoints.url])
        .args(["--metrics", &endpoints.metrics, "--bin"])
        .arg(binary)
        .arg("--")
        .args(flags)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Its own process group, so that a Ctrl-C in this terminal does not end it.
        .process_group(0)
        .spawn()
        .context("starting the process that holds the server")?;
    let client = plane.client()?;
    wait::within("the server to be ready", READY, || endpoints.ready(&client))
        .await
        .with_context(|| format!("see {}", log.display()))
}

/// Runs the server while the plane is up: the process behind [`serve`].
///
/// # Errors
/// When the server cannot be started, or ends by itself.
pub async fn hold(args: HoldArgs) -> Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let _hangup = signal(SignalKind::hangup())?;
    let endpoints = Endpoints {
        listen: args.listen,
        url: args.url,
        metrics: args.metrics,
    };
    let kubeconfig = directory::resolve_plane_directory(PLANE)?.join("kubeconfig");
    let plane = Plane::attach(&kubeconfig).await?;
    let controlplane = plane.controlplane_binary();
    let mut server = Server::start(
        &args.bin,
        controlplane,
        &kubeconfig,
        &logs()?,
        endpoints,
        &args.flags,
    )?;
    let mut interval = tokio::time::interval(Duration::from_millis(500));
    while server.runs() && is_up()? {
        tokio::select! {
            _ = interval.tick() => {}
            _ = term.recv() => break,
            _ = int.recv() => break,
        }
    }
    server.stop().await;
    Ok(())
}

/// Prints how to use the plane and the server, and how to remove them.
pub fn explain(plane: &Plane, namespace: &str) {
    let bin = plane.kubeconfig().with_file_name("bin");
    println!("\nAll of it stays up, except for the proxy and its Pods. To look around:");
    println!("  export KUBECONFIG={}", plane.kubeconfig().display());
    println!("  export PATH={}:$PATH", bin.display());
    println!("  kubectl -n {namespace} get pods,ptr");
    println!("To take it down: cargo xtask plane down --name {PLANE}");
}
