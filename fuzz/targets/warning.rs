//! `Warning` headers of the API server.

use operating::fuzzing::warning;

/// The parser accepts any header. It reads a text that is quoted according to HTTP without a change.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Some(read) = warning(text) {
        assert!(read.len() < text.len());
    }
    let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
    let header = format!("299 - \"{quoted}\"");
    assert_eq!(warning(&header).as_deref(), Some(text));
}
