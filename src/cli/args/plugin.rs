//! The commands of the kubectl plugin: all that work with the rights of a user.

use std::ffi::OsString;
use std::path::Path;

use clap::{Parser, Subcommand};

use super::{Cli, Command, ReadCommand, SteerCommand};

/// Name of the program under which kubectl finds its plugin `operating`.
pub const PLUGIN: &str = "kubectl-operating";

/// The command as kubectl starts it.
#[derive(Clone, Debug, Parser)]
#[command(
    name = PLUGIN,
    bin_name = "kubectl operating",
    about = "Why is my Pod waiting? And how do I steer rollouts and operations?",
    version,
    propagate_version = true,
    max_term_width = 100
)]
pub struct Plugin {
    /// The subcommand.
    #[command(subcommand)]
    pub command: PluginCommand,
}

/// The commands of the plugin: all that work with the rights of a user.
#[derive(Clone, Debug, Subcommand)]
pub enum PluginCommand {
    /// The commands that only read.
    #[command(flatten)]
    Read(ReadCommand),
    /// The commands that also write.
    #[command(flatten)]
    Steer(SteerCommand),
}

/// Parses the command line. If the name of the program is [`PLUGIN`], the plugin's commands are parsed. Ends
/// the process on `--help` and on errors.
pub fn parse(args: Vec<OsString>) -> Cli {
    let called = args.first().map(Path::new).and_then(Path::file_stem);
    if called.is_some_and(|name| name == PLUGIN) {
        let Plugin { command } = Plugin::parse_from(args);
        let command = match command {
            PluginCommand::Read(command) => Command::Read(command),
            PluginCommand::Steer(command) => Command::Steer(command),
        };
        return Cli { command };
    }
    Cli::parse_from(args)
}
