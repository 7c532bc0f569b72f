//! The commands `lifecycle begin`, `wait`, `finish`, `cancel` and `run`: an operator of the lifecycle of a Pod, with the
//! rights of a user.

mod begun;
mod interrupts;
mod pod;
mod program;
mod run;
mod stored;
mod waits;
mod withdrawal;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use self::begun::Begun;
use self::pod::OperatedPod;
use self::stored::Progress;
use self::waits::WaitEnd;
use super::args::steer::{LifecycleCommand, OperationArgs, pod_name};
use super::connect;
use super::output;
use crate::domain::lifecycle::operator;

/// How long requests of commands without `--timeout` are repeated.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Runs a command of `lifecycle` and returns its exit code.
pub async fn command(command: LifecycleCommand) -> anyhow::Result<ExitCode> {
    match command {
        LifecycleCommand::Begin(args) => {
            let id = &args.operation.id;
            stored::check_id(id)?;
            let pod = connect_pod(&args.operation).await?;
            let request = BeginRequest {
                id,
                type_: &args.type_,
                even_if_serving: args.serving.even_if_serving,
                time: now_nanos(),
            };
            let done = match begin(&pod, &request, deadline(ANSWER_WAIT)).await?.1 {
                true => "begun",
                false => "has begun before",
            };
            say(&format!("pod/{} operation {id} {done}", pod.name))
        }
        LifecycleCommand::Wait(args) => {
            let pod = connect_pod(&args.operation).await?;
            let id = &args.operation.id;
            let end = waits::until_operate(&pod, id, deadline(args.timeout.timeout)).await?;
            waits::require_done(&pod, id, end).await?;
            say(&format!("pod/{} may be operated on ({id})", pod.name))
        }
        LifecycleCommand::Finish(args) => {
            let id = &args.wait.operation.id;
            stored::check_id(id)?;
            let pod = connect_pod(&args.wait.operation).await?;
            let deadline = deadline(args.wait.timeout.timeout);
            finish(&pod, id, deadline).await?;
            if args.no_wait {
                return say(&format!("pod/{} operation {id} finished", pod.name));
            }
            let end = waits::until_serving(&pod, id, deadline).await?;
            waits::require_done(&pod, id, end).await?;
            say(&match end {
                WaitEnd::StaysOffline => {
                    format!("pod/{} operation {id} finished; {STAYS_OFFLINE}", pod.name)
                }
                _ => format!("pod/{} serves again ({id} finished)", pod.name),
            })
        }
        LifecycleCommand::Cancel(args) => {
            let id = &args.operation.id;
            if !args.force {
                stored::check_id(id).context("only --force cancels it")?;
            }
            let pod = connect_pod(&args.operation).await?;
            let decide = |pod: &_, was_sent| stored::cancel(pod, id, was_sent);
            let _ = pod.change_labels(deadline(ANSWER_WAIT), decide).await?;
            say(&format!("pod/{} operation {id} cancelled", pod.name))
        }
        LifecycleCommand::Run(args) => run::run_operation(args).await,
    }
}

const STAYS_OFFLINE: &str = "the Pod stays off traffic, because it has the label podopslifecycle.kusionstack.io/stay-offline";

async fn connect_pod(args: &OperationArgs) -> anyhow::Result<OperatedPod> {
    let name = pod_name(&args.object).map_err(anyhow::Error::msg)?;
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    OperatedPod::new(client, namespace, name)
}

/// What begins.
struct BeginRequest<'a> {
    id: &'a str,
    type_: &'a str,
    even_if_serving: bool,
    /// The value of the label `operating`.
    time: u64,
}

/// Begins the operation. Returns it, and `false` if it has begun before.
///
/// # Errors
/// If another type has begun under the ID, or the lifecycle does not apply to the Pod.
async fn begin(
    target: &OperatedPod,
    request: &BeginRequest<'_>,
    deadline: Option<Instant>,
) -> anyhow::Result<(Begun, bool)> {
    let BeginRequest { id, type_, .. } = request;
    let changed = target.change_labels(deadline, |pod, _| {
        stored::check_begin(pod, id, type_, request.even_if_serving)?;
        Ok(operator::begin_labels(pod, id, type_, false, request.time))
    });
    let changed = changed.await?;
    let begun = Begun::of(&changed.pod, id).with_context(|| stored::absence(&changed.pod, id))?;
    Ok((begun, changed.by_us))
}

/// Removes the label by which the operation is in progress.
async fn finish(target: &OperatedPod, id: &str, deadline: Option<Instant>) -> anyhow::Result<()> {
    let decide = |pod: &_, was_sent| stored::finish(pod, id, was_sent);
    let changed = target.change_labels(deadline, decide).await?;
    if !changed.by_us && stored::progress(&changed.pod, id) == Progress::Ending {
        output::write_stderr(&format!(
            "operation {id} of Pod {} was finished before",
            target.name
        ));
    }
    Ok(())
}

/// When a wait ends; `None` if it has no end.
fn deadline(timeout: Duration) -> Option<Instant> {
    (!timeout.is_zero()).then(|| Instant::now() + timeout)
}

/// The time for the value of `operating`.
fn now_nanos() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0)
}

fn say(line: &str) -> anyhow::Result<ExitCode> {
    output::write_stdout(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}
