//! Writes to standard output.

use std::io::Write;

use anyhow::Context;

/// Writes a text to standard output. It is no error if the reader has closed the pipe (`| head`).
pub fn write_stdout(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the output")
        }
        _ => Ok(()),
    }
}
