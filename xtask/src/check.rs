//! `cargo xtask test`: everything that must hold before a change is merged, in one command.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use testbed::binaries::{self, KUBERNETES_VARIABLE, Kubernetes};
use testbed::paths;

/// Version of the licence and dependency checker.
const CARGO_DENY: &str = "0.20.2";

/// What to check.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run tests alone, on planes of this version of Kubernetes
    #[arg(long, value_enum)]
    kubernetes: Option<Kubernetes>,
    /// Run tests alone, with these arguments of `cargo test`, for example `-- --test guarantee counting::`
    #[arg(last = true)]
    arguments: Vec<OsString>,
}

/// Runs everything, or the tests that the arguments choose.
///
/// # Errors
/// As [`everything`].
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.kubernetes.is_none() && args.arguments.is_empty() {
        return everything();
    }
    let kubernetes = args.kubernetes.unwrap_or_default();
    binaries::build_all(kubernetes)?;
    let mut cargo = Command::new(cargo_binary());
    cargo
        .args(["test", "--locked"])
        .args(&args.arguments)
        .env(KUBERNETES_VARIABLE, kubernetes.minor());
    Ok(match succeed(cargo)? {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs all steps in order and stops at the first that fails. The tests come last, so that the
/// last lines are their result.
///
/// # Errors
/// When a step cannot be run at all; one that fails gives an exit code.
pub fn everything() -> Result<ExitCode> {
    let steps: [(&str, Step); 7] = [
        ("format", || cargo(["fmt", "--all", "--check"])),
        ("lints", || {
            let targets = ["clippy", "--workspace", "--all-targets", "--all-features"];
            cargo(
                targets
                    .into_iter()
                    .chain(["--locked", "--", "-D", "warnings"]),
            )
        }),
        ("lock file of the fuzz targets", fuzz_lock),
        ("dependencies and licences", || {
            let mut deny = Command::new(cargo_deny()?);
            deny.args(["--all-features", "check", "bans", "licenses", "sources"]);
            succeed(deny)
        }),
        ("test control plane", || {
            binaries::build_all(Kubernetes::default()).map(|()| true)
        }),
        ("faults of tasks", || {
            let mut test = Command::new(cargo_binary());
            // Of the whole workspace, so that the next step finds the dependencies compiled.
            test.args(["test", "--workspace", "--locked", "--test", "tasks"]);
            test.args(["--features", "operating/faults"]);
            succeed(test)
        }),
        ("tests", || cargo(["test", "--workspace", "--locked"])),
    ];
    for (name, step) in steps {
        let started = Instant::now();
        eprintln!("==> {name}");
        let passed = step()?;
        let seconds = started.elapsed().as_secs_f64();
        let how = if passed { "passed" } else { "FAILED" };
        // Before the tests' own last lines there is nothing to add.
        if name != "tests" || !passed {
            eprintln!("==> {name} {how} after {seconds:.1} s");
        }
        if !passed {
            return Ok(ExitCode::FAILURE);
        }
    }
    Ok(ExitCode::SUCCESS)
}

type Step = fn() -> Result<bool>;

fn cargo(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Result<bool> {
    let mut cargo = Command::new(cargo_binary());
    cargo.args(args);
    succeed(cargo)
}

pub(crate) fn cargo_binary() -> PathBuf {
    // Set by the cargo that runs us, so that all steps use the same one.
    std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from)
}

fn succeed(mut command: Command) -> Result<bool> {
    let status = command
        .current_dir(paths::repository())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("starting {:?}", command.get_program()))?;
    Ok(status.success())
}

/// Whether `fuzz/Cargo.lock` has what the manifests ask for: no step builds the targets, so that nobody would notice.
fn fuzz_lock() -> Result<bool> {
    let mut metadata = Command::new(cargo_binary());
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
    let status = Command::new(cargo_binary())
        .args(["install", "cargo-deny", "--locked", "--quiet"])
        .args(["--version", CARGO_DENY, "--root"])
        .arg(&root)
        // It is no part of this workspace: neither its target directory nor its lints.
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS")
        // Built once, run for a second at a time: its own full optimisation takes minutes more.
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
