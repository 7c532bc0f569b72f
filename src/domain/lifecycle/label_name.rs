//! Checks which texts can be a lifecycle ID, an operation type or a label value.

/// Longest name part of a label key, and longest label value, in bytes (Kubernetes).
const MAX_NAME_LENGTH: usize = 63;

/// The rule of Kubernetes for label names and label values, in words.
pub const NAME_RULE: &str =
    "use 1 to 63 of letters, digits, '-', '_' and '.', beginning and ending with a letter or digit";

/// Whether `text` is valid both as the name part of a label key and as a label value.
pub fn is_label_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= MAX_NAME_LENGTH
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}
