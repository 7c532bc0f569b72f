//! The files of `manifests/monitoring`: what kube-state-metrics and Prometheus make of them, and the dashboard.
//!
//! kube-state-metrics itself is not run. `state_metrics` evaluates its configuration by the documented rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod dashboard;
mod objects;
mod pages;
mod promtool;
mod queries;
mod schema;
mod state_metrics;
mod values;

// This program uses a part of the fixtures of CollaSets.
#[allow(dead_code)]
#[path = "../collaset/fixtures.rs"]
mod sets;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The rule files, without their ending.
const RULE_FILES: [&str; 2] = ["alarms", "object-alarms"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_norway::from_str(&read(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The alarms of a rule file.
fn alarms(file: &str) -> Vec<Value> {
    let object = yaml(&format!("manifests/monitoring/{file}.yaml"));
    let groups = object["spec"]["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array());
    rules.flatten().cloned().collect()
}

fn all_alarms() -> Vec<Value> {
    RULE_FILES.into_iter().flat_map(alarms).collect()
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    let found = value[field].as_str();
    found.unwrap_or_else(|| panic!("no text {field} in {value}"))
}

/// Runs a command of docs/monitoring.md in a directory that looks like the repository.
fn run_in_repository(directory: &Path, script: &str) {
    let link = directory.join("manifests");
    if !link.exists() {
        std::os::unix::fs::symlink(root().join("manifests"), link).unwrap();
    }
    let mut shell = Command::new("sh");
    shell.args(["-euc", script]).current_dir(directory);
    assert!(shell.status().unwrap().success(), "{script}");
}
