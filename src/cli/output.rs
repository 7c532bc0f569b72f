//! Writes to standard output and standard error.

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

/// Writes a line to standard error. If nobody reads standard error, the line is dropped: the command goes on.
pub fn write_stderr(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}
