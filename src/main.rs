//! The `operating` command.

use std::process::ExitCode;

use operating::cli;

fn main() -> ExitCode {
    let args = cli::args::parse(std::env::args_os().collect());
    let done = tokio::runtime::Runtime::new()
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(cli::run(args)));
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
