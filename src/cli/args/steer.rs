//! Flags of the commands that steer rollouts and operations with the rights of a user. The kubectl plugin has these
//! commands, too.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::ReaderArgs;
use super::why_subjects::{WhyKind, WhySubject, checked_subject};
use crate::cli::values::{duration, operation_name};

/// The commands that write with the rights of a user.
#[derive(Clone, Debug, Subcommand)]
pub enum SteerCommand {
    /// Follow, pause, restart and undo rollouts of CollaSets
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Begin, await, finish and cancel operations on Pods
    #[command(subcommand)]
    Lifecycle(LifecycleCommand),
}

/// The commands of `rollout`.
#[derive(Clone, Debug, Subcommand)]
pub enum RolloutCommand {
    /// Wait until a rollout is complete, and show which Pods wait for what
    ///
    /// Exit code 0: the rollout is complete, or with --watch=false goes on. 1: it is paused, waits at a step for
    /// a promotion, is aborted or stalled, or the time of --timeout is over.
    ///
    /// A rollout under a partition, or by label, is complete once all Pods in its scope are updated and available.
    Status(StatusArgs),
    /// List the revisions of a CollaSet, or show the template of one
    History(HistoryArgs),
    /// Put the template of a former revision back
    ///
    /// The volume claim templates stay as they are. If somebody else changes the spec at the same time, nothing is
    /// written, and the exit code is 1.
    Undo(UndoArgs),
    /// Set spec.paused, so that a CollaSet neither scales nor updates
    Pause(RolloutWriteArgs),
    /// Set spec.paused back, so that a CollaSet goes on
    Resume(RolloutWriteArgs),
    /// Make all Pods again, by the annotation kubectl.kubernetes.io/restartedAt in the template
    Restart(RolloutWriteArgs),
}

/// The CollaSet that a command is about.
#[derive(Clone, Debug, Args)]
pub struct CollaSetArgs {
    /// The CollaSet: cls/NAME, collaset/NAME or cls NAME
    #[arg(required = true, num_args = 1..=2, value_name = "COLLASET")]
    pub object: Vec<String>,
    /// The API server.
    #[command(flatten)]
    pub reader: ReaderArgs,
}

impl CollaSetArgs {
    /// The name of the CollaSet.
    ///
    /// # Errors
    /// The expected form, if the words name something else.
    pub fn name(&self) -> Result<&str, String> {
        let (kind, name) = kind_and_name(&self.object)
            .ok_or_else(|| "name one CollaSet: write cls/NAME or cls NAME".to_owned())?;
        match checked_subject(kind, name) {
            Ok(WhySubject {
                kind: WhyKind::CollaSet,
                name,
            }) => Ok(name),
            Ok(_) => Err(format!(
                "{kind} is no CollaSet: write cls/NAME; for built-in kinds use kubectl rollout"
            )),
            Err(_) if name.is_empty() => Err("the name is missing: write cls/NAME".to_owned()),
            Err(_) => Err(format!(
                "{kind}/{name} names no CollaSet: write cls/NAME or cls NAME"
            )),
        }
    }
}

/// The kind and the name in `KIND/NAME` or `KIND NAME`.
fn kind_and_name(words: &[String]) -> Option<(&str, &str)> {
    match words {
        [word] => word.split_once('/'),
        [kind, name] if !kind.contains('/') => Some((kind, name)),
        _ => None,
    }
}

/// Flags of `rollout status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// The CollaSet.
    #[command(flatten)]
    pub set: CollaSetArgs,
    /// Wait until the rollout ends; with --watch=false show its state and return
    #[arg(short, long, env = "OPERATING_ROLLOUT_WATCH", default_value_t = true, num_args = 0..=1,
          require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub watch: bool,
    /// How long to wait; 0s waits without end
    #[arg(long, env = "OPERATING_TIMEOUT", value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub timeout: Duration,
}

/// Flags of `rollout history`.
#[derive(Clone, Debug, Args)]
pub struct HistoryArgs {
    /// The CollaSet.
    #[command(flatten)]
    pub set: CollaSetArgs,
    /// Show the template of this revision as YAML
    #[arg(long, env = "OPERATING_REVISION", value_name = "N")]
    pub revision: Option<i64>,
}

/// Whether a write is only tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DryRun {
    /// The write is stored
    #[default]
    None,
    /// The API server and admission check the write, and nothing is stored
    Server,
}

/// Flags of `rollout pause`, `resume` and `restart`.
#[derive(Clone, Debug, Args)]
pub struct RolloutWriteArgs {
    /// The CollaSet.
    #[command(flatten)]
    pub set: CollaSetArgs,
    /// Whether the write is only tried
    #[arg(
        long,
        env = "OPERATING_WRITE_DRY_RUN",
        value_name = "HOW",
        default_value = "none"
    )]
    pub dry_run: DryRun,
}

/// Flags of `rollout undo`.
#[derive(Clone, Debug, Args)]
pub struct UndoArgs {
    /// The CollaSet, and how the write is sent.
    #[command(flatten)]
    pub write: RolloutWriteArgs,
    /// The revision to go back to; by default the one before that of the template
    #[arg(long, env = "OPERATING_TO_REVISION", value_name = "N")]
    pub to_revision: Option<i64>,
}

/// The commands of `lifecycle`.
#[derive(Clone, Debug, Subcommand)]
pub enum LifecycleCommand {
    /// Ask for an operation on a Pod; an operation that has begun goes on
    Begin(BeginArgs),
    /// Wait until the Pod is off traffic and may be worked on
    Wait(OperationWaitArgs),
    /// Say that the work is done, and wait until the Pod serves again
    Finish(FinishArgs),
    /// Cancel an operation in any phase; the server brings the Pod back
    Cancel(CancelArgs),
    /// Begin an operation, wait, run a command, and finish the operation
    ///
    /// The command gets POD_NAME, POD_NAMESPACE and OPERATION_ID in its environment. SIGTERM, SIGHUP and SIGINT are
    /// passed on to it. If it fails, the Pod stays in the operation, so that somebody can look; the exit code is
    /// that of the command, or 128 and the number of the signal that ended it.
    ///
    /// If the run gives up before the command, it withdraws the operation; --keep leaves it on the Pod.
    ///
    /// If this process is killed, the operation stays on the Pod. The same command line with the same --id takes the
    /// operation up again, and runs the command again. While an operation in PostCheck or Completing has the ID,
    /// the command does not run, and the exit code is 75.
    Run(RunArgs),
}

/// The Pod and the ID of an operation.
#[derive(Clone, Debug, Args)]
pub struct OperationArgs {
    /// The Pod: pod/NAME, pod NAME or NAME
    #[arg(required = true, num_args = 1..=2, value_name = "POD")]
    pub object: Vec<String>,
    /// ID of the operation: 1 to 63 letters, digits, '-', '_' and '.'
    #[arg(long, env = "OPERATING_OPERATION_ID", value_name = "ID", value_parser = operation_name)]
    pub id: String,
    /// The API server.
    #[command(flatten)]
    pub reader: ReaderArgs,
}

/// The name of a Pod in `pod/NAME`, `pod NAME` or `NAME`.
///
/// # Errors
/// The expected form, if the words name something else.
pub fn pod_name(words: &[String]) -> Result<&str, String> {
    let named = match words {
        [name] if !name.contains('/') => Some(("pod", name.as_str())),
        words => kind_and_name(words),
    };
    let subject = named.map(|(kind, name)| checked_subject(kind, name));
    match subject {
        Some(Ok(WhySubject {
            kind: WhyKind::Pod,
            name,
        })) => Ok(name),
        _ => Err(format!("{} names no Pod: write pod/NAME", words.join(" "))),
    }
}

/// Flags of `lifecycle begin`.
#[derive(Clone, Debug, Args)]
pub struct BeginArgs {
    /// The operation.
    #[command(flatten)]
    pub operation: OperationArgs,
    /// Type of the operation, such as upgrade; the same characters as for the ID
    #[arg(long = "type", env = "OPERATING_OPERATION_TYPE", value_name = "TYPE", value_parser = operation_name)]
    pub type_: String,
    /// Whether the Pod may serve.
    #[command(flatten)]
    pub serving: ServingArgs,
}

/// Whether an operation may begin on a Pod that the lifecycle can't take off traffic.
#[derive(Clone, Debug, Args)]
pub struct ServingArgs {
    /// Begin even if the Pod has no readiness gate, so that it keeps its traffic
    #[arg(long, env = "OPERATING_EVEN_IF_SERVING")]
    pub even_if_serving: bool,
}

/// Flags of `lifecycle cancel`.
#[derive(Clone, Debug, Args)]
pub struct CancelArgs {
    /// The operation.
    #[command(flatten)]
    pub operation: OperationArgs,
    /// Cancel even an operation of a controller
    #[arg(long, env = "OPERATING_FORCE")]
    pub force: bool,
}

/// How long to wait for a Pod.
#[derive(Clone, Debug, Args)]
pub struct TimeoutArgs {
    /// How long to wait for the Pod; 0s waits without end
    #[arg(long, env = "OPERATING_TIMEOUT", value_name = "TIME", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
}

/// Flags of `lifecycle wait`.
#[derive(Clone, Debug, Args)]
pub struct OperationWaitArgs {
    /// The operation.
    #[command(flatten)]
    pub operation: OperationArgs,
    /// How long.
    #[command(flatten)]
    pub timeout: TimeoutArgs,
}

/// Flags of `lifecycle finish`.
#[derive(Clone, Debug, Args)]
pub struct FinishArgs {
    /// The operation, and how long to wait for the Pod to serve.
    #[command(flatten)]
    pub wait: OperationWaitArgs,
    /// Do not wait until the Pod serves again
    #[arg(long, env = "OPERATING_NO_WAIT")]
    pub no_wait: bool,
}

/// Flags of `lifecycle run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The Pod: pod/NAME, pod NAME or NAME
    #[arg(required = true, num_args = 1..=2, value_name = "POD")]
    pub object: Vec<String>,
    /// Type of the operation, such as upgrade
    #[arg(long = "type", env = "OPERATING_OPERATION_TYPE", value_name = "TYPE", value_parser = operation_name)]
    pub type_: String,
    /// ID of the operation; by default the type and a random number. Give the ID of an operation to take it up again
    #[arg(long, env = "OPERATING_OPERATION_ID", value_name = "ID", value_parser = operation_name)]
    pub id: Option<String>,
    /// Finish the operation even if the command fails
    #[arg(long, env = "OPERATING_FINISH_ON_FAILURE")]
    pub finish_on_failure: bool,
    /// Leave the operation on the Pod if the run gives up before the command
    #[arg(long, env = "OPERATING_KEEP")]
    pub keep: bool,
    /// Whether the Pod may serve.
    #[command(flatten)]
    pub serving: ServingArgs,
    /// How long to wait for the Pod before and after the command.
    #[command(flatten)]
    pub timeout: TimeoutArgs,
    /// The API server.
    #[command(flatten)]
    pub reader: ReaderArgs,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}
