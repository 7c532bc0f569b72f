//! The programs of a plane, built once from Go modules and cached outside the checkout.

mod go;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum;

use crate::paths;
use go::{Recipe, Source};

/// Environment variable with the default [`Kubernetes`] of the planes of a process.
pub const KUBERNETES_VARIABLE: &str = "OPERATING_KUBERNETES";

/// Version of Kubernetes of a plane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Kubernetes {
    /// The version on which all tests run.
    #[default]
    #[value(name = "1.36")]
    Newest,
    /// The oldest version on which the guarantee holds.
    #[value(name = "1.33")]
    Oldest,
}

impl Kubernetes {
    /// As `kubectl version` prints it.
    #[must_use]
    pub const fn version(self) -> &'static str {
        match self {
            Kubernetes::Newest => "v1.36.3",
            Kubernetes::Oldest => "v1.33.13",
        }
    }

    /// Major and minor version, as a command line names it.
    #[must_use]
    pub const fn minor(self) -> &'static str {
        match self {
            Kubernetes::Newest => "1.36",
            Kubernetes::Oldest => "1.33",
        }
    }

    /// The version that [`KUBERNETES_VARIABLE`] names, or the newest.
    ///
    /// # Errors
    /// If the variable names an unknown version.
    pub fn of_environment() -> Result<Self> {
        match std::env::var(KUBERNETES_VARIABLE) {
            Ok(text) if !text.is_empty() => Kubernetes::from_str(&text, false)
                .map_err(|_| anyhow!("{KUBERNETES_VARIABLE} is {text:?}: set it to 1.36 or 1.33")),
            _ => Ok(Kubernetes::default()),
        }
    }
}
/// Version of kwok, which simulates the kubelets.
pub const KWOK_VERSION: &str = "v0.8.0";

/// Version of Helm, which installs the chart.
pub const HELM_VERSION: &str = "v4.3.1";

/// etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one binary.
///
/// # Errors
/// If Go is missing or the build fails; the message contains the end of the compiler's output.
pub fn controlplane(kubernetes: Kubernetes) -> Result<PathBuf> {
    let module = paths::repository().join("testbed/plane/controlplane");
    let (major, minor) = kubernetes
        .minor()
        .split_once('.')
        .context("a minor version")?;
    let (package, version) = ("k8s.io/component-base/version", kubernetes.version());
    ensure(&Recipe {
        name: "controlplane",
        description: "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubectl",
        takes: "about 4 minutes",
        source: match kubernetes {
            Kubernetes::Newest => Source::Module(module),
            Kubernetes::Oldest => Source::Variant(module, kubernetes.minor()),
        },
        ldflags: format!(
            "-s -w -X {package}.gitVersion={version} \
             -X {package}.gitMajor={major} -X {package}.gitMinor={minor}"
        ),
    })
}

/// kwok, the simulated kubelets.
///
/// # Errors
/// As [`controlplane`].
pub fn kwok() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "kwok",
        description: "kwok",
        takes: "about 2 minutes",
        source: Source::Package(format!("sigs.k8s.io/kwok/cmd/kwok@{KWOK_VERSION}")),
        ldflags: "-s -w".to_owned(),
    })
}

/// cert-manager's controllers and CA injector, and the directory of its CRDs beside them.
///
/// # Errors
/// As [`controlplane`].
pub fn cert_manager() -> Result<CertManager> {
    let module = paths::repository().join("testbed/plane/certmanager");
    let binary = ensure(&Recipe {
        name: "certmanager",
        description: "cert-manager",
        takes: "about 2 minutes",
        source: Source::Module(module.clone()),
        ldflags: "-s -w".to_owned(),
    })?;
    let crds = binary.with_file_name("crds");
    if !crds.is_dir() {
        let from = go::module_directory(&module, "github.com/cert-manager/cert-manager")?;
        copy_manifests(&from.join("deploy/crds"), &crds)?;
    }
    Ok(CertManager { binary, crds })
}

/// Prometheus's parser and engine of alarms, for the tests of alarms.
///
/// # Errors
/// As [`controlplane`].
pub fn alarms() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "alarms",
        description: "the evaluation of alarms",
        takes: "about 2 minutes",
        source: Source::Module(paths::repository().join("testbed/plane/alarms")),
        ldflags: "-s -w".to_owned(),
    })
}

/// promtool, which checks the rules of Prometheus and runs their unit tests. It is built without the clients of service
/// discovery, which these commands don't use.
///
/// # Errors
/// As [`controlplane`].
pub fn promtool() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "promtool",
        description: "promtool",
        takes: "about 2 minutes",
        source: Source::Dependency {
            module: paths::repository().join("testbed/plane/promtool"),
            package: "github.com/prometheus/prometheus/cmd/promtool",
            tags: "remove_all_sd",
        },
        ldflags: "-s -w".to_owned(),
    })
}

/// Caddy, a real proxy for the tests of adapters of load balancers.
///
/// # Errors
/// As [`controlplane`].
pub fn caddy() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "caddy",
        description: "Caddy",
        takes: "about 2 minutes",
        source: Source::Module(paths::repository().join("testbed/plane/caddy")),
        ldflags: "-s -w".to_owned(),
    })
}

/// Helm, for the tests of charts.
///
/// # Errors
/// As [`controlplane`].
pub fn helm() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "helm",
        description: "Helm",
        takes: "about 2 minutes",
        source: Source::Package(format!("helm.sh/helm/v4/cmd/helm@{HELM_VERSION}")),
        ldflags: "-s -w".to_owned(),
    })
}

/// The status of objects as Flux and Helm compute it (kstatus).
///
/// # Errors
/// As [`controlplane`].
pub fn kstatus() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "kstatus",
        description: "kstatus",
        takes: "less than a minute",
        source: Source::Module(paths::repository().join("testbed/plane/kstatus")),
        ldflags: "-s -w".to_owned(),
    })
}

/// The programs in Go of `examples/operator-go`.
pub const OPERATOR_PROGRAMS: [&str; 2] = ["operate", "cooperate"];

/// One of the [`OPERATOR_PROGRAMS`].
///
/// # Errors
/// As [`controlplane`].
pub fn operator_program(name: &'static str) -> Result<PathBuf> {
    let module = paths::repository().join("examples/operator-go");
    ensure(&Recipe {
        name,
        description: "a program of examples/operator-go",
        takes: "about a minute",
        source: Source::Program(module, name),
        ldflags: "-s -w".to_owned(),
    })
}

/// Version of the Lua interpreter that Argo CD embeds.
const LUA_VERSION: &str = "v1.1.2";

/// The Lua interpreter that Argo CD embeds, for the tests of its health scripts.
///
/// # Errors
/// As [`controlplane`].
pub fn lua() -> Result<PathBuf> {
    ensure(&Recipe {
        name: "glua",
        description: "the Lua interpreter",
        takes: "less than a minute",
        source: Source::Package(format!("github.com/yuin/gopher-lua/cmd/glua@{LUA_VERSION}")),
        ldflags: "-s -w".to_owned(),
    })
}

/// The parts of cert-manager that a plane needs.
#[derive(Debug, Clone)]
pub struct CertManager {
    /// Controllers and CA injector in one process.
    pub binary: PathBuf,
    /// Directory of the CRD manifests (`*.yaml`).
    pub crds: PathBuf,
}

/// Builds everything the tests need, so that no test waits for a compiler.
///
/// # Errors
/// As [`controlplane`].
pub fn build_all(kubernetes: Kubernetes) -> Result<()> {
    controlplane(kubernetes)?;
    kwok()?;
    cert_manager()?;
    alarms()?;
    promtool()?;
    caddy()?;
    helm()?;
    kstatus()?;
    lua()?;
    for program in OPERATOR_PROGRAMS {
        operator_program(program)?;
    }
    Ok(())
}

/// The cached binary of a recipe, built if it is missing. Processes that ask at the same time wait for one
/// build, by a lock file.
fn ensure(recipe: &Recipe) -> Result<PathBuf> {
    let bin = paths::cache()?.join("bin");
    let toolchain = go::version(recipe)?;
    let dir = bin.join(format!("{}-{}", recipe.name, recipe.key(&toolchain)?));
    let binary = dir.join(recipe.name);
    if binary.is_file() {
        return Ok(binary);
    }
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    // One lock for all recipes: two Go builds at once only slow each other down.
    let lock = File::create(bin.join("build.lock")).context("creating the build lock")?;
    if lock.try_lock().is_err() {
        eprintln!(
            "waiting for another process that builds {}",
            recipe.description
        );
        lock.lock().context("waiting for the build lock")?;
    }
    if !binary.is_file() {
        let fresh = go::build(recipe, &dir, Duration::from_secs(10))?;
        fs::rename(&fresh, &binary).with_context(|| format!("placing {}", binary.display()))?;
    }
    Ok(binary)
}

/// Copies the `*.yaml` files of a directory. The target appears only when it is complete.
fn copy_manifests(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a target with a parent")?;
    let staging = tempfile::tempdir_in(parent)?;
    let mut copied = 0;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let path = entry?.path();
        if let (Some(name), Some("yaml")) =
            (path.file_name(), path.extension().and_then(|e| e.to_str()))
        {
            // Written, not copied: files in the module cache are read-only.
            fs::write(staging.path().join(name), fs::read(&path)?)?;
            copied += 1;
        }
    }
    if copied == 0 {
        bail!("no CRD manifests in {}", from.display());
    }
    let staged = staging.keep();
    if let Err(error) = fs::rename(&staged, to) {
        fs::remove_dir_all(&staged)?;
        // Another process was faster, with the same content.
        if !to.is_dir() {
            return Err(error).with_context(|| format!("placing {}", to.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn manifests_are_copied_once_and_only_yaml() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        assert!(copy_manifests(&from, &to).is_err(), "nothing to copy");
        fs::write(from.join("a.yaml"), "kind: A").unwrap();
        fs::write(from.join("readme.md"), "no").unwrap();
        copy_manifests(&from, &to).unwrap();
        copy_manifests(&from, &to).unwrap();
        let names: Vec<_> = fs::read_dir(&to)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["a.yaml"]);
    }
}
