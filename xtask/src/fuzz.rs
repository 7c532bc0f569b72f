//! `cargo xtask fuzz`: the targets of `fuzz/targets` under libFuzzer.
//!
//! All targets are one program, so that it is linked once; an environment variable names the target. Inputs
//! with new coverage are stored outside the checkout and used again; `fuzz/corpus` contains only inputs that
//! people added.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use testbed::paths;

use crate::cargo;

/// Compiler flags that libFuzzer needs.
const INSTRUMENTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing";

/// What to run, and for how long.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Minutes for each target
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Targets; all by default
    targets: Vec<String>,
}

/// Runs the targets one after the other. A failing target stores its input in `fuzz/artifacts`, and the
/// others still run.
///
/// # Errors
/// When the program cannot be built, or a target is unknown.
pub fn run(args: &Args) -> Result<ExitCode> {
    let fuzz = paths::repository().join("fuzz");
    let known = targets(&fuzz.join("corpus"))?;
    if let Some(unknown) = args.targets.iter().find(|target| !known.contains(target)) {
        bail!(
            "there is no target {unknown}: name some of {}",
            known.join(", ")
        );
    }
    let program = build(&fuzz)?;
    let targets = if args.targets.is_empty() {
        &known
    } else {
        &args.targets
    };
    let seconds = (args.minutes * 60.0).ceil().max(1.0);
    let mut failed = Vec::new();
    for target in targets {
        eprintln!("==> {target}");
        if !fuzz_one(&fuzz, &program, target, seconds)? {
            failed.push(target.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "failed: {}; add the input in fuzz/artifacts to fuzz/corpus when it is mended",
        failed.join(", ")
    );
    Ok(ExitCode::FAILURE)
}

fn build(fuzz: &Path) -> Result<PathBuf> {
    let target = host()?;
    let directory = paths::repository().join("target/fuzz");
    let status = cargo::command()
        .args(["build", "--release", "--locked", "--bin", "fuzz"])
        // With an explicit target triple, build scripts and macros are compiled without instrumentation.
        .args(["--target", &target, "--target-dir"])
        .arg(&directory)
        .env("RUSTFLAGS", INSTRUMENTED)
        .current_dir(fuzz)
        .stdin(Stdio::null())
        .status()
        .context("starting cargo build")?;
    if !status.success() {
        bail!("the fuzz targets do not build; the messages above say why");
    }
    Ok(directory.join(target).join("release/fuzz"))
}

fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output();
    let text = String::from_utf8(output.context("starting rustc")?.stdout)?;
    let line = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(line.context("rustc -vV names no host")?.to_owned())
}

fn fuzz_one(fuzz: &Path, program: &Path, target: &str, seconds: f64) -> Result<bool> {
    let grown = paths::cache()?.join("fuzz").join(target);
    let artifacts = fuzz.join("artifacts");
    fs::create_dir_all(&grown)?;
    fs::create_dir_all(&artifacts)?;
    let status = Command::new(program)
        .arg(&grown)
        .arg(fuzz.join("corpus").join(target))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"])
        .arg(format!(
            "-artifact_prefix={}/{target}-",
            artifacts.display()
        ))
        .env("FUZZ_TARGET", target)
        .stdin(Stdio::null())
        .status()
        .context("starting the fuzz targets")?;
    Ok(status.success())
}

fn targets(corpus: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(corpus).with_context(|| format!("reading {}", corpus.display()))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
