//! The `operating` command.

pub mod adapter_types;
mod answering_server;
pub mod args;
mod check;
mod completion;
pub(crate) mod connect;
pub(crate) mod docs;
mod drain;
pub(crate) mod explain;
pub mod generated;
pub mod install;
pub(crate) mod metrics_docs;
mod operate;
mod output;
pub(crate) mod print;
mod retries;
mod rollout;
pub mod serve;
pub mod uninstall;
mod values;
pub mod why;

use std::process::ExitCode;

use adapter_types::AdapterTypes;
use args::{Cli, Command, ReadCommand, SteerCommand};

/// Runs the command and returns the exit code. The chain of the error is written for the user. `types` are the types of
/// adapters that the configuration of ResourceConsist can name.
pub async fn run(cli: Cli, types: &AdapterTypes) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Read(ReadCommand::Why(args)) => why::run_why(args).await,
        Command::Read(ReadCommand::Budget(args)) => why::run_budget(args).await,
        Command::Read(ReadCommand::Explain(args)) => return explain::command(args).await,
        Command::Read(ReadCommand::Check(args)) => return check::command(*args).await,
        Command::Read(ReadCommand::Drain(args)) => return drain::command(*args).await,
        Command::Steer(SteerCommand::Rollout(command)) => return rollout::command(command).await,
        Command::Steer(SteerCommand::Lifecycle(command)) => return operate::command(command).await,
        Command::Serve(args) => serve::serve(*args, types).await,
        Command::Install(args) => install::command(args).await,
        Command::Uninstall(args) => uninstall::command(args).await,
        Command::Completion(args) => output::write_stdout(&completion::print_script(args.shell)?),
        Command::Crds => output::write_stdout(&print::print_crds()?),
        Command::WebhookConfig(args) => output::write_stdout(&print::print_webhook_config(&args)?),
        Command::Docs => output::write_stdout(&docs::cli_markdown()),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// The whole program, for a binary that adds types of adapters.
pub fn main_with(types: &AdapterTypes) -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(code) = completion::answer(&args) {
        return code;
    }
    let args = args::parse(args);
    let done = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(run(args, types)));
    match done {
        Ok(code) => code,
        Err(error) => {
            output::write_stderr(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
