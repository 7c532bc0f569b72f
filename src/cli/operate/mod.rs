//! The commands `lifecycle begin`, `wait`, `finish`, `cancel` and `run`: an operator of the lifecycle of a Pod, with the
//! rights of a user.

mod interrupts;
mod pod;
mod run;
mod waits;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::Instant;

use self::pod::OperatedPod;
use super::args::steer::{LifecycleCommand, OperationArgs, pod_name};
use super::connect;
use super::output;
use crate::api::keys::Family;
use crate::domain::lifecycle::operator;

/// Runs a command of `lifecycle` and returns its exit code.
pub async fn command(command: LifecycleCommand) -> anyhow::Result<ExitCode> {
    match command {
        LifecycleCommand::Begin(args) => {
            let pod = connect_pod(&args.operation).await?;
            let id = &args.operation.id;
            let done = match begin(&pod, id, &args.type_).await? {
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
            let pod = connect_pod(&args.wait.operation).await?;
            let id = &args.wait.operation.id;
            finish(&pod, id).await?;
            if args.no_wait {
                return say(&format!("pod/{} operation {id} finished", pod.name));
            }
            let end = waits::until_serving(&pod, id, deadline(args.wait.timeout.timeout)).await?;
            waits::require_done(&pod, id, end).await?;
            say(&format!("pod/{} serves again ({id} finished)", pod.name))
        }
        LifecycleCommand::Cancel(args) => {
            let pod = connect_pod(&args).await?;
            cancel(&pod, &args.id).await?;
            say(&format!("pod/{} operation {} cancelled", pod.name, args.id))
        }
        LifecycleCommand::Run(args) => run::run_operation(args).await,
    }
}

async fn connect_pod(args: &OperationArgs) -> anyhow::Result<OperatedPod> {
    let name = pod_name(&args.object).map_err(anyhow::Error::msg)?;
    let (client, namespace) = connect::connect_reader(&args.reader).await?;
    OperatedPod::new(client, namespace, name)
}

/// Begins the operation. Returns `false` if it has begun before.
///
/// # Errors
/// If another type has begun under the ID, or the lifecycle does not apply to the Pod.
async fn begin(target: &OperatedPod, id: &str, type_: &str) -> anyhow::Result<bool> {
    let begun = target.change_labels(|pod| {
        let name = &pod.metadata.name;
        anyhow::ensure!(
            pod.is_managed(),
            "Pod {name} has no label kusionstack.io/control: \"true\", so it has no lifecycle: set the label in the template \
             of its workload"
        );
        anyhow::ensure!(
            !pod.is_terminating() && !pod.is_finished(),
            "Pod {name} is terminating or has finished: no operation can begin on it"
        );
        let type_key = Family::OperationType.key(id);
        let other = pod.label(&type_key).filter(|other| *other != type_);
        let is_begun = pod.label(&Family::Operating.key(id)).is_some();
        if let Some(other) = other.filter(|_| is_begun) {
            anyhow::bail!(
                "operation {id} of Pod {name} has the type {other}: choose another --id, or finish or cancel it first"
            );
        }
        Ok(operator::begin_labels(pod, id, type_, false, now_nanos()))
    });
    begun.await
}

/// Removes the label by which the operation is in progress.
async fn finish(target: &OperatedPod, id: &str) -> anyhow::Result<()> {
    let finished = target.change_labels(|pod| Ok(operator::finish_labels(pod, id)));
    if !finished.await? {
        // Somebody has finished it before; the Pod may be on its way back.
        eprintln!("operation {id} of Pod {} is not in progress", target.name);
    }
    Ok(())
}

async fn cancel(target: &OperatedPod, id: &str) -> anyhow::Result<()> {
    let cancelled = target.change_labels(|pod| {
        let types = [Family::OperationType, Family::DoneOperationType];
        let mut types = types.iter().filter_map(|family| pod.label(&family.key(id)));
        let type_ = types.next().with_context(|| {
            format!(
                "Pod {} has no operation {id}: see operating why pod/{} -n {}",
                pod.metadata.name, pod.metadata.name, pod.metadata.namespace
            )
        })?;
        Ok(operator::undo_labels(id, type_))
    });
    cancelled.await.map(|_| ())
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
