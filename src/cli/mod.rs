//! The `operating` command.

pub mod args;
pub(crate) mod connect;
pub(crate) mod docs;
pub(crate) mod explain;
pub mod generated;
pub mod install;
pub(crate) mod metrics_docs;
mod output;
pub(crate) mod print;
pub mod serve;
pub mod uninstall;
mod values;
pub mod why;

use std::process::ExitCode;

use args::{Cli, Command, ReadCommand};

/// Runs the command and returns the exit code. The chain of the error is written for the user.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Read(ReadCommand::Why(args)) => why::run_why(args).await,
        Command::Read(ReadCommand::Budget(args)) => why::run_budget(args).await,
        Command::Read(ReadCommand::Explain(args)) => return explain::command(args).await,
        Command::Serve(args) => serve::serve(*args).await,
        Command::Install(args) => install::command(args).await,
        Command::Uninstall(args) => uninstall::command(args).await,
        Command::Crds => output::write_stdout(&print::print_crds()?),
        Command::WebhookConfig(args) => output::write_stdout(&print::print_webhook_config(&args)?),
        Command::Docs => output::write_stdout(&docs::cli_markdown()),
    }
    .map(|()| ExitCode::SUCCESS)
}
