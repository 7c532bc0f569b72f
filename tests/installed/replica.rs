//! A replica of the server as a process that cannot outlive its test.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use testbed::ports;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::bed::{Bed, eventually};

/// Dropping it kills it.
pub struct Replica {
    child: Child,
    name: String,
    pub listen: SocketAddr,
    metrics: SocketAddr,
    log: PathBuf,
}

impl Replica {
    /// Starts `operating serve --leader-elect` with further flags; returns when it is ready.
    pub async fn start(bed: &Bed, name: &str, flags: &[&str]) -> Replica {
        let [listen, metrics]: [SocketAddr; 2] = ports::free()
            .unwrap()
            .map(|port| (Ipv4Addr::LOCALHOST, port).into());
        let log = bed.plane.logs().join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log);
        let output = output.unwrap();
        let child = Command::new(bed.plane.controlplane_binary())
            .args(["supervise", env!("CARGO_BIN_EXE_operating"), "serve"])
            .args(["--leader-elect", "--identity", name, "--lame-duck", "3s"])
            .args(["--listen", &listen.to_string()])
            .args(["--metrics-listen", &metrics.to_string()])
            .args(flags)
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        let mut replica = Replica {
            child,
            name: name.to_owned(),
            listen,
            metrics,
            log,
        };
        eventually("a replica is ready", async || {
            let ended = replica.child.try_wait().unwrap();
            assert_eq!(ended, None, "{}", replica.log());
            replica.is_ready().await
        })
        .await;
        replica
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it wrote, with those of this name before it.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub async fn is_ready(&self) -> bool {
        self.get("/readyz")
            .await
            .is_some_and(|(code, _)| code == 200)
    }

    /// Reviews answered so far.
    pub async fn reviews(&self) -> f64 {
        let (_, text) = self.get("/metrics").await.unwrap();
        let counts = text
            .lines()
            .filter(|line| line.starts_with("operating_reviews_total"))
            .map(|line| line.rsplit(' ').next().unwrap());
        counts.map(|count| count.parse::<f64>().unwrap()).sum()
    }

    /// SIGTERM, and `unready` as soon as it says that it is going; returns its exit code.
    pub async fn terminate(mut self, unready: impl FnOnce(SocketAddr)) -> Option<i32> {
        kill_process_group(self.group(), Signal::TERM).unwrap();
        eventually("it is not ready", async || !self.is_ready().await).await;
        unready(self.listen);
        eventually("it ends", async || self.child.try_wait().unwrap().is_some()).await;
        self.child.wait().unwrap().code()
    }

    async fn get(&self, path: &str) -> Option<(u16, String)> {
        let asking = async {
            let mut stream = TcpStream::connect(self.metrics).await.ok()?;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.ok()?;
            let (head, body) = answer.split_once("\r\n\r\n")?;
            Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
        };
        tokio::time::timeout(Duration::from_secs(10), asking)
            .await
            .ok()?
    }

    fn group(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }
}

impl Drop for Replica {
    /// SIGKILL, to the server and to what watches over it.
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let _ = kill_process_group(self.group(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}
