//! Planes that stay up after the command that started them: `plane up`, `down`, `status`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use testbed::binaries::{self, Kubernetes};
use testbed::plane::{Options, Plane, directory};
use testbed::wait;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

/// Timeout for a plane to start, when its binaries exist.
const UP: Duration = Duration::from_secs(300);
/// Timeout for a plane to end in order; after it, the plane is killed.
const DOWN: Duration = Duration::from_secs(20);

/// State of a running plane, stored in `state.json` of its directory.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// Process that holds the plane.
    pub pid: u32,
    /// Administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// URL of the API server.
    pub url: String,
    /// Number of nodes.
    pub nodes: usize,
}

impl State {
    fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("state.json");
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("parsing {}", path.display()))
    }
}

/// Starts a plane in its own process and waits until it is up.
///
/// # Errors
/// If a plane of this name is already up, or the start fails; with the end of its output.
pub async fn up(name: &str, nodes: usize, kubernetes: Kubernetes) -> Result<State> {
    let dir = directory::resolve_plane_directory(name)?;
    if directory::alive()?.iter().any(|alive| alive == name) {
        bail!("the plane {name} is up already (cargo xtask plane status); take it down first");
    }
    // In the foreground, so that the user sees the progress.
    tokio::task::spawn_blocking(move || {
        binaries::controlplane(kubernetes)?;
        binaries::kwok()
    })
    .await??;
    let log = directory::root()?.join(format!("{name}.log"));
    let output = File::create(&log)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["plane", "run", "--name", name])
        .args(["--nodes", &nodes.to_string()])
        .args(["--kubernetes", kubernetes.minor()])
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        // Its own process group, so that a Ctrl-C in this terminal does not end it.
        .process_group(0)
        .spawn()
        .context("starting the plane's process")?;
    let deadline = Instant::now() + UP;
    loop {
        if let Ok(state) = State::read(&dir)
            && state.pid == child.id()
        {
            return Ok(state);
        }
        if let Some(status) = child.try_wait()? {
            let text = fs::read_to_string(&log).unwrap_or_default();
            bail!("the plane ended with {status}:\n{}", text.trim());
        }
        if Instant::now() > deadline {
            child.kill()?;
            bail!("the plane was not up within {UP:?}, see {}", log.display());
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Runs a plane until SIGTERM or SIGINT: the process behind `plane up`.
///
/// # Errors
/// As [`Plane::start`].
pub async fn run(name: &str, nodes: usize, kubernetes: Kubernetes) -> Result<()> {
    let (mut term, mut int) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    // The process ignores that its terminal is closed.
    let _hangup = signal(SignalKind::hangup())?;
    let starting = Plane::start(Options {
        kubernetes: Some(kubernetes),
        nodes,
        name: Some(name.to_owned()),
        ..Options::default()
    });
    let plane = tokio::select! {
        plane = starting => plane?,
        _ = term.recv() => return Ok(()),
        _ = int.recv() => return Ok(()),
    };
    let state = State {
        pid: std::process::id(),
        kubeconfig: plane.kubeconfig().to_owned(),
        url: plane.apiserver_url(),
        nodes,
    };
    let dir = directory::resolve_plane_directory(name)?;
    // Renamed into place, so that no reader sees an incomplete file.
    let fresh = dir.join("state.json.new");
    fs::write(&fresh, serde_json::to_vec_pretty(&state)?)?;
    fs::rename(&fresh, dir.join("state.json"))?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    plane.stop().await;
    Ok(())
}

/// Ends a plane that [`up`] started, and waits until it is gone. Returns whether the plane existed.
///
/// # Errors
/// When its process cannot be ended.
pub async fn down(name: &str) -> Result<bool> {
    let dir = directory::resolve_plane_directory(name)?;
    if !directory::alive()?.iter().any(|alive| alive == name) {
        return Ok(false);
    }
    // A running process holds the lock of the directory, so its process id is still valid.
    let pid = State::read(&dir)
        .context("the plane is still starting, or it is a test's: try again when it is up")?
        .pid;
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.context("a process id in state.json")?;
    kill_process(pid, Signal::TERM).context("ending the plane's process")?;
    let description = format!("the plane {name} to end");
    let is_gone = || async { Ok(!directory::alive()?.iter().any(|alive| alive == name)) };
    if wait::within(&description, DOWN, is_gone).await.is_err() {
        // The components end with the process that holds their pipes.
        kill_process(pid, Signal::KILL).context("killing the plane's process")?;
        wait::within(&description, DOWN, is_gone).await?;
    }
    let _ = fs::remove_file(directory::root()?.join(format!("{name}.log")));
    Ok(true)
}

/// All planes of this user that are up, with their state; `None` for those of running tests
/// and those that are still starting.
///
/// # Errors
/// When the cache directory cannot be read.
pub fn status() -> Result<Vec<(String, Option<State>)>> {
    let root = directory::root()?;
    let with_state = |name: String| {
        let state = State::read(&root.join(&name)).ok();
        (name, state)
    };
    Ok(directory::alive()?.into_iter().map(with_state).collect())
}
