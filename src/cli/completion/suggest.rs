//! From the words of a command line to suggestions for the word at the cursor.

use std::ffi::{OsStr, OsString};
use std::sync::Arc;

use clap::{Arg, Command};
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use super::typed::Typed;
use super::values::{NameSource, ValueKind};

/// A suggestion: the whole word, and a line of help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The word.
    pub word: String,
    /// The first line of its help; empty if there is none.
    pub help: String,
}

/// The suggestions for the last of the words; the first is the name of the program.
pub fn suggest(
    command: Command,
    words: &[OsString],
    source: Arc<dyn NameSource>,
) -> Vec<Suggestion> {
    let Some((current, before)) = words.split_last() else {
        return Vec::new();
    };
    let mut command = with_names(command, before, source);
    let (words, index) = (words.to_vec(), before.len());
    let directory = std::env::current_dir().ok();
    let found = clap_complete::engine::complete(&mut command, words, index, directory.as_deref());
    // Flags are suggested when a person has begun one, as kubectl does.
    let is_flag = current.to_string_lossy().starts_with('-');
    let found = found.unwrap_or_default().into_iter();
    let suggestions = found.map(|candidate| Suggestion {
        word: candidate.get_value().to_string_lossy().into_owned(),
        help: candidate
            .get_help()
            .and_then(|help| help.to_string().lines().next().map(str::to_owned))
            .unwrap_or_default(),
    });
    suggestions
        .filter(|suggestion| is_flag || !suggestion.word.starts_with('-'))
        .collect()
}

/// The command, whose arguments know the names of objects. `before` are the words before the cursor.
pub fn with_names(command: Command, before: &[OsString], source: Arc<dyn NameSource>) -> Command {
    let typed = Arc::new(Typed::read(&command, before));
    annotate(command, &typed, &source)
}

fn annotate(command: Command, typed: &Arc<Typed>, source: &Arc<dyn NameSource>) -> Command {
    command
        .mut_args(|arg| match ValueKind::of(&arg) {
            Some(kind) => complete_names(arg, kind, typed.clone(), source.clone()),
            None => arg,
        })
        .mut_subcommands(|below| annotate(below, typed, source))
}

fn complete_names(
    arg: Arg,
    kind: ValueKind,
    typed: Arc<Typed>,
    source: Arc<dyn NameSource>,
) -> Arg {
    let id = arg.get_id().to_string();
    let complete = move |current: &OsStr| {
        let before = typed.positional(&id);
        let values = kind.values(&current.to_string_lossy(), before, &typed, &*source);
        values.into_iter().map(CompletionCandidate::new).collect()
    };
    arg.add(ArgValueCompleter::new(complete))
}
