//! What the parts of a PodTransitionRule may take in etcd, which stores at most 1.5 MiB of one object. Each part is bounded
//! where it is written, so that the others can always be written too.

use serde::Serialize;

/// What etcd takes of one object, key included.
const ETCD_REQUEST_LIMIT: usize = 1536 * 1024;

/// The spec; admission refuses a larger one.
pub const MAX_SPEC_BYTES: usize = 64 * 1024;

/// `status.ledger` with what the API server keeps in `managedFields` of each claim; admission refuses further claims.
pub const MAX_LEDGER_BYTES: usize = 768 * 1024;

/// `status.ruleStates`; what does not fit is left out.
pub const MAX_STATES_BYTES: usize = 256 * 1024;

/// `status.details`; what does not fit is left out.
pub const MAX_DETAILS_BYTES: usize = 32 * 1024;

/// `status.waitReasons`, apart from the entry that sums the others up.
pub const MAX_REASONS_BYTES: usize = 4 * 1024;

/// `status.targets`; what does not fit is left out.
pub const MAX_TARGETS_BYTES: usize = 32 * 1024;

/// The annotations of any object, by the API server's own limit. kubectl keeps the spec in one of them.
const MAX_ANNOTATION_BYTES: usize = 256 * 1024;

/// Conditions, labels, counts, and `managedFields` of the rest.
const MAX_OTHER_BYTES: usize = 96 * 1024;

const _: () = assert!(
    MAX_SPEC_BYTES
        + MAX_LEDGER_BYTES
        + MAX_STATES_BYTES
        + MAX_DETAILS_BYTES
        + MAX_REASONS_BYTES
        + MAX_TARGETS_BYTES
        + MAX_ANNOTATION_BYTES
        + MAX_OTHER_BYTES
        <= ETCD_REQUEST_LIMIT
);

/// How many bytes a value takes as JSON of the API server, which escapes more than is needed.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let written = serde_json::to_vec(value).unwrap_or_default();
    let escapes = written.iter().map(|byte| match byte {
        b'<' | b'>' | b'&' => "\\u003c".len() - 1,
        0xe2 => "\\u2028".len() - 3, // the first byte of U+2028
        _ => 0,
    });
    written.len() + escapes.sum::<usize>()
}

/// As many of the first items as fit; of the others, one is made at most.
pub fn take_fitting<T: Serialize>(items: impl IntoIterator<Item = T>, most: usize) -> Vec<T> {
    let mut left = most.saturating_sub("[]".len());
    let fits = |item: &T| match left.checked_sub(json_bytes(item) + ",".len()) {
        Some(rest) => {
            left = rest;
            true
        }
        None => false,
    };
    items.into_iter().take_while(fits).collect()
}

/// A text from outside as it may be shown: no characters that steer a terminal or turn the direction of writing, and at
/// most `longest` of the others.
pub fn truncate_text(text: &str, longest: usize) -> String {
    let shown = text.chars().filter_map(|c| match c {
        '\n' | '\r' | '\t' => Some(' '),
        '\u{61c}' | '\u{200e}' | '\u{200f}' => None,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => None,
        c => (!c.is_control()).then_some(c),
    });
    shown.take(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_counted_as_the_api_server_writes_them() {
        assert_eq!(json_bytes(&"ab"), r#""ab""#.len());
        assert_eq!(json_bytes(&"<&>"), r#""\u003c\u0026\u003e""#.len());
        assert_eq!(json_bytes(&"\u{2028}"), r#""\u2028""#.len());
        assert_eq!(json_bytes(&"\"\n\u{1}"), r#""\"\n\u0001""#.len());
    }

    #[test]
    fn items_fit_with_their_commas() {
        let items = vec!["aa", "bb", "cc"];
        assert_eq!(
            take_fitting(items.clone(), r#"["aa","bb"]"#.len() + 1),
            ["aa", "bb"]
        );
        assert_eq!(take_fitting(items.clone(), 8), ["aa"]);
        assert_eq!(take_fitting(items, 0), [""; 0]);
    }

    #[test]
    fn control_characters_are_removed_and_text_truncated() {
        assert_eq!(
            truncate_text("a\u{1b}[31m\nb\u{202e}c\0é", 100),
            "a[31m bcé"
        );
        assert_eq!(truncate_text("éé\u{7}éé", 3), "ééé");
    }
}
