//! Caddy as a child process, for the tests of adapters of load balancers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use crate::process::Process;
use crate::{binaries, ports};

/// How long Caddy may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often Caddy is started on other ports.
const TRIES: usize = 5;

/// What Caddy says if another process has one of its ports.
const TAKEN: &str = "address already in use";

/// The first file descriptor of a listener that Caddy gets, see `plane/caddy/main.go`.
const FIRST_DESCRIPTOR: usize = 10;

/// A running Caddy, which begins with an empty configuration. Dropping it kills it.
#[derive(Debug)]
pub struct Caddy {
    process: Process,
    binary: PathBuf,
    /// Port of the admin API.
    port: u16,
    fronts: Vec<u16>,
    dir: TempDir,
}

impl Caddy {
    /// Starts Caddy with `N` ports that its configuration can serve, and waits until its admin API listens on a loopback
    /// port. Builds Caddy if it is missing.
    ///
    /// # Errors
    /// If Caddy can't be built or started.
    pub async fn start<const N: usize>() -> Result<Caddy> {
        Caddy::start_on(|| {
            let [port] = ports::free()?;
            Ok((port, ports::free::<N>()?.to_vec()))
        })
        .await
    }

    /// Starts Caddy on free ports, the one of its admin API first. If another process takes one of them first, it is
    /// started again on others.
    async fn start_on(mut ports: impl FnMut() -> Result<(u16, Vec<u16>)>) -> Result<Caddy> {
        let binary = tokio::task::spawn_blocking(binaries::caddy).await??;
        let mut tries = 0;
        loop {
            tries += 1;
            let (port, fronts) = ports()?;
            match Caddy::try_start(binary.clone(), port, fronts).await {
                Err(error) if tries < TRIES && error.to_string().contains(TAKEN) => {}
                result => return result,
            }
        }
    }

    async fn try_start(binary: PathBuf, port: u16, fronts: Vec<u16>) -> Result<Caddy> {
        let dir = tempfile::tempdir()?;
        let process = spawn(&binary, port, &fronts, dir.path())?;
        let mut caddy = Caddy {
            process,
            binary,
            port,
            fronts,
            dir,
        };
        caddy.listens().await?;
        Ok(caddy)
    }

    /// URL of the admin API.
    pub fn admin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The ports that the configuration can serve: the number of each on 127.0.0.1, and the address that stands for it in
    /// the configuration. A change of the configuration loses no connection to these ports.
    pub fn fronts(&self) -> impl Iterator<Item = (u16, String)> {
        let numbered = self.fronts.iter().zip(FIRST_DESCRIPTOR..);
        numbered.map(|(port, descriptor)| (*port, format!("fd/{descriptor}")))
    }

    /// Kills Caddy, and starts it again with an empty configuration on the same port.
    ///
    /// # Errors
    /// As [`Caddy::start`].
    pub async fn restart_empty(&mut self) -> Result<()> {
        self.stop();
        self.process = spawn(&self.binary, self.port, &self.fronts, self.dir.path())?;
        self.listens().await
    }

    /// Kills Caddy. [`Caddy::restart_empty`] starts it again.
    pub fn stop(&mut self) {
        if self.process.signal(rustix::process::Signal::KILL).is_ok() {
            while self.process.exit_status().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// The last lines of its output.
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }

    async fn listens(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(("127.0.0.1", self.port)).await.is_err() {
            if self.process.exit_status().is_some() || Instant::now() > deadline {
                bail!("Caddy does not listen: {}", self.process.log_tail(20));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

fn spawn(binary: &Path, port: u16, fronts: &[u16], dir: &Path) -> Result<Process> {
    let fronts: Vec<_> = fronts
        .iter()
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let mut command = Command::new(binary);
    // Caddy saves its configuration and its certificates below these directories.
    command
        .arg("run")
        .env("CADDY_ADMIN", format!("127.0.0.1:{port}"))
        .env("OPERATING_LISTEN", fronts.join(","))
        .env("HOME", dir)
        .env("XDG_CONFIG_HOME", dir)
        .env("XDG_DATA_HOME", dir);
    Process::spawn("caddy", command, dir).context("starting Caddy")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn taken_port_is_replaced_by_another() {
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap().port();
        let mut tries = 0;
        let caddy = Caddy::start_on(|| {
            tries += 1;
            let [port, front] = ports::free()?;
            Ok((port, vec![if tries == 1 { taken } else { front }]))
        });
        let caddy = caddy.await.unwrap();
        assert_eq!(tries, 2);
        assert_ne!(caddy.fronts().next().unwrap().0, taken);
    }

    #[tokio::test]
    async fn restarted_caddy_listens_on_the_same_port() {
        let mut caddy = Caddy::start::<1>().await.unwrap();
        let (front, _) = caddy.fronts().next().unwrap();
        TcpStream::connect(("127.0.0.1", front)).await.unwrap();
        let first = caddy.admin();
        caddy.stop();
        assert!(TcpStream::connect(("127.0.0.1", caddy.port)).await.is_err());
        caddy.restart_empty().await.unwrap();
        assert_eq!(caddy.admin(), first);
        TcpStream::connect(("127.0.0.1", front)).await.unwrap();
    }
}
