//! Bash splits words at characters such as `=` and `:` (its variable COMP_WORDBREAKS), and replaces only the last part of
//! a word by a suggestion.

use std::ffi::{OsStr, OsString};

/// Characters at which bash may split words, and which are parts of words here.
const BREAKS: [char; 3] = ['=', ':', '@'];

/// The words of a line up to the cursor, as a person typed them.
#[derive(Debug, PartialEq, Eq)]
pub struct BashLine {
    /// The words. The last is the word at the cursor.
    pub words: Vec<OsString>,
    /// The beginning of the last word, which bash keeps.
    kept: OsString,
}

impl BashLine {
    /// Joins the parts that bash passes, up to the part at the cursor.
    pub fn join(parts: &[OsString]) -> BashLine {
        let mut words: Vec<OsString> = Vec::new();
        let mut kept = OsString::new();
        let mut last_break: Option<&OsString> = None;
        for part in parts {
            kept.clear();
            match words.last_mut() {
                Some(word) if is_break(part) || last_break.is_some() => {
                    // At a break such as `@`, bash passes the break once more in the part at the cursor.
                    if let Some(repeated) = last_break.filter(|last| starts_with(part, last)) {
                        remove_end(word, repeated);
                    }
                    kept.push(&*word);
                    word.push(part);
                }
                _ => words.push(part.clone()),
            }
            last_break = is_break(part).then_some(part);
        }
        BashLine { words, kept }
    }

    /// A suggestion without the beginning that bash keeps.
    pub fn cut<'a>(&self, suggestion: &'a str) -> &'a str {
        let kept = self.kept.to_string_lossy();
        suggestion.strip_prefix(&*kept).unwrap_or(suggestion)
    }
}

fn is_break(part: &OsStr) -> bool {
    let part = part.to_string_lossy();
    !part.is_empty() && part.chars().all(|c| BREAKS.contains(&c))
}

fn starts_with(part: &OsStr, start: &OsStr) -> bool {
    part.to_string_lossy()
        .starts_with(&*start.to_string_lossy())
}

fn remove_end(word: &mut OsString, end: &OsStr) {
    let text = word.to_string_lossy().into_owned();
    if let Some(rest) = text.strip_suffix(&*end.to_string_lossy()) {
        *word = rest.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(parts: &[&str]) -> BashLine {
        let parts: Vec<OsString> = parts.iter().map(OsString::from).collect();
        BashLine::join(&parts)
    }

    #[test]
    fn parts_of_a_word_are_joined() {
        for (parts, words, kept) in [
            (&["why", "po"][..], &["why", "po"][..], ""),
            (
                &["--namespace", "=", "shop", "pod/"],
                &["--namespace=shop", "pod/"],
                "",
            ),
            (
                &["--namespace", "=", "shop", ""],
                &["--namespace=shop", ""],
                "",
            ),
            (&["--context", "=", "ea"], &["--context=ea"], "--context="),
            (&["--context", ""], &["--context", ""], ""),
            (
                &["--context", "=", "arn", ":", "aws"],
                &["--context=arn:aws"],
                "--context=arn:",
            ),
            (&["--context", "arn:aws"], &["--context", "arn:aws"], ""),
            (
                &["--context", "admin", "@", "@kub"],
                &["--context", "admin@kub"],
                "admin",
            ),
        ] {
            let line = join(parts);
            assert_eq!(line.words, words, "{parts:?}");
            assert_eq!(line.kept, kept, "{parts:?}");
        }
    }

    #[test]
    fn suggestions_lack_what_bash_keeps() {
        assert_eq!(join(&["why", "pod/"]).cut("pod/a"), "pod/a");
        assert_eq!(
            join(&["--context", "=", "ea"]).cut("--context=east"),
            "east"
        );
        assert_eq!(
            join(&["--context", "arn:a"]).cut("arn:aws:eks"),
            "arn:aws:eks"
        );
    }
}
