//! One process of a Pod, as its starter sees it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::server::{ASKED, GRACE};
use crate::probe;
use crate::process::Process;

/// The test that a test program runs as the process of a Pod. Other programs ignore the arguments.
const TEST: &str = "pod_process";

/// Timeout of the first answer. It is long, because a loaded machine starts many processes at once.
const START: Duration = Duration::from_secs(60);

/// A process that serves under the name of a Pod. Dropping it kills it. The process also ends if its starter ends in any
/// other way.
#[derive(Debug)]
pub struct PodProcess {
    process: Process,
    pod: String,
    address: SocketAddr,
}

impl PodProcess {
    /// Starts this program as the process of a Pod, which listens after the time `warm_up`. Its output goes to
    /// `logs/POD.log`. The program must call [`serve_if_asked`](super::serve_if_asked) as the [module](super) says.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(pod: &str, address: SocketAddr, warm_up: Duration, logs: &Path) -> Result<Self> {
        let warm_up = warm_up.as_millis();
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command
            .args(["--exact", TEST, "--nocapture"])
            .env(ASKED, format!("{address} {warm_up} {pod}"));
        Ok(Self {
            process: Process::spawn(pod, command, logs)?,
            pod: pod.to_owned(),
            address,
        })
    }

    /// Waits until the process answers.
    ///
    /// # Errors
    /// If the process ends, or does not answer within a minute. The message has the end of its output.
    pub async fn answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + START;
        loop {
            // Another process may still listen on the address.
            let answer = probe::get(self.address, "/?delay=0").await;
            if answer == Some((200, self.pod.clone())) {
                return Ok(());
            }
            let problem = match self.process.exit_status() {
                Some(status) => format!("ended with {status}"),
                None if Instant::now() > deadline => format!("did not answer within {START:?}"),
                None => {
                    sleep(Duration::from_millis(20)).await;
                    continue;
                }
            };
            bail!(
                "the process of Pod {} on {} {problem}; the program must call testbed::containers::serve_if_asked() \
                 first in `main`, or a test program in a test `{TEST}` at its root. The end of its output:\n{}",
                self.pod,
                self.address,
                self.process.log_tail(10)
            );
        }
    }

    /// Its process ID.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends SIGTERM. The process ends after its requests in progress.
    ///
    /// # Errors
    /// If the process has ended.
    pub fn terminate(&self) -> Result<()> {
        self.process.signal(Signal::TERM)
    }

    /// Waits for the end of a process that got SIGTERM, at most a second longer than its requests may take.
    pub async fn ended(&mut self) {
        let deadline = Instant::now() + GRACE + Duration::from_secs(1);
        while self.process.exit_status().is_none() && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
    }
}
