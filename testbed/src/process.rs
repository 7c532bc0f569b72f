//! One component as a child process that cannot outlive its starter.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::time::{Instant, sleep};

use crate::wait;

/// Makes a component end with its standard input.
const WATCH_STDIN: (&str, &str) = ("OPERATING_PLANE_STDIN", "watch");

/// Lets the heap of a component, a Go program, grow to five times its live objects before it is collected. The API
/// server then uses a fifth less processor time for its start, and 150 MB more memory.
const COLLECT_LESS_OFTEN: (&str, &str) = ("GOGC", "400");

/// A running component. It has its own process group, so that a Ctrl-C in the terminal does not end it before
/// the plane does. Its standard input is a pipe of this process, so that it ends even if this process is
/// killed. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with its output appended to `logs/NAME.log`.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn start(
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>,
        logs: &Path,
    ) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(args);
        Self::spawn(name, command, logs)
    }

    /// As [`Process::start`], with a prepared command.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub fn spawn(name: &str, mut command: Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = command
            .env(WATCH_STDIN.0, WATCH_STDIN.1)
            .env(COLLECT_LESS_OFTEN.0, COLLECT_LESS_OFTEN.1)
            .env_remove("KUBECONFIG")
            .current_dir(logs)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {name} ({})", command.get_program().display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Name of the component, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id, which is also the id of its process group.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Process id of the only child, which is the supervised process.
    ///
    /// # Errors
    /// When there is no child, or the system has no `/proc`.
    pub fn child(&self) -> Result<u32> {
        let tasks = format!("/proc/{}/task", self.id());
        for task in std::fs::read_dir(&tasks).with_context(|| format!("reading {tasks}"))? {
            let children = std::fs::read_to_string(task?.path().join("children"));
            if let Some(pid) = children.unwrap_or_default().split_whitespace().next() {
                return pid.parse().context("a process id");
            }
        }
        bail!("{} supervises no process", self.name);
    }

    /// Sends a signal to the component and its children.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process_group(self.pid()?, signal)
            .with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Freezes the component, and waits until its last thread is stopped.
    pub async fn freeze(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        // NOWAIT does not consume the event, so the component can be frozen twice.
        let event = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let description = format!("{} to freeze", self.name);
        wait::within(&description, Duration::from_secs(10), || async {
            Ok(waitid(WaitId::Pid(self.pid()?), event)?.is_some())
        })
        .await
    }

    fn pid(&self) -> Result<Pid> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.context("a process id")
    }

    /// Its exit status, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends SIGTERM, and kills the component after `grace`.
    pub async fn stop(mut self, grace: Duration) {
        let is_signalled = self.signal(Signal::TERM).is_ok();
        let deadline = Instant::now() + grace;
        while is_signalled && Instant::now() < deadline {
            if self.exit_status().is_some() {
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
        // Dropping kills the remaining processes.
    }

    /// The last `lines` lines of its output.
    pub fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines).unwrap_or_else(|error| format!("(no log: {error})"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // After the wait for a child its process group is gone, and another process may have its number.
        if self.exit_status().is_none() && self.signal(Signal::KILL).is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// The last `lines` lines of a file, of which at most the last 64 KiB are read.
fn tail(path: &Path, lines: usize) -> Result<String> {
    const WINDOW: u64 = 64 * 1024;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(WINDOW)))?;
    let mut bytes = Vec::new();
    file.take(WINDOW).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<_> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str, logs: &Path) -> Process {
        Process::start("shell", Path::new("/bin/sh"), ["-c", script], logs).unwrap()
    }

    #[tokio::test]
    async fn output_is_logged_and_tail_returns_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut process = shell("echo one; echo two >&2; exit 7", dir.path());
        let status = loop {
            if let Some(status) = process.exit_status() {
                break status;
            }
            sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(status.code(), Some(7));
        assert_eq!(process.log_tail(1), "two");
        assert_eq!(process.log_tail(9), "one\ntwo");
    }

    #[tokio::test]
    async fn dropping_kills_a_process_that_ignores_signals_and_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let process = shell(
            "trap '' TERM HUP; sleep 600 & echo $!; echo ready; wait",
            dir.path(),
        );
        while !process.log_tail(1).contains("ready") {
            sleep(Duration::from_millis(5)).await;
        }
        let child: i32 = process.log_tail(2).lines().next().unwrap().parse().unwrap();
        let parent = i32::try_from(process.id()).unwrap();
        process.stop(Duration::from_millis(50)).await;
        for pid in [parent, child] {
            while !gone(pid) {
                sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// Whether a process has ended; a zombie counts as ended.
    fn gone(pid: i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |text| text.contains(") Z "))
    }
}
