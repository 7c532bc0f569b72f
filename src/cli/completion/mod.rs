//! Completion of command lines: subcommands, flags, values of flags, and names that the API server knows.
//!
//! A completion never fails and writes nothing to standard error, because both would disturb the line that a person
//! types. What can't be read gives no suggestions.

mod bash_words;
mod cobra;
mod live;
mod shell;
mod suggest;
#[cfg(test)]
mod tests;
mod typed;
mod values;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Command, CommandFactory};

use super::args::{Cli, PLUGIN, Plugin};
use live::LiveNames;

pub use shell::print_script;

/// Name of the program that kubectl asks for completions of its plugin `operating`.
const KUBECTL_COMPLETION: &str = "kubectl_complete-operating";

/// Answers if a shell or kubectl asks for completions. `None` if this is an ordinary call.
pub fn answer(args: &[OsString]) -> Option<ExitCode> {
    let called = Path::new(args.first()?).file_stem()?;
    let answer = if called == KUBECTL_COMPLETION {
        let words = [&[PLUGIN.into()], &args[1..]].concat();
        cobra::answer(Plugin::command(), &words, Arc::new(LiveNames))
    } else {
        let command: fn() -> Command = match called == PLUGIN {
            true => Plugin::command,
            false => Cli::command,
        };
        shell::answer(command, args, Arc::new(LiveNames))?
    };
    // Nobody can be told if the output can't be written.
    let _ = super::output::write_stdout(&answer);
    Some(ExitCode::SUCCESS)
}
