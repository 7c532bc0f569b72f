//! The percent-encoding of a text in a URL.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// The ASCII characters that are encoded: all but the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Encodes a text for a segment of a path, or for a key or a value of a query.
pub fn percent_encode(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, ENCODED)
}
