//! Bash splits words at `=` and `:` (its variable COMP_WORDBREAKS), and replaces only the last part by a suggestion.

use std::ffi::{OsStr, OsString};

/// Characters at which bash splits words, and which are parts of words here.
const BREAKS: [char; 2] = ['=', ':'];

/// The words as a person typed them, and the index of the word at the cursor.
pub fn join(parts: &[OsString], cursor: usize) -> (Vec<OsString>, usize) {
    let mut words: Vec<OsString> = Vec::new();
    let mut index = 0;
    let mut follows_break = false;
    for (position, part) in parts.iter().enumerate() {
        let is_break = is_break(part);
        match words.last_mut() {
            Some(word) if is_break || follows_break => word.push(part),
            _ => words.push(part.clone()),
        }
        follows_break = is_break;
        if position == cursor {
            index = words.len() - 1;
        }
    }
    (words, index)
}

/// The suggestions without the parts of the word `current` that bash keeps.
pub fn cut(suggestions: &str, current: &OsStr) -> String {
    let current = current.to_string_lossy();
    let kept = current.rfind(BREAKS).map_or("", |last| &current[..=last]);
    let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
    let all = suggestions.split(&*separator);
    let cut = all.map(|one| one.strip_prefix(kept).unwrap_or(one));
    cut.collect::<Vec<_>>().join(&separator)
}

fn is_break(part: &OsStr) -> bool {
    let part = part.to_string_lossy();
    !part.is_empty() && part.chars().all(|c| BREAKS.contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(parts: &[&str], cursor: usize) -> (Vec<String>, usize) {
        let parts: Vec<OsString> = parts.iter().map(OsString::from).collect();
        let (words, index) = join(&parts, cursor);
        let words = words.iter().map(|word| word.to_string_lossy().into_owned());
        (words.collect(), index)
    }

    #[test]
    fn parts_of_a_word_are_joined() {
        for (parts, cursor, words, index) in [
            (
                &["operating", "why", "po"][..],
                2,
                &["operating", "why", "po"][..],
                2,
            ),
            (
                &["operating", "why", "--namespace", "=", "shop", "pod/"],
                5,
                &["operating", "why", "--namespace=shop", "pod/"],
                3,
            ),
            (
                &["operating", "--context", "=", ""],
                3,
                &["operating", "--context="],
                1,
            ),
            (
                &["operating", "--context", "="],
                2,
                &["operating", "--context="],
                1,
            ),
            (
                &[
                    "operating",
                    "--context",
                    "=",
                    "arn",
                    ":",
                    "aws",
                    ":",
                    "eks",
                    "x",
                ],
                7,
                &["operating", "--context=arn:aws:eks", "x"],
                1,
            ),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(joined(parts, cursor), (words, index), "{parts:?}");
        }
    }

    #[test]
    fn suggestions_lack_what_bash_keeps() {
        let cut = |all: &str, current: &str| cut(all, OsStr::new(current));
        assert_eq!(cut("pod/a\npod/b", "pod/"), "pod/a\npod/b");
        assert_eq!(cut("--context=east", "--context=ea"), "east");
        assert_eq!(cut("--context=arn:aws:eks", "--context=arn:a"), "aws:eks");
    }
}
