//! `cargo xtask test`: runs all checks that must pass before a change is merged.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use testbed::binaries::{self, KUBERNETES_VARIABLE, Kubernetes};
use testbed::paths;

use crate::{cargo, test_programs};

/// Version of cargo-deny, which checks licences and dependencies.
const CARGO_DENY: &str = "0.20.2";

/// What to check.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only format, lints, the unit tests of the library, and the integration tests that need neither a control
    /// plane nor minutes
    #[arg(long, conflicts_with_all = ["kubernetes", "arguments"])]
    fast: bool,
    /// Run tests alone, on planes of this version of Kubernetes
    #[arg(long, value_enum)]
    kubernetes: Option<Kubernetes>,
    /// Run tests alone, with these arguments of `cargo test`, for example `-- --test guarantee counted_pods::`
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Runs everything, or the tests that the arguments choose.
///
/// # Errors
/// As [`everything`].
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.fast {
        return run_steps(&[FORMAT, LINTS, ("tests without a control plane", fast_tests)]);
    }
    if args.kubernetes.is_none() && args.arguments.is_empty() {
        return everything();
    }
    let kubernetes = args.kubernetes.unwrap_or_default();
    binaries::build_all(kubernetes)?;
    let mut cargo = cargo::command();
    cargo
        // The whole workspace, as in the run of all tests, so that the dependencies have the same features.
        .args(["test", "--workspace", "--locked"])
        .args(&args.arguments)
        .env(KUBERNETES_VARIABLE, kubernetes.minor());
    Ok(match succeed(cargo)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs all steps. The tests come last, so that the last lines are their result.
///
/// # Errors
/// If a step cannot be started; a step that fails gives an exit code.
pub fn everything() -> Result<ExitCode> {
    run_steps(&[
        FORMAT,
        LINTS,
        ("lints of the release", release_lints),
        ("lock file of the fuzz targets", fuzz_lock),
        ("dependencies and licences", || {
            let mut deny = Command::new(cargo_deny()?);
            deny.args(["check", "bans", "licenses", "sources"]);
            succeed(deny)
        }),
        ("test control plane", || {
            binaries::build_all(Kubernetes::default()).map(|()| true)
        }),
        ("tests", all_tests),
    ])
}

/// A step of the checks.
type NamedStep = (&'static str, Step);

const FORMAT: NamedStep = ("format", || run_cargo(["fmt", "--all", "--check"]));
const LINTS: NamedStep = ("lints", || {
    let targets = ["clippy", "--workspace", "--all-targets", "--locked"];
    run_cargo(targets.into_iter().chain(["--", "-D", "warnings"]))
});

/// The lints of the code as a release compiles it, without debug assertions. Only our own code is checked anew.
fn release_lints() -> Result<bool> {
    let without_assertions = "profile.dev.package.operating.debug-assertions=false";
    run_cargo([
        "clippy",
        "--workspace",
        "--lib",
        "--bins",
        "--locked",
        "--config",
        without_assertions,
        "--",
        "-D",
        "warnings",
    ])
}

/// The tests in `tests` that need no control plane and take seconds.
const WITHOUT_PLANE: [&str; 11] = [
    "citations",
    "corpus",
    "crds",
    "generated",
    "import_circles",
    "layers",
    "lifecycle",
    "memory",
    "paths",
    "repetition",
    "server",
];

fn fast_tests() -> Result<bool> {
    let mut test = cargo::command();
    test.args(["test", "--locked", "--lib"]);
    for name in WITHOUT_PLANE {
        test.args(["--test", name]);
    }
    succeed(test)
}

fn all_tests() -> Result<bool> {
    let mut built = cargo::command();
    built.args(["test", "--workspace", "--locked", "--no-run"]);
    if !succeed(built)? {
        return Ok(false);
    }
    // Documentation tests accept no option of libtest, and their output is last.
    Ok(test_programs::run(&host()?)? && run_cargo(["test", "--workspace", "--locked", "--doc"])?)
}

/// The target triple that cargo builds for.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").output();
    let output = output.context("starting rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc -vV names no host")
}

/// Runs the steps in order and stops at the first that fails.
fn run_steps(steps: &[NamedStep]) -> Result<ExitCode> {
    for (at, (name, step)) in steps.iter().enumerate() {
        let started = Instant::now();
        eprintln!("==> {name}");
        let passed = step()?;
        let seconds = started.elapsed().as_secs_f64();
        let how = if passed { "passed" } else { "FAILED" };
        // The tests are the last step, so the output ends with their lines.
        if at + 1 < steps.len() || !passed {
            eprintln!("==> {name} {how} after {seconds:.1} s");
        }
        if !passed {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

type Step = fn() -> Result<bool>;

fn run_cargo(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<bool> {
    let mut command = cargo::command();
    command.args(args);
    succeed(command)
}

fn succeed(mut command: Command) -> Result<bool> {
    let status = command
        .current_dir(paths::repository())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    Ok(status.success())
}

/// Whether `fuzz/Cargo.lock` agrees with the manifests: no step builds the targets, so no other step would
/// fail.
fn fuzz_lock() -> Result<bool> {
    let mut metadata = cargo::command();
    metadata
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--manifest-path", "fuzz/Cargo.toml"])
        .stdout(Stdio::null());
    succeed(metadata)
}

/// cargo-deny of the pinned version; installed into the cache once.
fn cargo_deny() -> Result<PathBuf> {
    let root = paths::cache()?.join(format!("tools/cargo-deny-{CARGO_DENY}"));
    let binary = root.join("bin/cargo-deny");
    if binary.is_file() {
        return Ok(binary);
    }
    fs::create_dir_all(&root)?;
    eprintln!("installing cargo-deny {CARGO_DENY} (a few minutes, once)");
    let status = cargo::command()
        .args(["install", "cargo-deny", "--locked", "--quiet"])
        .args(["--version", CARGO_DENY, "--root"])
        .arg(&root)
        // cargo-deny is not part of this workspace: it uses neither its target directory nor its lints.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        // Built once, and run for a second at a time: its own full optimisation takes minutes more.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .stdin(Stdio::null())
        .status()
        .context("starting cargo install")?;
    if !status.success() {
        bail!("installing cargo-deny {CARGO_DENY} failed; the messages above say why");
    }
    Ok(binary)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The tests that need a control plane, programs in Go, or minutes, and the folders of `tests` without tests.
    const NOT_FAST: [&str; 24] = [
        "alarms",
        "check_command",
        "collaset",
        "crds_on_plane",
        "decorations",
        "documents",
        "gitops",
        "golden",
        "graceful_deletion",
        "guarantee",
        "helm",
        "install_command",
        "ledger_model",
        "monitoring",
        "operationjobs",
        "owners",
        "rules",
        "running_server",
        "steer",
        "takeover",
        "tasks",
        "topology_model",
        "traffic",
        "why",
    ];

    #[test]
    fn every_test_is_fast_or_known_to_be_slow() {
        let tests = fs::read_dir(paths::repository().join("tests")).unwrap();
        for entry in tests {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let is_known = WITHOUT_PLANE.contains(&&*name) || NOT_FAST.contains(&&*name);
            assert!(is_known, "give tests/{name} a place in xtask/src/check.rs");
        }
    }
}
