//! Runs Helm, and reads what it and Kustomize render.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;

use operating::cli::install::names;
use serde::Deserialize;
use serde_json::Value;
use testbed::rendering;

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

/// `helm template` with values in the form of YAML or JSON.
pub fn template(chart: &Path, namespace: &str, values: &str) -> Result<Objects, String> {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("values.yaml");
    std::fs::write(&file, values).unwrap();
    let output = rendering::helm(home.path())
        .unwrap()
        .args(["template", "operating"])
        .arg(chart)
        .args(["--namespace", namespace, "--values"])
        .arg(file)
        .output()
        .unwrap();
    objects(&output)
}

/// `manifests` with these components.
pub fn kustomize(components: &[&str]) -> Objects {
    let output = rendering::kustomize(components).unwrap();
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
