//! One replica of the server, which can be killed at any time and cannot outlive the process that started it.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::Signal;

use crate::balancer::LoadBalancer;
use crate::process::Process;
use crate::server::Metrics;
use crate::{ports, probe, usage, wait};

/// Timeout for the first lists of a replica.
const READY: Duration = Duration::from_secs(180);
/// Timeout for a replica to drain and end.
const ENDED: Duration = Duration::from_secs(180);
/// Number of lines of the log that an error shows.
const TAIL: usize = 20;

/// The settings of a replica.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Identity of the replica, and the name of its log.
    pub name: String,
    /// The plane's binary, whose `supervise` ends a replica with this process.
    pub supervisor: PathBuf,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// Flags of `serve` beyond those that [`Replica::start`] gives to every replica.
    pub flags: Vec<OsString>,
    /// Directory in which the tasks of the replica look for faults. A build with debug assertions is necessary.
    pub task_faults: Option<PathBuf>,
}

impl Setup {
    /// The log of the replica.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.logs.join(format!("{}.log", self.name))
    }
}

/// A running replica. Dropping it kills it.
#[derive(Debug)]
pub struct Replica {
    process: Process,
    setup: Setup,
    /// The address of the webhooks.
    pub listen: SocketAddr,
    metrics: SocketAddr,
}

impl Replica {
    /// Starts a replica of a build and waits until it is ready: it serves a certificate and has listed what it watches.
    ///
    /// # Errors
    /// When the replica ends or is not ready in time, with the end of its log.
    pub async fn start(setup: &Setup, build: &Path) -> Result<Self> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            let error = match Self::try_start(setup, build).await {
                Err(error) => error,
                started => return started,
            };
            let text = format!("{error:#}");
            // Another process may take a free port before the replica binds it.
            let has_lost_its_port = attempt < 3 && text.contains("in use");
            // As a kubelet does while the API server is down.
            let has_no_api = attempt < 10 && text.contains("client error (Connect)");
            if has_no_api {
                tokio::time::sleep(Duration::from_secs(1)).await;
            } else if !has_lost_its_port {
                return Err(error);
            }
        }
    }

    async fn try_start(setup: &Setup, build: &Path) -> Result<Self> {
        let [listen, metrics] =
            ports::free()?.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut command = Command::new(&setup.supervisor);
        command
            .arg("supervise")
            .arg(build)
            .args(["serve", "--leader-elect", "--lame-duck", "3s"])
            .args(["--identity", &setup.name])
            .args(["--listen", &listen.to_string()])
            .args(["--metrics-listen", &metrics.to_string()])
            .args(&setup.flags);
        if let Some(faults) = &setup.task_faults {
            // The directory has the faults of the former process.
            let _ = std::fs::remove_dir_all(faults);
            command.env("OPERATING_FAULTS", faults);
        }
        let mut replica = Self {
            process: Process::spawn(&setup.name, command, &setup.logs)?,
            setup: setup.clone(),
            listen,
            metrics,
        };
        let deadline = tokio::time::Instant::now() + READY;
        while !replica.is_ready().await {
            replica.check()?;
            if tokio::time::Instant::now() > deadline {
                let tail = replica.process.log_tail(TAIL);
                bail!("{} is not ready after {READY:?}:\n{tail}", setup.name);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(replica)
    }

    /// Identity of the replica.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.setup.name
    }

    /// The log of all replicas of this name.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.setup.log()).unwrap_or_default()
    }

    /// Fails if the replica has ended.
    ///
    /// # Errors
    /// The exit status and the end of the log.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.process.exit_status() {
            let (name, tail) = (self.process.name(), self.process.log_tail(TAIL));
            bail!("{name} ended with {status}; the end of its log:\n{tail}");
        }
        Ok(())
    }

    /// Whether the replica reports that it is ready.
    pub async fn is_ready(&self) -> bool {
        probe::is_ready(self.metrics).await
    }

    /// Status and body of a request to the plain-HTTP port; `None` when the replica does not answer.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        probe::get(self.metrics, path).await
    }

    /// The metrics of the replica; `None` when it does not answer.
    pub async fn metrics(&self) -> Option<Metrics> {
        let (_, text) = self.get("/metrics").await?;
        Some(Metrics::parse(&text))
    }

    /// Maximum resident memory of the server so far, in MiB.
    ///
    /// # Errors
    /// When the replica does not run, or the system has no `/proc`.
    pub fn peak_mib(&self) -> Result<u64> {
        Ok(usage::peak_kib(self.process.child()?)? / 1024)
    }

    /// Process id of the server itself.
    ///
    /// # Errors
    /// When the replica does not run, or the system has no `/proc`.
    pub fn pid(&self) -> Result<u32> {
        self.process.child()
    }

    /// Sends a signal to the server and its supervisor.
    ///
    /// # Errors
    /// When the replica does not run.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Waits until the replica ends; its exit code.
    ///
    /// # Errors
    /// When the replica does not end in time.
    pub async fn ended(mut self) -> Result<Option<i32>> {
        let description = format!("{} to end", self.name());
        let mut status = None;
        wait::within(&description, ENDED, || {
            status = self.process.exit_status();
            std::future::ready(Ok(status.is_some()))
        })
        .await?;
        Ok(status.and_then(|status| status.code()))
    }

    /// Sends SIGTERM and waits until the server has drained and ended; its exit code.
    ///
    /// # Errors
    /// When the replica does not end in time.
    pub async fn terminate(self) -> Result<Option<i32>> {
        self.signal(Signal::TERM)?;
        self.ended().await
    }

    /// As [`Replica::terminate`]. Takes the replica out of the balancer as soon as the replica says that it is not
    /// ready, as the endpoints of a Service follow readiness.
    ///
    /// # Errors
    /// As [`Replica::terminate`].
    pub async fn leave(self, balancer: &LoadBalancer) -> Result<Option<i32>> {
        self.signal(Signal::TERM)?;
        let description = format!("{} not to be ready", self.name());
        wait::within(&description, ENDED, || async { Ok(!self.is_ready().await) }).await?;
        balancer.remove(self.listen);
        self.ended().await
    }
}
