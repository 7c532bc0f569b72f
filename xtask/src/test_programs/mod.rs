//! Runs the test programs of the workspace side by side, and names the slowest tests.
//!
//! Tests on a control plane wait most of the time, so one program alone leaves the processors idle.

mod program;
mod slowest;
mod targets;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::thread;

use anyhow::{Result, anyhow};
use testbed::plane;

use program::{Outcome, Program, print};
use targets::integration_tests;

/// How many programs run at the same time, and how many tests of each. With more tests at a time on two cores,
/// the webhook calls of a storm of requests time out.
const SIDE_BY_SIDE: Parallelism = Parallelism {
    programs: 2,
    tests: 3,
};

/// The same in an existing cluster, where each program installs the same webhooks.
const IN_EXISTING_CLUSTER: Parallelism = Parallelism {
    programs: 1,
    tests: 6,
};

struct Parallelism {
    programs: usize,
    tests: usize,
}

/// The integration tests that take minutes, the longest first. They start first, so that none of them runs alone at
/// the end.
const LONG: [&str; 13] = [
    "guarantee",
    "collaset",
    "traffic",
    "decorations",
    "operationjobs",
    "running_server",
    "takeover",
    "owners",
    "ledger_model",
    "rules",
    "steer",
    "install_command",
    "tasks",
];

/// Runs all tests of the workspace but those in documentation, and returns whether all passed. A failure stops no
/// other test. `host` is the target triple that cargo builds for.
///
/// Standard output gets the line of each test at once, and the remaining output of a program when it ends, or last if
/// the program fails.
///
/// # Errors
/// When the list of tests cannot be read, or standard output cannot be written.
pub fn run(host: &str) -> Result<bool> {
    let programs = in_order(&integration_tests()?);
    let count = programs.len();
    let parallelism = match plane::existing_cluster() {
        Some(_) => IN_EXISTING_CLUSTER,
        None => SIDE_BY_SIDE,
    };
    let run = |program: Program| program.run(host, parallelism.tests);
    let outcomes = side_by_side(parallelism.programs, programs, run)?;
    if outcomes.len() != count {
        return Err(anyhow!("{} of {count} test programs ran", outcomes.len()));
    }
    let (report, passed) = report(outcomes);
    print(&report)?;
    Ok(passed)
}

/// The slowest tests, the output of the programs that failed, and whether all passed.
fn report(outcomes: Vec<Outcome>) -> (Vec<u8>, bool) {
    let (passed, failed): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|o| o.passed);
    let times = passed.iter().chain(&failed).flat_map(|o| o.times.clone());
    let mut report = "the slowest tests:\n".to_owned();
    for (seconds, name) in slowest::slowest(times.collect()) {
        report += &format!("{seconds:>8.1} s  {name}\n");
    }
    let mut report = report.into_bytes();
    for outcome in &failed {
        report.extend(format!("\ntests of {} FAILED:\n", outcome.name).bytes());
        report.extend(&outcome.unprinted);
    }
    (report, failed.is_empty())
}

/// The long programs first, and then the unit tests and all other programs.
fn in_order(tests: &BTreeSet<String>) -> VecDeque<Program> {
    let long = LONG.into_iter().filter(|name| tests.contains(*name));
    let others = tests.iter().map(String::as_str);
    let others = others.filter(|name| !LONG.contains(name));
    long.map(Program::integration_test)
        .chain([Program::unit_tests()])
        .chain(others.map(Program::integration_test))
        .collect()
}

/// Calls `run` for each item in order on so many threads.
fn side_by_side<I: Send, T: Send>(
    threads: usize,
    items: VecDeque<I>,
    run: impl Fn(I) -> T + Sync,
) -> Result<Vec<T>> {
    let queue = Mutex::new(items);
    let next = || queue.lock().ok()?.pop_front();
    let work = || std::iter::from_fn(next).map(&run).collect::<Vec<_>>();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::new();
        for thread in threads {
            let results = thread.join();
            all.extend(results.map_err(|_| anyhow!("a thread that runs tests panicked"))?);
        }
        Ok(all)
    })
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
    fn each_item_runs_once() {
        let mut results = side_by_side(3, (0..20).collect(), |n| n).unwrap();
        results.sort_unstable();
        assert_eq!(results, (0..20).collect::<Vec<_>>());
    }

    #[test]
    fn panic_of_one_run_is_an_error() {
        let run = |n| assert_ne!(n, 3, "a failure on purpose");
        let error = side_by_side(2, (0..5).collect(), run).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn one_failed_program_fails_the_run_and_its_output_is_last() {
        let outcome = |passed| Outcome {
            name: "p".to_owned(),
            passed,
            times: vec![(2.0, "p t".to_owned())],
            unprinted: b"the reason\n".to_vec(),
        };
        assert!(report(vec![outcome(true), outcome(true)]).1);
        let (text, passed) = report(vec![outcome(false), outcome(true)]);
        assert!(!passed);
        let text = String::from_utf8(text).unwrap();
        assert!(
            text.starts_with("the slowest tests:\n     2.0 s  p t\n"),
            "{text}"
        );
        assert!(text.ends_with("tests of p FAILED:\nthe reason\n"), "{text}");
    }
}
