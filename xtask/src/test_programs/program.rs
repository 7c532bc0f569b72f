//! One test program: how it is started, and what becomes of its output.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use testbed::{paths, plane};

use super::slowest;
use crate::cargo;

/// How long output is awaited after the end of a program. A process that a failed test leaves behind may hold the
/// pipes open for ever.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// A test program, or the unit tests of all libraries and programs.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    pub name: String,
    /// The arguments of `cargo test` that choose it.
    targets: Vec<String>,
}

/// The result of a program.
pub struct Outcome {
    pub name: String,
    pub passed: bool,
    /// The tests and their seconds.
    pub times: Vec<(f64, String)>,
    /// The output of a failed program without the lines of its tests.
    pub unprinted: Vec<u8>,
}

/// What a program has printed.
#[derive(Default)]
struct Output {
    times: Vec<(f64, String)>,
    /// All but the lines of tests.
    remaining: Vec<u8>,
    has_compiled: bool,
}

impl Program {
    pub fn integration_test(name: &str) -> Self {
        Program {
            name: name.to_owned(),
            targets: vec!["--test".to_owned(), name.to_owned()],
        }
    }

    /// The unit tests of all libraries and programs.
    pub fn unit_tests() -> Self {
        Program {
            name: "libraries and programs".to_owned(),
            targets: vec!["--lib".to_owned(), "--bins".to_owned()],
        }
    }

    /// Runs the tests, `threads` at a time. A program that cannot be run has failed.
    pub fn run(self, host: &str, threads: usize) -> Outcome {
        eprintln!("==> tests of {} started", self.name);
        let started = Instant::now();
        let mut output = Output::default();
        let mut passed = self
            .run_into(host, threads, &mut output)
            .unwrap_or_else(|error| {
                let error = format!("the tests of {} could not be run: {error:#}\n", self.name);
                output.remaining.extend(error.into_bytes());
                false
            });
        if output.has_compiled {
            let changed = "the sources have changed since the tests were built: start again\n";
            output.remaining.extend(changed.as_bytes());
            passed = false;
        }
        if passed {
            let printed = print(&output.remaining);
            output.remaining.clear();
            passed = printed.is_ok();
        }
        let how = if passed { "passed" } else { "FAILED" };
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("==> tests of {} {how} after {seconds:.1} s", self.name);
        Outcome {
            passed,
            times: output.times,
            unprinted: output.remaining,
            name: self.name,
        }
    }

    fn run_into(&self, host: &str, threads: usize, output: &mut Output) -> Result<bool> {
        let mut log = self.create_log()?;
        let mut command = self.command(host, threads)?;
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {:?}", command.get_program()))?;
        let lines = read_lines(&mut child);
        let mut ended: Option<(bool, Instant)> = None;
        loop {
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    log.write_all(&line).context("writing the log of tests")?;
                    if let Some(line) = output.add_line(&self.name, line) {
                        print(line.as_bytes())?;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(child.wait().context("waiting for tests")?.success());
                }
                Err(RecvTimeoutError::Timeout) => {
                    if ended.is_none() {
                        let status = child.try_wait().context("waiting for tests")?;
                        ended = status.map(|status| (status.success(), Instant::now()));
                    }
                }
            }
            if let Some((passed, at)) = ended
                && at.elapsed() >= LAST_WORDS
            {
                return Ok(passed);
            }
        }
    }

    /// The file that gets all output at once, for a run that hangs or is interrupted.
    fn create_log(&self) -> Result<File> {
        let directory = paths::repository().join("target/test-logs");
        fs::create_dir_all(&directory)
            .with_context(|| format!("creating {}", directory.display()))?;
        let path = directory.join(format!("{}.log", self.name.replace(' ', "-")));
        File::create(&path).with_context(|| format!("creating {}", path.display()))
    }

    /// The `cargo test` of this program.
    ///
    /// It names the whole workspace, because cargo chooses the features of dependencies by the chosen packages.
    ///
    /// libtest prints the time of each test only with an unstable option, which a stable toolchain accepts if the
    /// variable `RUSTC_BOOTSTRAP` is set. Only the test binaries get this variable, through cargo's setting for a
    /// runner, because a build with it would compile every dependency again.
    fn command(&self, host: &str, threads: usize) -> Result<Command> {
        let runner = format!(
            "CARGO_TARGET_{}_RUNNER",
            host.to_uppercase().replace(['-', '.'], "_")
        );
        let mut command = cargo::command();
        command
            .args(["test", "--workspace", "--locked", "--no-fail-fast"])
            .args(&self.targets)
            .args(["--", "-Z", "unstable-options", "--report-time"])
            .current_dir(paths::repository())
            .env(runner, "env RUSTC_BOOTSTRAP=1")
            .env("RUST_TEST_THREADS", threads.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(kubeconfig) = plane::existing_cluster() {
            // cargo starts each program in the directory of its package.
            command.env("KUBECONFIG", std::path::absolute(kubeconfig)?);
        }
        Ok(command)
    }
}

impl Output {
    /// Returns what is to be printed at once.
    fn add_line(&mut self, program: &str, line: Vec<u8>) -> Option<String> {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        self.has_compiled |= text.trim_start().starts_with("Compiling ");
        if let Some((seconds, test)) = slowest::time(text) {
            self.times.push((seconds, format!("{program} {test}")));
        }
        // Also `test NAME has been running for over 60 seconds`, which names a test that hangs.
        if text.starts_with("test ") && !text.starts_with("test result: ") {
            return Some(format!("{text}  [{program}]\n"));
        }
        self.remaining.extend(line);
        None
    }
}

/// The lines of both outputs of a program, each with its line feed.
fn read_lines(child: &mut Child) -> Receiver<Vec<u8>> {
    let (sender, lines) = mpsc::channel();
    if let Some(output) = child.stdout.take() {
        send_lines(output, sender.clone());
    }
    if let Some(errors) = child.stderr.take() {
        send_lines(errors, sender);
    }
    lines
}

fn send_lines(output: impl Read + Send + 'static, sender: Sender<Vec<u8>>) {
    thread::spawn(move || {
        for mut line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            line.push(b'\n');
            if sender.send(line).is_err() {
                return;
            }
        }
    });
}

/// Writes to standard output without the lines of another program in between.
pub fn print(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush().context("writing the output of tests")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The output, and what is printed at once.
    fn output_of(lines: &[&str]) -> (Output, String) {
        let mut output = Output::default();
        let lines = lines.iter().map(|line| format!("{line}\n").into_bytes());
        let printed = lines.filter_map(|line| output.add_line("rules", line));
        let printed = printed.collect();
        (output, printed)
    }

    #[test]
    fn lines_of_tests_are_printed_at_once_and_others_kept() {
        let (output, printed) = output_of(&[
            "running 2 tests",
            "test a ... ok <1.5s>",
            "test b has been running for over 60 seconds",
            "test result: ok. 2 passed",
        ]);
        assert_eq!(
            String::from_utf8(output.remaining).unwrap(),
            "running 2 tests\ntest result: ok. 2 passed\n"
        );
        assert_eq!(
            printed,
            "test a ... ok <1.5s>  [rules]\ntest b has been running for over 60 seconds  [rules]\n"
        );
        assert_eq!(output.times, [(1.5, "rules a".to_owned())]);
        assert!(!output.has_compiled);
    }

    #[test]
    fn build_during_the_run_is_noticed() {
        let (output, _) = output_of(&["   Compiling operating v0.1.0"]);
        assert!(output.has_compiled);
    }

    #[test]
    fn program_that_cannot_be_started_has_failed() {
        let program = Program::integration_test("no_such_test");
        let outcome = program.run("x86_64-unknown-linux-gnu", 1);
        assert!(!outcome.passed);
        let output = String::from_utf8(outcome.unprinted).unwrap();
        assert!(output.contains("no_such_test"), "{output}");
    }
}
