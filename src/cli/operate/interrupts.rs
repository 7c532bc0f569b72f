//! The signals that end this process, or that it passes on to the command it runs.

use std::io::IsTerminal;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

use crate::cli::output;

/// The streams of SIGINT, SIGTERM and SIGHUP. A signal that the caller of this process has set to be ignored stays
/// ignored, here and in the command: `nohup` ignores SIGHUP, and a shell ignores SIGINT for a job in its background.
pub struct Interrupts {
    interrupt: Option<SignalStream>,
    terminate: Option<SignalStream>,
    hangup: Option<SignalStream>,
}

impl Interrupts {
    /// From now on these signals do not end the process by themselves.
    pub fn catch() -> anyhow::Result<Interrupts> {
        // Systems without `/proc` do not say which signals are ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let stream = |kind: SignalKind| match is_ignored(&status, kind.as_raw_value()) {
            true => Ok(None),
            false => signal(kind).map(Some).context("cannot listen to signals"),
        };
        Ok(Interrupts {
            interrupt: stream(SignalKind::interrupt())?,
            terminate: stream(SignalKind::terminate())?,
            hangup: stream(SignalKind::hangup())?,
        })
    }

    /// The next of these signals.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            () = received(&mut self.interrupt) => Signal::INT,
            () = received(&mut self.terminate) => Signal::TERM,
            () = received(&mut self.hangup) => Signal::HUP,
        }
    }
}

/// Waits for a signal of the stream; for ever if there is no stream.
async fn received(stream: &mut Option<SignalStream>) {
    match stream {
        Some(stream) => drop(stream.recv().await),
        None => std::future::pending().await,
    }
}

/// Reads the mask `SigIgn` of `/proc/PID/status` (proc(5)). Its lowest bit is the signal with the number 1.
fn is_ignored(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
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
        let (hangup, interrupt) = (1, 2);
        assert!(is_ignored(&status("0000000000001001"), hangup));
        assert!(!is_ignored(&status("0000000000001001"), interrupt));
        assert!(is_ignored(&status("0000000000001002"), interrupt));
        assert!(!is_ignored("", hangup));
    }
}
