//! Files with parts of credentials.

use std::path::Path;

use traffic::AdapterError;

use crate::secret::Secret;

/// Largest file.
const LARGEST: usize = 64 * 1024;

/// Reads a file without the white space around its text.
///
/// # Errors
/// [`AdapterError::Transient`], since a file may be missing while it is replaced.
pub(crate) async fn read(field: &str, path: &Path) -> Result<Secret, AdapterError> {
    let failed = |reason: &str| {
        let path = path.display();
        AdapterError::Transient(format!("{field}: can't use the file {path}: {reason}"))
    };
    let text = tokio::fs::read(path)
        .await
        .map_err(|error| failed(&error.to_string()))?;
    if text.len() > LARGEST {
        return Err(failed("it is larger than 64 KiB"));
    }
    // A header can't have other characters, and the reason must not quote them.
    let text = String::from_utf8(text).map_err(|_| failed("it is not a text"))?;
    let text = text.trim();
    match text {
        "" => Err(failed("it is empty")),
        text if !text.bytes().all(|b| b.is_ascii_graphic()) => {
            Err(failed("it has white space or other characters inside"))
        }
        text => Ok(Secret::new(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn file_with_other_characters_is_refused_without_its_text() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "two words").unwrap();
        let error = read("credentials.x", file.path()).await.unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("credentials.x") && !text.contains("words"),
            "{text}"
        );
        std::fs::write(file.path(), vec![b'a'; LARGEST + 1]).unwrap();
        read("credentials.x", file.path()).await.unwrap_err();
    }
}
