//! Standard output.

use std::io::Write;

use anyhow::Context;

/// Writes to standard output. A reader that has seen enough (`| head`) is no error.
pub fn write_stdout(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the output")
        }
        _ => Ok(()),
    }
}
