//! Files with parts of credentials.

use std::path::Path;

use traffic::AdapterError;

use crate::secret::Secret;

/// Largest file.
const LARGEST: u64 = 64 * 1024;

/// Reads a file without the white space around its text.
///
/// # Errors
/// [`AdapterError::Transient`], since a file may be missing while it is replaced.
pub(crate) async fn read(field: &str, path: &Path) -> Result<Secret, AdapterError> {
    // Without the path, since the owner of a Service reads the error.
    let failed = |reason: &str| {
        AdapterError::Transient(format!("the file of `{field}` can't be used: {reason}"))
    };
    let unreadable = |error: std::io::Error| failed(&error.kind().to_string());
    let size = tokio::fs::metadata(path).await.map_err(unreadable)?.len();
    if size > LARGEST {
        return Err(failed("it is larger than 64 KiB"));
    }
    let text = tokio::fs::read(path).await.map_err(unreadable)?;
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
            text.contains("`credentials.x`") && !text.contains("words"),
            "{text}"
        );
        std::fs::write(file.path(), vec![b'a'; 64 * 1024 + 1]).unwrap();
        read("credentials.x", file.path()).await.unwrap_err();
    }

    /// The owner of a Service reads the error.
    #[tokio::test]
    async fn error_does_not_show_the_path() {
        let path = Path::new("/private-name/x");
        let error = read("credentials.x", path).await.unwrap_err();
        assert!(!error.to_string().contains("private-name"), "{error}");
    }
}
