//! Maximum sizes of the parts of a PodTransitionRule in etcd, which stores at most 1.5 MiB of one object.
//! Each part is limited where it is written, so that the other parts can always be written, too.

use serde::Serialize;

/// Maximum size of an object in etcd, key included.
const ETCD_REQUEST_LIMIT: usize = 1536 * 1024;

/// The spec; admission refuses a larger spec.
pub const MAX_SPEC_BYTES: usize = 64 * 1024;

/// `status.ledger` together with the `managedFields` that the API server stores for each claim; admission
/// refuses further claims.
pub const MAX_LEDGER_BYTES: usize = 768 * 1024;

/// `status.ruleStates`; entries that do not fit are left out.
pub const MAX_STATES_BYTES: usize = 256 * 1024;

/// `status.details`; entries that do not fit are left out.
pub const MAX_DETAILS_BYTES: usize = 32 * 1024;

/// `status.waitReasons`, except the last entry, which sums up the reasons that are left out.
pub const MAX_REASONS_BYTES: usize = 4 * 1024;

/// `status.targets`; names that do not fit are left out.
pub const MAX_TARGETS_BYTES: usize = 32 * 1024;

/// The annotations of any object; the limit is the API server's. kubectl stores the spec in one of them.
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

/// The size of a value in bytes as JSON of the API server, which escapes more characters than JSON requires.
pub fn json_bytes(value: &impl Serialize) -> usize {
    let written = serde_json::to_vec(value).unwrap_or_default();
    let escapes = written.iter().map(|byte| match byte {
        b'<' | b'>' | b'&' => "\\u003c".len() - 1,
        0xe2 => "\\u2028".len() - 3, // the first byte of U+2028
        _ => 0,
    });
    written.len() + escapes.sum::<usize>()
}

/// The first items, as many as fit. At most one further item is computed.
pub fn take_fitting<T: Serialize>(items: impl IntoIterator<Item = T>, most: usize) -> Vec<T> {
    let mut remaining = most.saturating_sub("[]".len());
    let fits = |item: &T| match remaining.checked_sub(json_bytes(item) + ",".len()) {
        Some(rest) => {
            remaining = rest;
            true
        }
        None => false,
    };
    items.into_iter().take_while(fits).collect()
}

/// A text from outside in a form that is safe to show: without characters that control a terminal or change
/// the direction of writing, and truncated to `longest` characters.
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
