//! Programs that render objects from files of the checkout: Helm, and Kustomize as a part of kubectl.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::Result;
use serde_json::json;

use crate::binaries::{self, Kubernetes};
use crate::paths;

/// A command of Helm that reads no settings of this machine, and keeps its own in `home`.
///
/// # Errors
/// As [`binaries::controlplane`].
pub fn helm(home: &Path) -> Result<Command> {
    let mut command = Command::new(binaries::helm()?);
    command.env_remove("KUBECONFIG");
    for (name, below) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(name, home.join(below));
    }
    Ok(command)
}

/// The output of `kubectl kustomize` for `manifests` with these components.
///
/// # Errors
/// As [`binaries::controlplane`], and if a file can't be written.
pub fn kustomize(components: &[&str]) -> Result<Output> {
    // Kustomize accepts no absolute path; a folder below the repository has a relative path to the manifests.
    let dir = tempfile::tempdir_in(paths::repository().join("target"))?;
    let list = components.iter();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../../manifests"],
        "components": list.map(|c| format!("../../manifests/components/{c}")).collect::<Vec<_>>(),
    });
    std::fs::write(
        dir.path().join("kustomization.yaml"),
        kustomization.to_string(),
    )?;
    let output = Command::new(binaries::controlplane(Kubernetes::default())?)
        .args(["kubectl", "kustomize"])
        .arg(dir.path())
        .output();
    Ok(output?)
}
