//! One replica of the server, which can be killed at any time.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;
use crate::{ports, wait};

/// For a replica to list what it watches.
const READY: Duration = Duration::from_secs(180);
/// Lines of the log that an error shows.
const TAIL: usize = 20;

/// How a replica is started.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Its identity, and the name of its log.
    pub name: String,
    /// The plane's binary, whose `supervise` ends a replica with this process.
    pub supervisor: PathBuf,
    /// Credentials of the server's service account.
    pub kubeconfig: PathBuf,
    /// URL of the load balancer.
    pub url: String,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// `--request-timeout`.
    pub request_timeout: Duration,
}

/// A running replica. Dropping it kills it.
#[derive(Debug)]
pub struct Replica {
    process: Process,
    /// Where it serves the webhooks.
    pub listen: SocketAddr,
}

impl Replica {
    /// Starts a replica of a build and waits until it is ready.
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
            // As a kubelet does when the API server is away.
            let has_no_api = attempt < 10 && text.contains("client error (Connect)");
            if has_no_api {
                tokio::time::sleep(Duration::from_secs(1)).await;
            } else if !has_lost_its_port {
                return Err(error);
            }
        }
    }

    async fn try_start(setup: &Setup, build: &Path) -> Result<Self> {
        let [listen, metrics] = ports::free()?;
        let [listen, metrics] =
            [listen, metrics].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let mut args: Vec<OsString> = vec!["supervise".into(), build.into()];
        args.extend(["serve".into(), "--leader-elect".into()]);
        let timeout = format!("{}s", setup.request_timeout.as_secs());
        for (flag, value) in [
            ("--identity", setup.name.clone()),
            ("--webhook-url", setup.url.clone()),
            ("--listen", listen.to_string()),
            ("--metrics-listen", metrics.to_string()),
            ("--request-timeout", timeout),
            ("--lame-duck", "3s".to_owned()),
        ] {
            args.extend([flag.into(), value.into()]);
        }
        args.extend(["--kubeconfig".into(), setup.kubeconfig.clone().into()]);
        let process = Process::start(&setup.name, &setup.supervisor, args, &setup.logs)?;
        let mut replica = Self { process, listen };
        let deadline = tokio::time::Instant::now() + READY;
        while !is_ready(metrics).await {
            replica.check()?;
            if tokio::time::Instant::now() > deadline {
                let tail = replica.process.log_tail(TAIL);
                bail!("{} is not ready after {READY:?}:\n{tail}", setup.name);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(replica)
    }

    /// Fails when the replica has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.process.exit_status() {
            let (name, tail) = (self.process.name(), self.process.log_tail(TAIL));
            bail!("{name} ended with {status}; the end of its log:\n{tail}");
        }
        Ok(())
    }
}

async fn is_ready(metrics: SocketAddr) -> bool {
    let ask = async {
        let mut stream = TcpStream::connect(metrics).await.ok()?;
        let request = "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        Some(answer.starts_with("HTTP/1.1 200"))
    };
    let answer = tokio::time::timeout(wait::LOOK, ask).await;
    answer.ok().flatten().unwrap_or_default()
}
