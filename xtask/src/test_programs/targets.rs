//! The tests of the workspace, as cargo knows them.

use std::collections::BTreeSet;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use testbed::paths;

use crate::cargo;

/// The used fields of `cargo metadata`.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
    /// Whether `cargo test` runs it.
    test: bool,
    #[serde(default, rename = "required-features")]
    required_features: Vec<String>,
}

/// The names of all integration tests of the workspace.
///
/// # Errors
/// When cargo fails, or when there are tests that no program would run.
pub fn integration_tests() -> Result<BTreeSet<String>> {
    let mut command = cargo::command();
    command
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .current_dir(paths::repository())
        .stderr(Stdio::inherit());
    let output = command.output().context("starting cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed; the messages above say why"
    );
    let metadata = serde_json::from_slice(&output.stdout).context("reading cargo metadata")?;
    choose(metadata)
}

fn choose(metadata: Metadata) -> Result<BTreeSet<String>> {
    let mut tests = BTreeSet::new();
    for target in metadata.packages.into_iter().flat_map(|p| p.targets) {
        let kinds: Vec<_> = target.kind.iter().map(String::as_str).collect();
        match kinds[..] {
            _ if !target.test => {}
            // `cargo test --lib --bins` runs these.
            ["lib" | "bin"] => {}
            ["test"] if target.required_features.is_empty() => drop(tests.insert(target.name)),
            _ => bail!(
                "cargo xtask test does not run the tests of the target {} ({kinds:?}, required features {:?}): \
                 make them an integration test without required features",
                target.name,
                target.required_features
            ),
        }
    }
    Ok(tests)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn choose_of(targets: Value) -> Result<BTreeSet<String>> {
        let metadata = json!({ "packages": [{ "targets": targets }] });
        choose(serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn integration_tests_are_chosen() {
        let tests = choose_of(json!([
            { "name": "operating", "kind": ["lib"], "test": true },
            { "name": "build-script-build", "kind": ["custom-build"], "test": false },
            { "name": "rules", "kind": ["test"], "test": true },
        ]));
        assert_eq!(tests.unwrap(), BTreeSet::from(["rules".to_owned()]));
    }

    #[test]
    fn target_whose_tests_no_program_runs_is_an_error() {
        for target in [
            json!({ "name": "crowd", "kind": ["example"], "test": true }),
            json!({ "name": "crowd", "kind": ["test"], "test": true, "required-features": ["f"] }),
        ] {
            let error = choose_of(json!([target])).unwrap_err();
            assert!(error.to_string().contains("crowd"), "{error}");
        }
    }
}
