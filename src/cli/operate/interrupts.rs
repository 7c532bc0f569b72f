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
    hangup: SignalStream,
}

impl Interrupts {
    /// From now on these signals do not end the process by themselves.
    pub fn catch() -> anyhow::Result<Interrupts> {
        let stream = |kind| signal(kind).context("cannot listen to signals");
        Ok(Interrupts {
            interrupt: stream(SignalKind::interrupt())?,
            terminate: stream(SignalKind::terminate())?,
            hangup: stream(SignalKind::hangup())?,
        })
    }

    /// The next of these signals.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.hangup.recv() => Signal::HUP,
        }
    }
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
