//! The `operating` command.

use std::process::ExitCode;

use clap::Parser;
use operating::cli;

fn main() -> ExitCode {
    let args = cli::args::Cli::parse();
    let done = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(cli::run(args)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
