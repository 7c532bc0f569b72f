//! `lifecycle run`: a command within an operation.
//!
//! Every step can be taken up again by the same command line with the same `--id`, because all state is on the Pod.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitCode, ExitStatus};

use anyhow::Context as _;
use tokio::process::Command;

use super::interrupts::{self, Interrupts};
use super::pod::OperatedPod;
use super::waits::{self, WaitEnd};
use super::{begin, deadline, finish};
use crate::cli::args::steer::{RunArgs, pod_name};
use crate::cli::connect;

/// Longest part of the type in an ID that is made here. The separator and the number have nine characters, and the
/// longest ID 63.
const MAX_TYPE_IN_ID: usize = 54;
/// Exit code of a command that a signal has ended: this, and the number of the signal.
const SIGNAL_CODE: i32 = 128;

/// Runs the command within an operation, and returns its exit code.
pub async fn run_operation(args: RunArgs) -> anyhow::Result<ExitCode> {
    let name = pod_name(&args.object).map_err(anyhow::Error::msg)?;
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    let target = OperatedPod::new(client, namespace, name)?;
    let id = args.id.clone().unwrap_or_else(|| new_id(&args.type_));
    let mut signals = Interrupts::catch()?;
    let (pod, namespace) = (&target.name, &target.namespace);
    let object = format!("pod/{pod} -n {namespace} --id {id}");
    eprintln!("operation {id} ({}) on pod/{pod}", args.type_);
    let undo = format!("cancel it with: operating lifecycle cancel {object}");
    let go_on =
        format!("the operation stays on the Pod: take it up again with --id {id}, or {undo}");

    let prepared = tokio::select! {
        prepared = prepare(&target, &id, &args) => prepared?,
        signal = signals.next() => return Ok(interrupted(&go_on, signal.as_raw())),
    };
    if prepared == Prepared::Ending {
        eprintln!("operation {id} was finished before; waiting until the Pod serves again");
    } else {
        let status = run_command(&args, &target, &id, &mut signals).await?;
        let code = command_code(status);
        if code != 0 && !args.finish_on_failure {
            eprintln!(
                "the command has failed ({status}); the Pod stays off traffic in operation {id}: try again with --id {id}, \
                 finish it with: operating lifecycle finish {object}, or {undo}"
            );
            return Ok(exit_code(code));
        }
        // The Pod may be gone, because deleting it can be what the command is for.
        if target.read().await?.is_none() {
            eprintln!("Pod {pod} was deleted, which ends the operation {id}");
            return Ok(exit_code(code));
        }
        finish(&target, &id).await?;
        if code != 0 {
            eprintln!("the command has failed ({status}); operation {id} is finished all the same");
            return Ok(exit_code(code));
        }
    }
    let end = tokio::select! {
        end = waits::until_serving(&target, &id, deadline(args.timeout.timeout)) => end?,
        signal = signals.next() => {
            let text = format!("operation {id} is finished, and the Pod is on its way back");
            return Ok(interrupted(&text, signal.as_raw()));
        }
    };
    if end != WaitEnd::Gone {
        waits::require_done(&target, &id, end).await?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is left to do when the operation has been prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prepared {
    /// The command may run.
    MayRun,
    /// An earlier process has run the command and finished the operation.
    Ending,
}

async fn prepare(target: &OperatedPod, id: &str, args: &RunArgs) -> anyhow::Result<Prepared> {
    if waits::is_ending(&target.read_existing().await?, id) {
        return Ok(Prepared::Ending);
    }
    if !begin(target, id, &args.type_).await? {
        eprintln!("operation {id} has begun before; taking it up again");
    }
    let end = waits::until_operate(target, id, deadline(args.timeout.timeout)).await?;
    waits::require_done(target, id, end).await?;
    Ok(Prepared::MayRun)
}

/// Runs the command to its end, and passes signals on to it.
async fn run_command(
    args: &RunArgs,
    target: &OperatedPod,
    id: &str,
    signals: &mut Interrupts,
) -> anyhow::Result<ExitStatus> {
    let (program, words) = args
        .command
        .split_first()
        .context("the command is missing")?;
    let started = Command::new(program)
        .args(words)
        .env("POD_NAME", &target.name)
        .env("POD_NAMESPACE", &target.namespace)
        .env("OPERATION_ID", id)
        .spawn();
    let mut child = started.with_context(|| {
        format!(
            "cannot run {}; the Pod stays off traffic in operation {id}: run the command line again with --id {id}, or \
             cancel with operating lifecycle cancel pod/{} -n {} --id {id}",
            program.display(),
            target.name,
            target.namespace
        )
    })?;
    loop {
        tokio::select! {
            status = child.wait() => return status.context("cannot wait for the command"),
            signal = signals.next() => interrupts::pass_on(signal, &child),
        }
    }
}

fn interrupted(text: &str, signal: i32) -> ExitCode {
    eprintln!("interrupted; {text}");
    exit_code(SIGNAL_CODE + signal)
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
    fn code_of_command_is_that_of_shell() {
        assert_eq!(command_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(command_code(ExitStatus::from_raw(15)), 143);
    }
}
