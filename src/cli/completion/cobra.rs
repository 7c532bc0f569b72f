//! The form in which kubectl reads the suggestions of a plugin: that of the Go library cobra.

use std::ffi::OsString;
use std::fmt::Write;
use std::sync::Arc;

use clap::Command;

use super::suggest::{Suggestion, suggest};
use super::values::NameSource;

/// The shell adds no space after the word.
const NO_SPACE: u8 = 2;
/// The shell suggests no files if there are no suggestions.
const NO_FILES: u8 = 4;

/// The suggestions, one in each line, and a last line with the directive.
pub fn answer(command: Command, words: &[OsString], source: Arc<dyn NameSource>) -> String {
    format(&suggest(command, words, source))
}

fn format(suggestions: &[Suggestion]) -> String {
    let mut out = String::new();
    for Suggestion { word, help } in suggestions {
        // Writing to a String cannot fail.
        let _ = match help.as_str() {
            "" => writeln!(out, "{word}"),
            help => writeln!(out, "{word}\t{help}"),
        };
    }
    let goes_on = |suggestion: &Suggestion| suggestion.word.ends_with(['/', '=']);
    let directive = match suggestions.iter().any(goes_on) {
        true => NO_SPACE | NO_FILES,
        false => NO_FILES,
    };
    let _ = writeln!(out, ":{directive}");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_with_directive() {
        let suggestion = |word: &str, help: &str| Suggestion {
            word: word.to_owned(),
            help: help.to_owned(),
        };
        let list = [suggestion("why", "Show why"), suggestion("web-1", "")];
        assert_eq!(format(&list), "why\tShow why\nweb-1\n:4\n");
        assert_eq!(format(&[suggestion("pod/", "")]), "pod/\n:6\n");
        assert_eq!(format(&[]), ":4\n");
    }
}
