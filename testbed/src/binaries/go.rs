//! Builds of Go programs: recipes, cache keys and progress messages.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ring::digest;

/// Number of lines of the compiler's output that an error shows.
const TAIL: usize = 20;

/// The recipe of a binary.
#[derive(Debug)]
pub struct Recipe {
    /// File name of the binary.
    pub name: &'static str,
    /// Name of the program in progress messages.
    pub description: &'static str,
    /// Duration of a first build on two cores.
    pub takes: &'static str,
    /// Source of the program.
    pub source: Source,
    /// Value of `-ldflags`.
    pub ldflags: String,
}

/// Source of a binary.
#[derive(Debug)]
pub enum Source {
    /// A module in this checkout: go.mod, go.sum and `*.go` in one directory.
    Module(PathBuf),
    /// The `*.go` of such a module with the go.mod and go.sum of a directory below it: other versions of its
    /// dependencies.
    Variant(PathBuf, &'static str),
    /// A main package of a dependency of a module in this checkout, with these build tags. The go.mod of the module
    /// pins the versions, also where the go.mod of the dependency has directives that forbid a [`Source::Package`].
    Dependency {
        module: PathBuf,
        package: &'static str,
        tags: &'static str,
    },
    /// The package in a directory of a module in this checkout.
    Program(PathBuf, &'static str),
    /// A published main package, `path@version`; the Go checksum database pins its content.
    Package(String),
}

impl Recipe {
    /// Cache key: 16 hex digits of a hash over all inputs of the build.
    pub fn key(&self, toolchain: &str) -> Result<String> {
        let mut parts = vec![toolchain.as_bytes().to_vec(), self.ldflags.clone().into()];
        match &self.source {
            Source::Package(package) => parts.push(package.clone().into()),
            Source::Module(dir) => parts.extend(contents(dir, &["go", "mod", "sum"])?),
            Source::Dependency {
                module,
                package,
                tags,
            } => {
                parts.extend([(*package).into(), (*tags).into()]);
                parts.extend(contents(module, &["mod", "sum"])?);
            }
            Source::Variant(dir, variant) => {
                parts.extend(contents(dir, &["go"])?);
                parts.extend(contents(&dir.join(variant), &["mod", "sum"])?);
            }
            Source::Program(dir, package) => {
                parts.extend(contents(dir, &["mod", "sum"])?);
                parts.extend(contents(&dir.join(package), &["go"])?);
            }
        }
        let mut hash = digest::Context::new(&digest::SHA256);
        for part in parts {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(&part);
        }
        let bytes = hash.finish();
        Ok(bytes.as_ref()[..8]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect())
    }

    fn directory(&self) -> PathBuf {
        match &self.source {
            Source::Module(dir)
            | Source::Variant(dir, _)
            | Source::Program(dir, _)
            | Source::Dependency { module: dir, .. } => dir.clone(),
            Source::Package(_) => std::env::temp_dir(),
        }
    }
}

/// The contents of the files of a directory with one of these extensions, in the order of their names.
fn contents(dir: &Path, extensions: &[&str]) -> Result<Vec<Vec<u8>>> {
    let listing =
        fs::read_dir(dir).with_context(|| format!("reading the Go module {}", dir.display()))?;
    let mut files = listing
        .map(|entry| entry.map(|e| e.path()))
        .collect::<std::io::Result<Vec<_>>>()?;
    files.retain(|path| {
        let extension = path.extension().and_then(|e| e.to_str());
        extension.is_some_and(|e| extensions.contains(&e))
    });
    files.sort();
    let read = files.into_iter().map(fs::read);
    Ok(read.collect::<std::io::Result<_>>()?)
}

/// The Go toolchain that would build the recipe (`go1.26.8 linux/amd64`).
pub fn version(recipe: &Recipe) -> Result<String> {
    let mut go = Command::new("go");
    go.current_dir(recipe.directory())
        .args(["env", "GOVERSION", "GOOS", "GOARCH"]);
    Ok(output(&mut go)?.replace('\n', " "))
}

/// Directory of a dependency in the module cache.
pub fn module_directory(module: &Path, dependency: &str) -> Result<PathBuf> {
    // A machine that got the binary from a cache may not have the sources yet.
    let mut download = Command::new("go");
    output(
        download
            .current_dir(module)
            .args(["mod", "download", dependency]),
    )?;
    let mut list = Command::new("go");
    list.current_dir(module)
        .args(["list", "-m", "-f", "{{.Dir}}", dependency]);
    Ok(PathBuf::from(output(&mut list)?))
}

fn output(command: &mut Command) -> Result<String> {
    let result = command
        .stdin(Stdio::null())
        .output()
        .map_err(missing(command))?;
    if !result.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&result.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&result.stdout).trim().to_owned())
}

fn missing(command: &Command) -> impl FnOnce(std::io::Error) -> anyhow::Error {
    let program = command.get_program().to_string_lossy().into_owned();
    move |error| explain(&program, error)
}

fn explain(program: &str, error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::NotFound {
        anyhow::anyhow!(
            "`{program}` is not on the PATH. The test control plane is built from Go modules: \
             install Go 1.26 or newer from https://go.dev/dl/ and try again"
        )
    } else {
        anyhow::Error::new(error).context(format!("starting `{program}`"))
    }
}

/// Builds into a temporary file in `dir` and returns its path. Reports progress on standard error at once and
/// after every `tick`.
pub fn build(recipe: &Recipe, dir: &Path, tick: Duration) -> Result<PathBuf> {
    let scratch = dir.join(format!("build-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    let mut go = Command::new("go");
    go.current_dir(recipe.directory());
    match &recipe.source {
        Source::Module(_) | Source::Variant(..) | Source::Program(..) => {
            let target = scratch.join(recipe.name);
            go.arg("build");
            if let Source::Variant(_, variant) = &recipe.source {
                go.arg(format!("-modfile={variant}/go.mod"));
            }
            go.args(["-trimpath", "-ldflags", &recipe.ldflags, "-o"])
                .arg(target)
                .arg(match &recipe.source {
                    Source::Program(_, package) => format!("./{package}"),
                    _ => ".".to_owned(),
                });
        }
        Source::Dependency { package, tags, .. } => {
            go.args(["build", "-trimpath", "-tags", tags])
                .args(["-ldflags", &recipe.ldflags, "-o"])
                .arg(scratch.join(recipe.name))
                .arg(package);
        }
        Source::Package(package) => {
            go.env("GOBIN", &scratch)
                .args(["install", "-trimpath", "-ldflags", &recipe.ldflags])
                .arg(package);
        }
    }
    eprintln!("building {} ({}, once)", recipe.description, recipe.takes);
    let started = Instant::now();
    let (status, tail) = run_with_ticker(&mut go, tick, || {
        eprintln!("  still building {}: {}", recipe.name, elapsed(started));
    })?;
    if !status.success() {
        fs::remove_dir_all(&scratch)?;
        bail!(
            "building {} failed:\n{}",
            recipe.description,
            tail.join("\n")
        );
    }
    eprintln!("built {} in {}", recipe.name, elapsed(started));
    let target = dir.join(format!("{}.new", recipe.name));
    fs::rename(scratch.join(recipe.name), &target)?;
    fs::remove_dir_all(&scratch)?;
    Ok(target)
}

fn run_with_ticker(
    command: &mut Command,
    tick: Duration,
    on_tick: impl Fn(),
) -> Result<(std::process::ExitStatus, Vec<String>)> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(missing(command))?;
    let stderr = child.stderr.take().context("the compiler's output")?;
    let (lines, received) = mpsc::sync_channel(64);
    let reader = thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let mut tail = Vec::new();
    loop {
        match received.recv_timeout(tick) {
            Ok(line) => {
                tail.push(line);
                if tail.len() > TAIL {
                    tail.remove(0);
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => on_tick(),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait()?;
    // The reader has ended with the pipe.
    let _ = reader.join();
    Ok((status, tail))
}

fn elapsed(since: Instant) -> String {
    let seconds = since.elapsed().as_secs();
    format!("{}:{:02} min", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn recipe(dir: &Path, ldflags: &str) -> Recipe {
        Recipe {
            name: "x",
            description: "x",
            takes: "a second",
            source: Source::Module(dir.into()),
            ldflags: ldflags.into(),
        }
    }

    #[test]
    fn key_covers_sources_flags_and_toolchain_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("main.go"), "package main").unwrap();
        fs::write(dir.path().join("go.mod"), "module x").unwrap();
        let key = |flags: &str, go: &str| recipe(dir.path(), flags).key(go).unwrap();
        let first = key("-s", "go1.26");
        assert_eq!(first.len(), 16);
        assert_eq!(first, key("-s", "go1.26"));
        assert_ne!(first, key("-w", "go1.26"));
        assert_ne!(first, key("-s", "go1.27"));
        fs::write(dir.path().join("notes.md"), "text").unwrap();
        assert_eq!(first, key("-s", "go1.26"));
        fs::write(dir.path().join("go.sum"), "sum").unwrap();
        assert_ne!(first, key("-s", "go1.26"));
    }

    #[test]
    fn variant_leaves_the_key_of_its_module_alone() {
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("old");
        fs::create_dir(&old).unwrap();
        fs::write(dir.path().join("main.go"), "package main").unwrap();
        fs::write(dir.path().join("go.mod"), "module x").unwrap();
        let module = recipe(dir.path(), "").key("go").unwrap();
        fs::write(old.join("go.mod"), "module x // old").unwrap();
        assert_eq!(recipe(dir.path(), "").key("go").unwrap(), module);
        let variant = || {
            let source = Source::Variant(dir.path().into(), "old");
            let recipe = recipe(dir.path(), "");
            Recipe { source, ..recipe }.key("go").unwrap()
        };
        let first = variant();
        assert_ne!(first, module);
        fs::write(dir.path().join("go.mod"), "module y").unwrap();
        assert_eq!(variant(), first, "the go.mod of the module is none of it");
        fs::write(dir.path().join("main.go"), "package main // new").unwrap();
        assert_ne!(variant(), first);
    }

    #[test]
    fn key_of_a_dependency_covers_package_tags_and_versions() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("go.mod"), "module x").unwrap();
        let key = |package, tags| {
            let module = dir.path().to_owned();
            let source = Source::Dependency {
                module,
                package,
                tags,
            };
            let recipe = recipe(dir.path(), "");
            Recipe { source, ..recipe }.key("go").unwrap()
        };
        let first = key("a/b", "t");
        assert_eq!(first, key("a/b", "t"));
        assert_ne!(first, key("a/c", "t"));
        assert_ne!(first, key("a/b", "u"));
        fs::write(dir.path().join("go.sum"), "sum").unwrap();
        assert_ne!(first, key("a/b", "t"));
    }

    #[test]
    fn key_of_a_program_leaves_the_other_programs_of_its_module_alone() {
        let dir = tempfile::tempdir().unwrap();
        for package in ["one", "two"] {
            fs::create_dir(dir.path().join(package)).unwrap();
            fs::write(dir.path().join(package).join("main.go"), "package main").unwrap();
        }
        let key = || {
            let source = Source::Program(dir.path().into(), "one");
            let recipe = recipe(dir.path(), "");
            Recipe { source, ..recipe }.key("go").unwrap()
        };
        let first = key();
        fs::write(dir.path().join("two/main.go"), "package main // new").unwrap();
        assert_eq!(key(), first);
        fs::write(dir.path().join("one/main.go"), "package main // new").unwrap();
        let second = key();
        assert_ne!(second, first);
        fs::write(dir.path().join("go.mod"), "module x").unwrap();
        assert_ne!(key(), second);
    }

    #[test]
    fn missing_go_names_remedy() {
        let error = output(&mut Command::new("go-that-is-nowhere")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("install Go 1.26"), "{text}");
    }

    #[test]
    fn failed_build_shows_end_of_output() {
        let mut sh = Command::new("sh");
        sh.args([
            "-c",
            "for i in $(seq 1 30); do echo line $i >&2; done; exit 3",
        ]);
        let (status, tail) = run_with_ticker(&mut sh, Duration::from_secs(60), || ()).unwrap();
        assert_eq!(status.code(), Some(3));
        assert_eq!(tail.len(), TAIL);
        assert_eq!(tail.last().map(String::as_str), Some("line 30"));
    }
}
