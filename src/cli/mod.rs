//! The `operating` command.

pub mod args;
pub mod connect;
pub mod docs;
pub mod explain;
pub mod generated;
pub mod install;
pub mod metrics;
mod output;
pub mod print;
pub mod read;
pub mod serve;
pub mod uninstall;
mod values;

use std::process::ExitCode;

use args::{Cli, Command, ReadCommand};

/// Runs the command; how the process is to end. The error's chain is meant for the user.
pub async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Read(ReadCommand::Why(args)) => read::why(args).await,
        Command::Read(ReadCommand::Budget(args)) => read::budget(args).await,
        Command::Read(ReadCommand::Explain(args)) => return explain::command(args).await,
        Command::Serve(args) => serve::serve(*args).await,
        Command::Install(args) => install::command(args).await,
        Command::Uninstall(args) => uninstall::command(args).await,
        Command::Crds => output::write(&print::crds()?),
        Command::WebhookConfig(args) => output::write(&print::webhook_config(&args)?),
        Command::Docs => output::write(&docs::markdown()),
    }
    .map(|()| ExitCode::SUCCESS)
}
