//! Scenarios of `tests/golden/lifecycle`: the state of a Pod after each write.
//!
//! A file contains a Pod and the steps on it, each a line of `do` with the state after it. `UPDATE=1` rewrites the
//! states. Read the difference before you commit it.

use std::fs;
use std::path::Path;

use operating::api::keys;
use operating::domain::lifecycle::operator;
use serde::{Deserialize, Serialize};

use crate::world::{FINALIZER, World};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    /// Description of the scenario.
    what: String,
    /// `serving`, `serving with traffic`, `bare`, `bare with traffic`, `new`, `new with traffic`.
    pod: String,
    steps: Vec<Step>,
}

/// A step and the state after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    #[serde(rename = "do")]
    action: String,
    /// Labels of the lifecycle in short form, see `World::labels`.
    #[serde(default)]
    labels: String,
    /// Condition `service-ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    condition: Option<bool>,
    /// Whether the write took the Pod out of the count of available ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    takes_offline: bool,
    /// The error, if the write was denied.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    refused: Vec<String>,
}

fn pod(name: &str) -> World {
    let (kind, traffic) = name
        .strip_suffix(" with traffic")
        .map_or((name, false), |kind| (kind, true));
    let world = match kind {
        "serving" | "new" => World::serving(),
        "bare" => World::bare(),
        other => panic!("no Pod {other:?}"),
    };
    let mut world = if traffic { world.with_traffic() } else { world };
    if kind == "new" {
        world.pod.status.conditions.clear();
        world.pod.metadata.finalizers.clear();
        world.pod.metadata.labels.remove(keys::SERVICE_AVAILABLE);
        world
            .pod
            .metadata
            .labels
            .insert(keys::CREATING.to_owned(), "1".to_owned());
    }
    world
}

/// One line of `do`.
fn act(world: &mut World, line: &str) -> Vec<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let result = match words[..] {
        ["begin", id, type_] => world.patch(&operator::begin_labels(
            &world.pod, id, type_, false, world.now,
        )),
        ["begin", id, type_, "deleting"] => world.patch(&operator::begin_labels(
            &world.pod, id, type_, true, world.now,
        )),
        ["finish", id] => world.patch(&operator::finish_labels(&world.pod, id)),
        ["undo", id, type_] => world.patch(&operator::undo_labels(id, type_)),
        ["label", key, value] => {
            world.write(|pod| _ = pod.metadata.labels.insert(long(key), value.to_owned()))
        }
        ["unlabel", key] => world.write(|pod| _ = pod.metadata.labels.remove(&long(key))),
        ["traffic", "on"] => {
            world.write(|pod| pod.metadata.finalizers = vec![FINALIZER.to_owned()])
        }
        ["traffic", "off"] => world.write(|pod| pod.metadata.finalizers.clear()),
        ["ready", value] => {
            let mut status = world.clone();
            status.set_condition("Ready", value.parse().unwrap());
            world.write(|pod| *pod = status.pod)
        }
        ["rules", "hold", id] => {
            world.held.insert(id.to_owned());
            Ok(())
        }
        ["rules", "pass", id] => {
            world.held.remove(id);
            Ok(())
        }
        ["budget", "gone", id] => {
            world.denied.insert(id.to_owned());
            Ok(())
        }
        ["budget", "free", id] => {
            world.denied.remove(id);
            Ok(())
        }
        ["webhook", state] => {
            world.webhook_down = state == "down";
            Ok(())
        }
        ["controller"] => {
            world.reconcile();
            Ok(())
        }
        ["everybody"] => {
            world.quiesce();
            Ok(())
        }
        _ => panic!("cannot do {line:?}"),
    };
    result
        .err()
        .into_iter()
        .flatten()
        .map(|e| format!("{}: {}", e.path, e.message))
        .collect()
}

fn long(key: &str) -> String {
    match key.split_once('/') {
        Some((family, id)) => format!("{family}.podopslifecycle.kusionstack.io/{id}"),
        None => format!("podopslifecycle.kusionstack.io/{key}"),
    }
}

#[test]
fn golden_files_match_lifecycle_states() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/lifecycle");
    let update = std::env::var_os("UPDATE").is_some();
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "scenarios are missing: {files:?}");
    let mut failures = Vec::new();
    for file in files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let mut scenario: Scenario = serde_norway::from_str(&fs::read_to_string(&file).unwrap())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let mut world = pod(&scenario.pod);
        for (i, step) in scenario.steps.iter_mut().enumerate() {
            world.took_offline = false;
            let refused = act(&mut world, &step.action);
            let actual = Step {
                action: step.action.clone(),
                labels: world.labels().join(" "),
                condition: world.condition(),
                takes_offline: world.took_offline,
                refused,
            };
            if actual != *step {
                failures.push(format!(
                    "{name} step {}: {actual:#?}\nexpected {step:#?}",
                    i + 1
                ));
                *step = actual;
            }
        }
        if update {
            fs::write(&file, serde_norway::to_string(&scenario).unwrap()).unwrap();
        }
    }
    assert!(update || failures.is_empty(), "{}", failures.join("\n"));
}
