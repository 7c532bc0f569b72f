//! One replica of the server as a process that can be killed at any time and cannot outlive its test.

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

use super::wait;

/// Flags of the server, and of whatever installs it.
pub type Flags = &'static [&'static str];

/// What all replicas of a bed have in common.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The test bed's binary, whose `supervise` ends a replica with the test process.
    pub supervisor: PathBuf,
    pub kubeconfig: PathBuf,
    pub url: String,
    pub logs: PathBuf,
    /// Further flags of `serve`.
    pub flags: Flags,
    /// Flags by which a replica tells the API server from other callers.
    pub callers: Vec<String>,
    /// The API server's `--request-timeout`.
    pub request_timeout: Duration,
}

/// A running replica. Dropping it kills it.
pub struct Replica {
    child: Child,
    pub listen: SocketAddr,
    metrics: SocketAddr,
}

impl Replica {
    /// Starts one that serves a certificate and has listed what it watches when this returns.
    pub async fn start(setup: &Setup, name: &str) -> Replica {
        // Between finding a free port and binding it another process may take it.
        for _ in 0..3 {
            let mut replica = Replica::spawn(setup, name);
            wait::until(&format!("{name} to be ready"), async || {
                replica.has_ended()
                    || replica
                        .get("/readyz")
                        .await
                        .is_some_and(|(code, _)| code == 200)
            })
            .await;
            if !replica.has_ended() {
                return replica;
            }
        }
        let log = setup.logs.join(format!("{name}.log"));
        panic!(
            "{name} does not start: {}",
            std::fs::read_to_string(log).unwrap()
        );
    }

    fn spawn(setup: &Setup, name: &str) -> Replica {
        let [listen, metrics]: [SocketAddr; 2] = ports::free()
            .unwrap()
            .map(|port| (Ipv4Addr::LOCALHOST, port).into());
        let log = setup.logs.join(format!("{name}.log"));
        let faults = faults(setup, name);
        let _ = std::fs::remove_dir_all(&faults);
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap();
        let child = Command::new(&setup.supervisor)
            .args([
                "supervise",
                env!("CARGO_BIN_EXE_operating"),
                "serve",
                "--leader-elect",
            ])
            .args(["--lame-duck", "3s", "--identity", name])
            .arg("--kubeconfig")
            .arg(&setup.kubeconfig)
            .args(["--webhook-url", &setup.url])
            .args(["--listen", &listen.to_string()])
            .args(["--metrics-listen", &metrics.to_string()])
            .args([
                "--request-timeout",
                &format!("{}s", setup.request_timeout.as_secs()),
            ])
            // Endpoints of the tests listen here. Other loopback addresses stay refused.
            .args(["--endpoint-allow-cidrs", "127.0.0.1,::1"])
            .args(setup.flags)
            .args(&setup.callers)
            .env_remove("KUBECONFIG")
            // Nothing to a server without the cargo feature of this name.
            .env("OPERATING_FAULTS", faults)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        Replica {
            child,
            listen,
            metrics,
        }
    }

    /// Status and body of a request to the plain-HTTP port; `None` when nobody answers.
    pub async fn get(&self, path: &str) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(self.metrics).await.ok()?;
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        let read = tokio::time::timeout(Duration::from_secs(5), stream.read_to_string(&mut answer));
        read.await.ok()?.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }

    /// Value of a metric without labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = self.get("/metrics").await?;
        let line = text.lines().find(|l| l.split(' ').next() == Some(name))?;
        line.split(' ').nth(1)?.parse().ok()
    }

    /// The most memory that the server has had resident so far, in MiB.
    #[allow(dead_code)] // as in the bed
    pub fn peak_mib(&self) -> u64 {
        let tasks = format!("/proc/{}/task", self.child.id());
        let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
        let tasks = std::fs::read_dir(tasks).unwrap();
        let children: String = tasks.map(|task| of(task.unwrap()).unwrap()).collect();
        let server = children.trim().parse().unwrap(); // the only child of the supervisor
        testbed::usage::peak_kib(server).unwrap() / 1024
    }

    /// SIGKILL to the server and its supervisor.
    pub fn kill(&mut self) {
        if !self.has_ended() {
            let _ = kill_process_group(self.group(), Signal::KILL);
            let _ = self.child.wait();
        }
    }

    /// SIGTERM; returns when the server has drained and ended, with its exit code.
    pub async fn terminate(mut self) -> Option<i32> {
        kill_process_group(self.group(), Signal::TERM).unwrap();
        wait::until("a replica to end", async || self.has_ended()).await;
        self.child.wait().unwrap().code()
    }

    /// How it ended, if it has.
    #[allow(dead_code)] // as in the bed
    pub fn exit_code(&mut self) -> Option<i32> {
        self.child.try_wait().unwrap()?.code()
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    #[allow(dead_code)] // as in the bed
    /// A signal to the server and its supervisor.
    pub fn signal(&self, signal: Signal) {
        kill_process_group(self.group(), signal).unwrap();
    }

    #[allow(dead_code)] // as in the bed
    /// Process id of the server itself.
    pub fn server(&self) -> Pid {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let children = threads.map(|thread| {
            let children = thread.unwrap().path().join("children");
            std::fs::read_to_string(children).unwrap_or_default()
        });
        let children: String = children.collect();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    fn group(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap()
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where the tasks of a replica look for faults.
pub fn faults(setup: &Setup, name: &str) -> PathBuf {
    setup.logs.join(format!("{name}.faults"))
}
