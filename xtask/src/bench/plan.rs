//! The cost of the pure planner of CollaSets, which `planbench` counts and times in an optimised build.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use testbed::paths;
use tokio::process::Command;

use super::report::Report;
use crate::cargo;

/// Limit of the allocations for each Pod in the larger set, relative to the smaller set.
const MOST: f64 = 1.3;

/// A line of `planbench`: one plan.
#[derive(Debug, Deserialize)]
struct Line {
    /// State of the set.
    state: String,
    pods: usize,
    milliseconds: f64,
    allocations: usize,
    /// Bytes of all allocations together.
    bytes: usize,
}

/// Runs `planbench`, and adds a figure for each state of a set.
pub async fn measure(report: &mut Report) -> Result<()> {
    eprintln!("plans of CollaSets (the first time the benchmark is built for some minutes)");
    let lines = run(paths::repository(), &[]).await?;
    for pair in lines.chunks_exact(2) {
        let (few, many) = (&pair[0], &pair[1]);
        let figure = format!("plan of a CollaSet of {} Pods, {}", many.pods, many.state);
        let bar = format!("≤ {MOST} × in allocations and bytes");
        report.judge(figure, describe_costs(few, many), bar, is_linear(few, many));
    }
    Ok(())
}

/// Runs `planbench`, and adds the cost of a plan with PodDecorations, relative to the same set without them.
pub async fn measure_decorations(report: &mut Report) -> Result<()> {
    eprintln!("plans with PodDecorations (the first time the benchmark is built for some minutes)");
    let lines = run(paths::repository(), &["decorations"]).await?;
    let [plain, decorated] = lines.as_slice() else {
        bail!("planbench wrote {} lines instead of 2", lines.len());
    };
    let figure = format!(
        "plan of a CollaSet of {} Pods, {}",
        decorated.pods, decorated.state
    );
    report.add(figure, describe_ratios(plain, decorated));
    Ok(())
}

async fn run(repository: &Path, arguments: &[&str]) -> Result<Vec<Line>> {
    let mut command = Command::from(cargo::command());
    command
        .args([
            "run",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            "planbench",
            "--",
        ])
        .args(arguments)
        .current_dir(repository)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let running = command.spawn().context("starting cargo run")?;
    let output = running.wait_with_output().await?;
    if !output.status.success() {
        bail!("planbench failed; the messages above say why");
    }
    read(&String::from_utf8_lossy(&output.stdout))
}

fn read(output: &str) -> Result<Vec<Line>> {
    let read =
        |line| serde_json::from_str(line).with_context(|| format!("planbench wrote {line:?}"));
    output.lines().map(read).collect()
}

/// The ratio of a cost for each Pod in the larger set to that in the smaller set.
fn ratio(few: &Line, many: &Line, of: impl Fn(&Line) -> f64) -> f64 {
    let per_pod = |line: &Line| of(line) / line.pods as f64;
    per_pod(many) / per_pod(few)
}

fn is_linear(few: &Line, many: &Line) -> bool {
    let allocations = ratio(few, many, |line| line.allocations as f64);
    let bytes = ratio(few, many, |line| line.bytes as f64);
    allocations <= MOST && bytes <= MOST
}

fn describe_costs(few: &Line, many: &Line) -> String {
    format!(
        "{:.1} ms, {} allocations, {:.1} MiB; per Pod {:.2} × the time, {:.2} × the allocations, {:.2} × the bytes of {} Pods",
        many.milliseconds,
        many.allocations,
        many.bytes as f64 / f64::from(1 << 20),
        ratio(few, many, |line| line.milliseconds),
        ratio(few, many, |line| line.allocations as f64),
        ratio(few, many, |line| line.bytes as f64),
        few.pods,
    )
}

/// The cost of a plan with PodDecorations, and its ratio to that of the same set without them.
fn describe_ratios(plain: &Line, decorated: &Line) -> String {
    format!(
        "{:.1} ms instead of {:.1} ms; {:.2} × the time, {:.2} × the allocations, {:.2} × the bytes",
        decorated.milliseconds,
        plain.milliseconds,
        ratio(plain, decorated, |line| line.milliseconds),
        ratio(plain, decorated, |line| line.allocations as f64),
        ratio(plain, decorated, |line| line.bytes as f64),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lines(allocations: usize) -> Vec<Line> {
        let line = |pods: usize, allocations: usize| {
            format!(
                r#"{{"state":"settled","pods":{pods},"milliseconds":{},"allocations":{allocations},"bytes":{}}}"#,
                pods / 100,
                pods << 10,
            )
        };
        read(&[line(1_000, 2_000), line(10_000, allocations)].join("\n")).unwrap()
    }

    #[test]
    fn costs_of_a_plan_are_compared_per_pod() {
        let lines = lines(22_000);
        assert!(is_linear(&lines[0], &lines[1]));
        let expected = "100.0 ms, 22000 allocations, 9.8 MiB; \
                    per Pod 1.00 × the time, 1.10 × the allocations, 1.00 × the bytes of 1000 Pods";
        assert_eq!(describe_costs(&lines[0], &lines[1]), expected);
    }

    #[test]
    fn plan_that_is_not_linear_misses_the_bar() {
        let lines = lines(27_000);
        assert!(!is_linear(&lines[0], &lines[1]));
    }

    #[test]
    fn costs_with_decorations_are_compared_with_costs_without() {
        let output = r#"{"state":"plain","pods":1000,"milliseconds":2.0,"allocations":1000,"bytes":500}
{"state":"decorated","pods":1000,"milliseconds":5.0,"allocations":4000,"bytes":1000}"#;
        let lines = read(output).unwrap();
        let expected =
            "5.0 ms instead of 2.0 ms; 2.50 × the time, 4.00 × the allocations, 2.00 × the bytes";
        assert_eq!(describe_ratios(&lines[0], &lines[1]), expected);
    }

    #[test]
    fn output_that_is_no_figure_is_an_error() {
        assert!(read("warming up").is_err());
    }
}
