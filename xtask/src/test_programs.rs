//! Runs the test programs of the workspace side by side, and names the slowest tests.
//!
//! Tests on a control plane wait most of the time, so one program alone leaves the processors idle.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use testbed::{paths, plane};

use crate::{cargo, slowest};

/// Number of programs that run at the same time. Each runs several tests at once (`.cargo/config.toml`).
const SIDE_BY_SIDE: usize = 2;

/// The same in an existing cluster, where each program installs the same webhooks.
const IN_EXISTING_CLUSTER: usize = 1;

/// The integration tests that take minutes, the longest first. They start first, so that none of them runs alone at
/// the end.
pub const LONG: [&str; 7] = [
    "guarantee",
    "collaset",
    "running_server",
    "owners",
    "ledger_model",
    "rules",
    "install_command",
];

/// Runs all tests of the workspace but those in documentation, and returns whether all passed. A failure stops no
/// other test. `host` is the target triple that cargo builds for.
///
/// Standard output gets the line of each test at once, and the remaining output of a program when it ends.
///
/// # Errors
/// When a program cannot be started or its output cannot be read.
pub fn run(host: &str) -> Result<bool> {
    let programs = in_order(&integration_tests()?);
    let threads = match plane::existing_cluster() {
        Some(_) => IN_EXISTING_CLUSTER,
        None => SIDE_BY_SIDE,
    };
    let outcomes = side_by_side(threads, programs, |program| program.run(host));
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    let failed = outcomes.iter().filter(|o| !o.passed).map(|o| &*o.name);
    let failed = failed.collect::<Vec<_>>().join(", ");
    let times = outcomes.iter().flat_map(|o| o.times.clone()).collect();
    let mut report = "the slowest tests:\n".to_owned();
    for (seconds, name) in slowest::slowest(times) {
        report += &format!("{seconds:>8.1} s  {name}\n");
    }
    if !failed.is_empty() {
        report += &format!("test programs that failed: {failed}\n");
    }
    print(report.as_bytes())?;
    Ok(failed.is_empty())
}

/// A test program, or the unit tests of all libraries and programs.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    name: String,
    /// The arguments of `cargo test` that choose it.
    targets: Vec<String>,
}

/// The result of a program.
struct Outcome {
    name: String,
    passed: bool,
    /// The tests and their seconds.
    times: Vec<(f64, String)>,
}

/// The used fields of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

/// The names of all integration tests of the workspace.
fn integration_tests() -> Result<BTreeSet<String>> {
    let mut command = cargo::command();
    command
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(paths::repository())
        .stderr(Stdio::inherit());
    let output = command.output().context("starting cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed; the messages above say why"
    );
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    let targets = metadata.packages.into_iter().flat_map(|p| p.targets);
    let tests = targets.filter(|t| t.kind == ["test"]);
    Ok(tests.map(|t| t.name).collect())
}

/// The long programs first, and then the unit tests and all other programs.
fn in_order(tests: &BTreeSet<String>) -> VecDeque<Program> {
    let long = LONG.into_iter().filter(|name| tests.contains(*name));
    let others = tests
        .iter()
        .map(String::as_str)
        .filter(|name| !LONG.contains(name));
    let units = Program {
        name: "libraries and programs".to_owned(),
        targets: vec!["--lib".to_owned(), "--bins".to_owned()],
    };
    let test = |name: &str| Program {
        name: name.to_owned(),
        targets: vec!["--test".to_owned(), name.to_owned()],
    };
    long.map(test)
        .chain([units])
        .chain(others.map(test))
        .collect()
}

/// Calls `run` for each item in order on so many threads.
fn side_by_side<I: Send, T: Send>(
    threads: usize,
    items: VecDeque<I>,
    run: impl Fn(I) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let queue = Mutex::new(items);
    let next = || queue.lock().ok()?.pop_front();
    let work = || std::iter::from_fn(next).map(&run).collect::<Vec<_>>();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|_| vec![Err(anyhow!("a thread that runs tests panicked"))])
        });
        results.flatten().collect()
    })
}

impl Program {
    /// Runs the tests of this program.
    fn run(self, host: &str) -> Result<Outcome> {
        eprintln!("==> tests of {} started", self.name);
        let started = Instant::now();
        // One pipe, so that the lines of cargo and of the tests keep their order.
        let (output, writer) = io::pipe().context("creating a pipe")?;
        let mut command = self.command(host);
        command
            .stdout(writer.try_clone().context("cloning a pipe")?)
            .stderr(writer);
        let child = command.spawn();
        let mut child = child.with_context(|| format!("starting {:?}", command.get_program()))?;
        // The command still holds the writing ends, without which the output ends with the program.
        drop(command);
        let mut times = Vec::new();
        let mut remaining = Vec::new();
        for line in BufReader::new(output).split(b'\n') {
            let mut line = line.context("reading the output of tests")?;
            line.push(b'\n');
            match slowest::time(String::from_utf8_lossy(&line).trim_end()) {
                Some((seconds, test)) => {
                    times.push((seconds, format!("{} {test}", self.name)));
                    print(&line)?;
                }
                None => remaining.extend(line),
            }
        }
        let passed = child.wait().context("waiting for tests")?.success();
        print(&remaining)?;
        let how = if passed { "passed" } else { "FAILED" };
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("==> tests of {} {how} after {seconds:.1} s", self.name);
        Ok(Outcome {
            name: self.name,
            passed,
            times,
        })
    }

    /// The `cargo test` of this program.
    ///
    /// It names the whole workspace, because cargo chooses the features of dependencies by the chosen packages.
    ///
    /// libtest prints the time of each test only with an unstable option, which a stable toolchain accepts if the
    /// variable `RUSTC_BOOTSTRAP` is set. Only the test binaries get this variable, through cargo's setting for a
    /// runner, because a build with it would compile every dependency again.
    fn command(&self, host: &str) -> Command {
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
            .stdin(Stdio::null());
        command
    }
}

/// Writes to standard output without the lines of another program in between.
fn print(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text)?;
    out.flush().context("writing the output of tests")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn long_tests_start_first_and_every_test_once() {
        let tests = integration_tests().unwrap();
        for name in LONG {
            assert!(
                tests.contains(name),
                "LONG names the test {name}, which does not exist"
            );
        }
        let order: Vec<_> = in_order(&tests).into_iter().map(|p| p.name).collect();
        assert!(
            order.iter().zip(LONG).all(|(name, long)| name == long),
            "{order:?}"
        );
        let names: BTreeSet<_> = order.iter().cloned().collect();
        assert_eq!(names.len(), order.len());
        assert!(tests.is_subset(&names));
    }

    #[test]
    fn each_item_runs_and_no_failure_stops_another() {
        let results = side_by_side(3, (0..20).collect(), |n| match n % 2 {
            0 => Ok(n),
            _ => Err(anyhow!("odd")),
        });
        let mut passed: Vec<_> = results.iter().flatten().copied().collect();
        passed.sort_unstable();
        assert_eq!(passed, (0..20).step_by(2).collect::<Vec<_>>());
        assert_eq!(results.len(), 20);
    }
}
