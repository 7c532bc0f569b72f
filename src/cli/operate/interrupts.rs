//! The signals that end this process, or that it passes on to the command it runs.

use std::io::IsTerminal;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use crate::cli::output;

/// The streams of SIGINT, SIGTERM and SIGHUP.
pub struct Interrupts {
    interrupt: SignalStream,
    terminate: SignalStream,
    /// None under `nohup`: the process and the command go on when their terminal is closed.
    hangup: Option<SignalStream>,
}

impl Interrupts {
    /// From now on these signals do not end the process by themselves.
    pub fn catch() -> anyhow::Result<Interrupts> {
        let stream = |kind| signal(kind).context("cannot listen to signals");
        let hangup = (!is_hangup_ignored()).then(|| stream(SignalKind::hangup()));
        Ok(Interrupts {
            interrupt: stream(SignalKind::interrupt())?,
            terminate: stream(SignalKind::terminate())?,
            hangup: hangup.transpose()?,
        })
    }

    /// The next of these signals.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            true = received(&mut self.hangup) => Signal::HUP,
        }
    }
}

/// Waits for a signal of the stream. Returns false at once if there is no stream.
async fn received(stream: &mut Option<SignalStream>) -> bool {
    match stream {
        Some(stream) => stream.recv().await.is_some(),
        None => false,
    }
}

/// Whether the caller of this process has set SIGHUP to be ignored. Systems without `/proc` do not say so.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignores_hangup(&status)
}

/// Reads the mask `SigIgn` of `/proc/PID/status` (proc(5)). Its lowest bit is SIGHUP, whose number is 1.
fn ignores_hangup(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

/// Passes a signal on to a command. A terminal sends Ctrl-C to the command by itself.
pub fn pass_on(signal: Signal, child: &Child) {
    if signal == Signal::INT && std::io::stdin().is_terminal() {
        return;
    }
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    if let Some(pid) = pid.and_then(Pid::from_raw)
        && let Err(error) = kill_process(pid, signal)
    {
        output::write_stderr(&format!(
            "warning: cannot pass a signal on to the command: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mask_of_ignored_signals_is_read() {
        let status = |mask: &str| format!("Name:\toperating\nSigIgn:\t{mask}\nSigCgt:\t1\n");
        assert!(ignores_hangup(&status("0000000000001001")));
        assert!(!ignores_hangup(&status("0000000000001000")));
        assert!(!ignores_hangup(""));
    }
}
