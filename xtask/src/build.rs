//! Builds the server with the cargo that runs this program.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use testbed::paths;

use tokio::process::Command;

use crate::cargo;

/// The used fields of a line of `cargo build --message-format=json`.
#[derive(Deserialize)]
struct Message {
    #[serde(default)]
    executable: Option<PathBuf>,
}

/// Builds the server and returns the path of its binary. The progress of cargo goes to standard error.
/// Dropping the future ends the build.
///
/// # Errors
/// If cargo is missing or the build fails; cargo has already printed the reason.
pub async fn build(release: bool) -> Result<PathBuf> {
    let mut command = Command::from(cargo::command());
    command
        .args(["build", "--package", "operating", "--bin", "operating"])
        .args(["--locked", "--message-format", "json-render-diagnostics"])
        .args(release.then_some("--release"))
        .current_dir(paths::repository())
        // Set for the test binaries (see `test_programs`). A build under it would compile every dependency again.
        .env_remove("RUSTC_BOOTSTRAP")
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let output = command.spawn().context("starting cargo build")?;
    let output = output.wait_with_output().await?;
    if !output.status.success() {
        bail!("cargo build of the server failed; the messages above say why");
    }
    executable(&String::from_utf8_lossy(&output.stdout)).context("no binary in cargo's answer")
}

/// The last executable that cargo names; earlier ones are build scripts of dependencies.
fn executable(messages: &str) -> Option<PathBuf> {
    let read = |line| serde_json::from_str::<Message>(line).ok();
    messages.lines().rev().find_map(|l| read(l)?.executable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_executable_is_server() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","executable":null}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"/t/debug/operating"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable(messages), Some("/t/debug/operating".into()));
        assert_eq!(executable(""), None);
    }
}
