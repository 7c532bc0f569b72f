#![allow(clippy::unwrap_used)]

mod containers;
mod metadata;
mod pod_spec;
mod properties;

use serde_json::{Value, json};

use super::{ApplyFailure, apply_decorations};
use crate::domain::decoration::DecorationRevision;

fn revision(name: &str, weight: i32, template: Value) -> DecorationRevision {
    DecorationRevision {
        decoration: name.to_owned(),
        name: format!("{name}-1"),
        template: serde_json::from_value(template).unwrap(),
        weight,
    }
}

fn try_apply(template: &Value, decorations: &[DecorationRevision]) -> Result<Value, ApplyFailure> {
    let decorations: Vec<_> = decorations.iter().collect();
    apply_decorations(template, &decorations)
}

/// Applies one decoration to a template with this spec, and returns the spec.
fn apply_to_spec(spec: Value, decoration: Value) -> Value {
    let mut pod = try_apply(&json!({ "spec": spec }), &[revision("log", 0, decoration)]).unwrap();
    pod["spec"].take()
}

/// The message of the failure of one decoration, called `log`.
fn failure(template: &Value, decoration: Value) -> String {
    let failure = try_apply(template, &[revision("log", 0, decoration)]).unwrap_err();
    assert_eq!(failure.decoration, "log");
    failure.message
}

#[test]
fn decorations_are_applied_by_weight_and_then_by_name() {
    let setting = |name: &str, weight| {
        let label = json!({ "patchPolicy": "Overwrite", "labels": { "by": name } });
        revision(
            name,
            weight,
            json!({ "metadata": [label], "containers": [{ "name": name }] }),
        )
    };
    for (decorations, by, containers) in [
        ([setting("a", 0), setting("b", 0)], "b", ["b", "a", "app"]),
        ([setting("b", 0), setting("a", 0)], "b", ["b", "a", "app"]),
        ([setting("a", 1), setting("b", 0)], "a", ["a", "b", "app"]),
        ([setting("a", 0), setting("b", -1)], "a", ["a", "b", "app"]),
    ] {
        let template = json!({ "spec": { "containers": [{ "name": "app" }] } });
        let pod = try_apply(&template, &decorations).unwrap();
        assert_eq!(pod["metadata"]["labels"]["by"], by);
        let names: Vec<_> = pod["spec"]["containers"]
            .as_array()
            .unwrap()
            .iter()
            .collect();
        let names: Vec<_> = names.iter().map(|c| c["name"].as_str().unwrap()).collect();
        assert_eq!(names, containers);
    }
}

#[test]
fn template_without_decorations_is_unchanged() {
    for template in [
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [], "x": null } }),
        json!({ "metadata": null, "spec": {} }),
        json!({}),
    ] {
        assert_eq!(try_apply(&template, &[]), Ok(template.clone()));
        let empty = [revision("log", 0, json!({}))];
        assert_eq!(try_apply(&template, &empty), Ok(template.clone()));
    }
}

#[test]
fn part_of_wrong_type_stays_as_it_is() {
    let template = json!({
        "metadata": { "labels": "l", "annotations": 1 },
        "spec": {
            "containers": {}, "initContainers": true, "volumes": "v", "tolerations": 1,
            "affinity": { "nodeAffinity": [] },
        },
    });
    let decoration = json!({
        "metadata": [{ "labels": { "a": "b" }, "annotations": { "a": "b" } }],
        "initContainers": [{ "name": "a" }],
        "containers": [{ "name": "a" }],
        "primaryContainers": [{ "image": "b" }],
        "volumes": [{ "name": "a" }],
        "tolerations": [{ "key": "a" }],
        "affinity": { "nodeSelectorTerms": [{}] },
    });
    let decorated = try_apply(&template, &[revision("log", 0, decoration)]);
    assert_eq!(decorated, Ok(template));
}
