//! `cargo xtask book`: the documentation as a book of HTML pages.

use std::io::ErrorKind;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use testbed::paths;

/// Builds the pages of `docs/` into `book/` with the program `mdbook`.
///
/// # Errors
/// When `mdbook` is not installed or cannot be started.
pub fn run() -> Result<ExitCode> {
    let build = Command::new("mdbook")
        .arg("build")
        .current_dir(paths::repository())
        .status();
    let status = match build {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            bail!("the program mdbook is not on the PATH: run `cargo install mdbook --locked`")
        }
        built => built.context("starting mdbook")?,
    };
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
