//! `lifecycle run`: a command within an operation.
//!
//! Every step can be taken up again by the same command line with the same `--id`, because all state is on the Pod.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::begun::{Begun, Fate};
use super::interrupts::{self, Interrupts};
use super::pod::OperatedPod;
use super::stored::{self, Progress};
use super::waits::{self, WaitEnd};
use super::withdrawal::withdraw;
use super::{BeginRequest, STAYS_OFFLINE, begin, deadline, now_nanos, program};
use crate::api::keys::Family;
use crate::cli::args::steer::{RunArgs, pod_name};
use crate::cli::connect;
use crate::cli::output::write_stderr;
use crate::domain::lifecycle::operator;
use crate::domain::pod::Pod;

/// Longest part of the type in an ID that is made here. The separator and the number have nine characters, and the
/// longest ID 63.
const MAX_TYPE_IN_ID: usize = 54;
/// Exit code of a command that a signal has ended: this, and the number of the signal.
const SIGNAL_CODE: i32 = 128;
/// Exit code if the command has not run, and may later: `EX_TEMPFAIL` of sysexits.h.
const TRY_LATER: i32 = 75;

/// A run of a command within an operation.
struct Run {
    target: OperatedPod,
    id: String,
    args: RunArgs,
    /// The value of the label `operating`, if this run begins the operation.
    time: u64,
}

/// Runs the command within an operation, and returns its exit code.
pub async fn run_operation(args: RunArgs) -> anyhow::Result<ExitCode> {
    let name = pod_name(&args.object).map_err(anyhow::Error::msg)?;
    let id = args.id.clone().unwrap_or_else(|| new_id(&args.type_));
    stored::check_id(&id)?;
    let program = args.command.first().context("the command is missing")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    if let Err(code) = program::check(program, &path) {
        write_stderr(&format!(
            "error: cannot run {}: there is no such file that can be executed; the operation was not begun",
            program.display()
        ));
        return Ok(ExitCode::from(code));
    }
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    let run = Run {
        target: OperatedPod::new(client, namespace, name)?,
        id,
        time: now_nanos(),
        args,
    };
    let mut signals = Interrupts::catch()?;
    write_stderr(&format!(
        "operation {} ({}) on pod/{}",
        run.id, run.args.type_, run.target.name
    ));
    let pod = tokio::select! {
        pod = run.target.read_existing(None) => pod?,
        signal = signals.next() => return Ok(interrupted("no operation was begun", signal)),
    };
    if is_ending(&pod, &run.id, &run.args.type_)? {
        write_stderr(&format!(
            "operation {id} was finished before and is not over yet, so the command has not run: run the command line again \
             when pod/{pod} serves (operating lifecycle finish {object} waits for it), or with another --id",
            id = run.id,
            pod = run.target.name,
            object = run.object()
        ));
        return Ok(exit_code(TRY_LATER));
    }
    let started = tokio::select! {
        begun = run.start() => begun.map_err(GiveUp::Failed),
        signal = signals.next() => Err(GiveUp::Interrupted(signal)),
    };
    let begun = match started {
        Ok(begun) => begun,
        // The request may have been stored, although its answer is not known.
        Err(reason) => {
            let time = run.time.to_string();
            return run.give_up(Some(&time), reason, &mut signals).await;
        }
    };
    // A command of an earlier process may have run in this operation, so that somebody has to look.
    let may_have_run = pod.label(&Family::Operate.key(&run.id)).is_some();
    let withdrawable = (!may_have_run).then_some(begun.time.as_str());
    let allowed = tokio::select! {
        allowed = run.wait_for_permission() => allowed.map_err(GiveUp::Failed),
        signal = signals.next() => Err(GiveUp::Interrupted(signal)),
    };
    if let Err(reason) = allowed {
        return run.give_up(withdrawable, reason, &mut signals).await;
    }
    let mut child = match run.start_command() {
        Ok(child) => child,
        Err(error) => {
            let code = ExitCode::from(program::code_of(&error));
            let reason = GiveUp::Failed(error.into());
            let failed = run.give_up(withdrawable, reason, &mut signals).await;
            if let Err(error) = failed {
                write_stderr(&format!("error: cannot run the command: {error:#}"));
            }
            return Ok(code);
        }
    };
    let status = run.await_command(&mut child, &begun, &mut signals).await?;
    let finished = tokio::select! {
        finished = run.finish_after(status, &begun) => finished,
        signal = signals.next() => {
            let text = format!("the command has ended ({status}); {}", run.how_to_finish());
            return Ok(interrupted(&text, signal));
        }
    };
    if let Some(code) = finished.map_err(|error| run.with_advice(&error, &run.how_to_finish()))? {
        return Ok(exit_code(code));
    }
    tokio::select! {
        served = run.wait_until_serving() => served.map(|()| ExitCode::SUCCESS),
        signal = signals.next() => {
            let text = format!("operation {} is finished, and the Pod is on its way back", run.id);
            Ok(interrupted(&text, signal))
        }
    }
}

/// Whether an operation under the ID was finished and is not over.
///
/// # Errors
/// If that operation has another type.
fn is_ending(pod: &Pod, id: &str, type_: &str) -> anyhow::Result<bool> {
    if stored::progress(pod, id) != Progress::Ending {
        return Ok(false);
    }
    match stored::stored_type(pod, id).filter(|other| *other != type_) {
        Some(other) => anyhow::bail!(
            "operation {id} of the type {other} is not over on Pod {}: choose another --id",
            pod.metadata.name
        ),
        None => Ok(true),
    }
}

/// Why the command does not run.
enum GiveUp {
    Failed(anyhow::Error),
    Interrupted(Signal),
}

impl Run {
    /// The words that name the operation in another command.
    fn object(&self) -> String {
        let OperatedPod {
            namespace, name, ..
        } = &self.target;
        format!("pod/{name} -n {namespace} --id {}", self.id)
    }

    /// How to go on with an operation that stays.
    fn how_to_go_on(&self) -> String {
        format!(
            "the operation stays on the Pod: take it up again with --id {}, or cancel it with: operating lifecycle cancel {}",
            self.id,
            self.object()
        )
    }

    fn how_to_finish(&self) -> String {
        let object = self.object();
        format!(
            "if the operation {} is still on the Pod, finish it with: operating lifecycle finish {object}, or cancel it with: \
             operating lifecycle cancel {object}",
            self.id
        )
    }

    fn with_advice(&self, error: &anyhow::Error, advice: &str) -> anyhow::Error {
        anyhow::anyhow!("operation {}: {error:#}; {advice}", self.id)
    }

    async fn start(&self) -> anyhow::Result<Begun> {
        let (id, type_) = (&self.id, &self.args.type_);
        let end = deadline(self.args.timeout.timeout);
        let request = BeginRequest {
            id,
            type_,
            even_if_serving: self.args.serving.even_if_serving,
            time: self.time,
        };
        let (begun, is_new) = begin(&self.target, &request, end).await?;
        if !is_new {
            write_stderr(&format!(
                "operation {id} has begun before; taking it up again"
            ));
        }
        Ok(begun)
    }

    async fn wait_for_permission(&self) -> anyhow::Result<()> {
        let end = deadline(self.args.timeout.timeout);
        match waits::until_operate(&self.target, &self.id, end).await? {
            WaitEnd::TimedOut { .. } => anyhow::bail!(
                "the time is over (--timeout): {}",
                waits::explain_wait(&self.target).await
            ),
            end => waits::require_done(&self.target, &self.id, end).await,
        }
    }

    /// Withdraws the operation with this value of the label `operating`. Without a value, or with `--keep`, says how to go
    /// on with it.
    async fn give_up(
        &self,
        time: Option<&str>,
        reason: GiveUp,
        signals: &mut Interrupts,
    ) -> anyhow::Result<ExitCode> {
        let advice = match time.filter(|_| !self.args.keep) {
            None => self.how_to_go_on(),
            Some(time) => tokio::select! {
                withdrawn = withdraw(&self.target, &self.id, &self.args.type_, time) => match withdrawn {
                    Ok(true) => "the operation is withdrawn".to_owned(),
                    Ok(false) => "no operation of this run is on the Pod".to_owned(),
                    Err(error) => format!("withdrawing failed, too: {error:#}; {}", self.how_to_go_on()),
                },
                _ = signals.next() => self.how_to_go_on(),
            },
        };
        match reason {
            GiveUp::Failed(error) => Err(self.with_advice(&error, &advice)),
            GiveUp::Interrupted(signal) => Ok(interrupted(&advice, signal)),
        }
    }

    fn start_command(&self) -> std::io::Result<Child> {
        let mut words = self.args.command.iter();
        Command::new(words.next().map_or_else(Default::default, Clone::clone))
            .args(words)
            .env("POD_NAME", &self.target.name)
            .env("POD_NAMESPACE", &self.target.namespace)
            .env("OPERATION_ID", &self.id)
            .spawn()
    }

    /// Waits for the end of the command, passes signals on to it, and warns if the operation is lost meanwhile.
    async fn await_command(
        &self,
        child: &mut Child,
        begun: &Begun,
        signals: &mut Interrupts,
    ) -> anyhow::Result<ExitStatus> {
        let mut is_lost = false;
        let mut lost = std::pin::pin!(begun.until_lost(&self.target));
        loop {
            let signal = tokio::select! {
                status = child.wait() => return status.context("cannot wait for the command"),
                signal = signals.next() => signal,
                () = &mut lost, if !is_lost => {
                    is_lost = true;
                    write_stderr(&format!(
                        "warning: somebody else has finished or cancelled operation {}; the Pod may serve while the command \
                         runs",
                        self.id
                    ));
                    continue;
                }
            };
            interrupts::pass_on(signal, child);
        }
    }

    /// Finishes the operation of a command that has ended. Returns the exit code unless the Pod is to be waited for.
    async fn finish_after(&self, status: ExitStatus, begun: &Begun) -> anyhow::Result<Option<i32>> {
        let (id, pod, code) = (&self.id, &self.target.name, command_code(status));
        if code != 0 && !self.args.finish_on_failure {
            write_stderr(&format!(
                "the command has failed ({status}); operation {id} is not finished: try again with --id {id}, \
                 {}",
                self.how_to_finish()
            ));
            return Ok(Some(code));
        }
        let end = deadline(self.args.timeout.timeout);
        let stored = self.target.read(end).await?;
        match begun.fate(stored.as_ref()) {
            Fate::Held => {}
            // The Pod may be gone, because deleting it can be what the command is for.
            Fate::Gone => {
                write_stderr(&format!(
                    "Pod {pod} was deleted, which ends the operation {id}"
                ));
                return Ok(Some(code));
            }
            Fate::Lost => {
                write_stderr(&format!(
                    "error: somebody else has finished or cancelled operation {id} while the command ran ({status}), so the \
                     Pod may have served meanwhile; nothing is finished"
                ));
                return Ok(Some(code.max(1)));
            }
        }
        let decide = |pod: &_, was_sent| match begun.fate(Some(pod)) {
            Fate::Held => Ok(operator::finish_labels(pod, id)),
            _ if was_sent => Ok(Default::default()),
            _ => anyhow::bail!("somebody else has finished or cancelled it"),
        };
        let _ = self.target.change_labels(end, decide).await?;
        if code != 0 {
            write_stderr(&format!(
                "the command has failed ({status}); operation {id} is finished all the same"
            ));
            return Ok(Some(code));
        }
        Ok(None)
    }

    async fn wait_until_serving(&self) -> anyhow::Result<()> {
        let end = deadline(self.args.timeout.timeout);
        let end = waits::until_serving(&self.target, &self.id, end).await;
        let advice = format!(
            "the command has succeeded, and the operation is finished; wait with operating why pod/{} -n {} --watch",
            self.target.name, self.target.namespace
        );
        match end {
            Ok(WaitEnd::Done | WaitEnd::Gone) => Ok(()),
            Ok(WaitEnd::StaysOffline) => {
                write_stderr(STAYS_OFFLINE);
                Ok(())
            }
            Ok(WaitEnd::TimedOut { .. }) => anyhow::bail!(
                "the time is over (--timeout), and the Pod does not serve yet: {}; {advice}",
                waits::explain_wait(&self.target).await
            ),
            Ok(end) => waits::require_done(&self.target, &self.id, end).await,
            Err(error) => Err(self.with_advice(&error, &advice)),
        }
    }
}

fn interrupted(text: &str, signal: Signal) -> ExitCode {
    write_stderr(&format!("interrupted; {text}"));
    exit_code(SIGNAL_CODE + signal.as_raw())
}

fn command_code(status: ExitStatus) -> i32 {
    let by_signal = status.signal().map(|signal| SIGNAL_CODE + signal);
    status.code().or(by_signal).unwrap_or(1)
}

fn exit_code(code: i32) -> ExitCode {
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// An ID that no other process uses.
fn new_id(type_: &str) -> String {
    // A type contains ASCII characters only.
    let type_ = type_.get(..MAX_TYPE_IN_ID).unwrap_or(type_);
    format!("{type_}-{:08x}", rand::random::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::lifecycle::is_label_name;

    #[test]
    fn new_ids_are_valid_and_differ() {
        let longest = "t".repeat(63);
        for type_ in ["upgrade", &longest] {
            let id = new_id(type_);
            assert!(is_label_name(&id), "{id}");
            assert_ne!(id, new_id(type_));
        }
    }

    #[test]
    fn operation_that_ends_keeps_its_id_and_type() {
        let mut pod = Pod::default();
        assert!(matches!(is_ending(&pod, "id", "upgrade"), Ok(false)));
        let labels = [
            (Family::PostCheck, "1"),
            (Family::DoneOperationType, "upgrade"),
        ];
        let labels = labels.map(|(family, value)| (family.key("id"), value.to_owned()));
        pod.metadata.labels = labels.into();
        assert!(matches!(is_ending(&pod, "id", "upgrade"), Ok(true)));
        assert!(is_ending(&pod, "id", "resize").is_err());
    }

    #[test]
    fn code_of_command_is_that_of_shell() {
        assert_eq!(command_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(command_code(ExitStatus::from_raw(15)), 143);
    }
}
