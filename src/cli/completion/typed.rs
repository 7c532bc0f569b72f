//! What the words before the cursor say: which cluster, which namespace, and which objects.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgMatches, Command};

use crate::cli::args::{ReaderArgs, UserArgs};

/// The words before the cursor, as far as they can be parsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Typed {
    /// `--kubeconfig`, from the command line or the environment.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--namespace`.
    pub namespace: Option<String>,
    /// The positional arguments so far, by the ID of their definition.
    positionals: BTreeMap<String, Vec<String>>,
}

impl Typed {
    /// Reads the words before the cursor, of which the first is the name of the program.
    pub fn read(command: &Command, words: &[OsString]) -> Typed {
        let mut lenient = command.clone().ignore_errors(true);
        let mut typed = Typed::default();
        let Ok(matches) = lenient.try_get_matches_from_mut(words) else {
            return typed;
        };
        let (mut command, mut matches) = (&lenient, &matches);
        loop {
            typed.add(command, matches);
            let Some((name, below)) = matches.subcommand() else {
                return typed;
            };
            let Some(found) = command.find_subcommand(name) else {
                return typed;
            };
            (command, matches) = (found, below);
        }
    }

    fn add(&mut self, command: &Command, matches: &ArgMatches) {
        for arg in command.get_arguments() {
            let id = arg.get_id().as_str();
            let raw = matches.try_get_raw(id).ok().flatten();
            let words = raw.into_iter().flatten();
            let words: Vec<_> = words
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            let last = words.last().cloned();
            match id {
                "kubeconfig" => self.kubeconfig = last.map(PathBuf::from),
                "context" => self.context = last,
                "namespace" => self.namespace = last,
                id if arg.is_positional() => drop(self.positionals.insert(id.to_owned(), words)),
                _ => {}
            }
        }
    }

    /// The words of a positional argument before the cursor.
    pub fn positional(&self, id: &str) -> &[String] {
        self.positionals.get(id).map_or(&[], Vec::as_slice)
    }

    /// How to reach the API server.
    pub fn reader(&self) -> ReaderArgs {
        ReaderArgs {
            user: UserArgs {
                kubeconfig: self.kubeconfig.clone(),
                context: self.context.clone(),
            },
            namespace: self.namespace.clone(),
        }
    }
}
