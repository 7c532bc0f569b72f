//! The flag for the format of the output, for all commands that only read.

use clap::{Args, ValueEnum};

/// Format of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people
    #[default]
    Text,
    /// For programs; with --watch, each state is one line, and so is each of several objects
    Json,
}

/// The flag for the format of the output.
#[derive(Clone, Copy, Debug, Args)]
pub struct FormatArgs {
    /// Format of the output
    #[arg(
        short,
        long,
        env = "OPERATING_OUTPUT",
        value_name = "FORM",
        default_value = "text"
    )]
    pub output: Output,
}
