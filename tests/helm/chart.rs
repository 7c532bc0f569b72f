//! Runs Helm, and reads what it and Kustomize render.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use operating::cli::install::names;
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::binaries::{self, Kubernetes};

/// Objects by kind and name.
pub type Objects = BTreeMap<String, Value>;

/// The checkout.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The chart of this checkout.
pub fn chart() -> PathBuf {
    root().join("charts/operating")
}

/// A command of Helm that reads no settings of this machine.
pub fn helm(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binaries::helm().unwrap());
    command.args(args).env_remove("KUBECONFIG");
    for (name, below) in [
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        command.env(name, home.join(below));
    }
    command
}

/// `helm template` with values in the form of YAML or JSON.
pub fn template(chart: &Path, namespace: &str, values: &str) -> Result<Objects, String> {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("values.yaml");
    std::fs::write(&file, values).unwrap();
    let output = helm(home.path(), &["template", "operating"])
        .arg(chart)
        .args(["--namespace", namespace, "--values"])
        .arg(file)
        .output()
        .unwrap();
    objects(&output)
}

/// `manifests` with these components.
pub fn kustomize(components: &[&str]) -> Objects {
    // Kustomize accepts no absolute path; a folder below the repository has a relative path to the manifests.
    let dir = tempfile::tempdir_in(root().join("target")).unwrap();
    let list = components.iter();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["../../manifests"],
        "components": list.map(|c| format!("../../manifests/components/{c}")).collect::<Vec<_>>(),
    });
    let file = dir.path().join("kustomization.yaml");
    std::fs::write(file, kustomization.to_string()).unwrap();
    let output = Command::new(binaries::controlplane(Kubernetes::default()).unwrap())
        .args(["kubectl", "kustomize"])
        .arg(dir.path())
        .output()
        .unwrap();
    objects(&output).unwrap()
}

/// The objects that a program has printed, or its error.
fn objects(output: &Output) -> Result<Objects, String> {
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let mut all = Objects::new();
    for document in serde_norway::Deserializer::from_slice(&output.stdout) {
        let object = Value::deserialize(document).unwrap();
        if object.is_null() {
            continue;
        }
        let former = all.insert(key(&object), object);
        assert_eq!(former, None, "an object is rendered twice");
    }
    Ok(all)
}

fn key(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{} {name}", object["kind"].as_str().unwrap())
}

/// The container of the server.
pub fn container(objects: &Objects) -> &Value {
    let pod = &objects["Deployment operating"]["spec"]["template"]["spec"];
    &pod["containers"][0]
}

/// The namespace of `manifests`.
pub const NAMESPACE: &str = names::NAMESPACE;
