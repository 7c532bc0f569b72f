//! Runs tests, passes their output on, and names the slowest tests.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use testbed::paths;

/// Number of tests in the output.
const NAMED: usize = 10;

/// Runs `command`, a `cargo test`. Returns whether it succeeded.
///
/// libtest prints the time of each test only with an unstable option, which a stable toolchain accepts if the
/// variable `RUSTC_BOOTSTRAP` is set. Only the test binaries get this variable, through cargo's setting for a
/// runner, because a build with it would compile every dependency again.
///
/// # Errors
/// When the command cannot be started or its output cannot be read.
pub fn run(mut command: Command, host: &str) -> Result<bool> {
    let runner = format!(
        "CARGO_TARGET_{}_RUNNER",
        host.to_uppercase().replace(['-', '.'], "_")
    );
    let mut child = command
        .current_dir(paths::repository())
        .env(runner, "env RUSTC_BOOTSTRAP=1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    let mut slowest = Slowest::default();
    if let Some(output) = child.stdout.take() {
        let mut out = std::io::stdout().lock();
        for line in BufReader::new(output).split(b'\n') {
            let line = line.context("reading the output of the tests")?;
            let line = String::from_utf8_lossy(&line);
            slowest.read_line(&line);
            writeln!(out, "{line}")?;
        }
        writeln!(out, "the slowest tests:")?;
        for (seconds, name) in slowest.named() {
            writeln!(out, "{seconds:>8.1} s  {name}")?;
        }
    }
    Ok(child.wait()?.success())
}

/// The tests and their seconds.
#[derive(Debug, Default)]
struct Slowest(Vec<(f64, String)>);

impl Slowest {
    /// Reads a line such as `test counting::counts ... ok <1.234s>`.
    fn read_line(&mut self, line: &str) {
        let Some((name, rest)) = line
            .strip_prefix("test ")
            .and_then(|l| l.split_once(" ... "))
        else {
            return;
        };
        let time = rest
            .split_once('<')
            .and_then(|(_, time)| time.strip_suffix("s>"));
        if let Some(seconds) = time.and_then(|time| time.parse().ok()) {
            self.0.push((seconds, name.to_owned()));
        }
    }

    /// The slowest tests, the slowest first.
    fn named(mut self) -> Vec<(f64, String)> {
        self.0.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        self.0.truncate(NAMED);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_tests_are_named_by_their_times() {
        let mut slowest = Slowest::default();
        for line in [
            "running 3 tests",
            "test a::quick ... ok <0.001s>",
            "test b::slow ... ok <12.5s>",
            "test c::failed ... FAILED <3s>",
            "test d::ignored ... ignored",
            "test result: ok. 3 passed; finished in 12.50s",
        ] {
            slowest.read_line(line);
        }
        let named = slowest.named();
        let names: Vec<_> = named.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["b::slow", "c::failed", "a::quick"]);
    }

    #[test]
    fn at_most_ten_tests_are_named() {
        let mut slowest = Slowest::default();
        for n in 0..20 {
            slowest.read_line(&format!("test t{n} ... ok <{n}.0s>"));
        }
        let named = slowest.named();
        assert_eq!(named.len(), NAMED);
        assert_eq!(named.first().map(|(_, name)| name.as_str()), Some("t19"));
    }
}
