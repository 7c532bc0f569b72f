//! Completion of `operating` itself in a shell. The script of the shell calls this program for each completion.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use clap::Command;
use clap_complete::env::Shells;

use super::bash_words::BashLine;
use super::suggest::{suggest, with_names};
use super::values::NameSource;
use crate::cli::args::Shell;

/// By this variable the script names the shell that asks.
const VARIABLE: &str = "OPERATING_COMPLETE";

/// The script of a shell.
pub fn print_script(shell: Shell) -> anyhow::Result<String> {
    let mut script = Vec::new();
    if let Some(completer) = Shells::builtins().completer(shell.name()) {
        completer.write_registration(
            VARIABLE,
            "operating",
            "operating",
            "operating",
            &mut script,
        )?;
    }
    Ok(String::from_utf8(script)?)
}

/// The suggestions in the form of the shell that asks. `None` if no shell asks.
pub fn answer(
    command: fn() -> Command,
    args: &[OsString],
    source: Arc<dyn NameSource>,
) -> Option<String> {
    let shell = std::env::var(VARIABLE).ok()?;
    let shells = Shells::builtins();
    let completer = shells.completer(&shell)?;
    let words = args.split(|word| word == OsStr::new("--"));
    let start = words.into_iter().next()?.len() + 1;
    let words = args.get(start..)?.to_vec();
    // Bash also passes the words behind the cursor.
    let index = std::env::var("_CLAP_COMPLETE_INDEX").ok();
    let index = index.and_then(|index| index.parse().ok());
    let index: usize = index.unwrap_or(words.len().checked_sub(1)?);
    if shell == "bash" {
        let parts = words.get(..=index)?;
        return Some(answer_bash(command(), parts, source));
    }
    let before = words.get(..index).unwrap_or(&words);
    let mut command = with_names(command(), before, source);
    let mut out = Vec::new();
    let directory = std::env::current_dir().ok();
    let _ = completer.write_complete(&mut command, words.clone(), directory.as_deref(), &mut out);
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn answer_bash(command: Command, parts: &[OsString], source: Arc<dyn NameSource>) -> String {
    let line = BashLine::join(parts);
    let found = suggest(command, &line.words, source);
    let words: Vec<&str> = found.iter().map(|found| line.cut(&found.word)).collect();
    let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
    words.join(&separator)
}
