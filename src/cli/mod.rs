//! The `operating` command.

pub mod args;
pub mod connect;
pub mod docs;
pub mod generated;
pub mod install;
mod output;
pub mod print;
pub mod serve;
pub mod uninstall;
mod values;

use args::{Cli, Command};

/// Runs the command. The error's chain is meant for the user.
pub async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(args) => serve::serve(*args).await,
        Command::Install(args) => install::command(args).await,
        Command::Uninstall(args) => uninstall::command(args).await,
        Command::Crds => output::write(&print::crds()?),
        Command::WebhookConfig(args) => output::write(&print::webhook_config(&args)?),
        Command::Docs => output::write(&docs::markdown()),
    }
}
