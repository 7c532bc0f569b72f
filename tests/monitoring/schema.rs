//! Every path of the file for kube-state-metrics is a field of the CustomResourceDefinition.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::state_metrics::{Configuration, Each, Metric, Resource};
use crate::{read, yaml};

pub const FILE: &str = "manifests/monitoring/kube-state-metrics.yaml";

#[test]
fn every_path_is_a_field_of_the_definition() {
    let configuration = Configuration::parse(&read(FILE));
    let mut wrong = Vec::new();
    let mut names = BTreeSet::new();
    for resource in configuration.resources() {
        let schema = schema_of(resource);
        for (label, path) in &resource.labels_from_path {
            if field(&schema, path).is_none() {
                wrong.push(format!("{label}: {path:?}"));
            }
        }
        for metric in &resource.metrics {
            assert!(names.insert(resource.name_of(metric)), "twice: {metric:?}");
            assert!(!metric.help.is_empty());
            let problem = problem(&schema, metric);
            wrong.extend(problem.map(|why| format!("{}: {why}", resource.name_of(metric))));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(names.len() > 40, "{}", names.len());
}

#[test]
fn planted_misspelt_paths_are_found() {
    let gauge = |gauge: Value| json!({ "name": "m", "help": "h", "each": { "type": "Gauge", "gauge": gauge } });
    let conditions = |labels: Value, value: &str| {
        gauge(
            json!({ "path": ["status", "conditions"], "labelsFromPath": labels, "valueFrom": [value] }),
        )
    };
    let state = |path: &str| json!({ "name": "m", "help": "h", "each": { "type": "StateSet", "stateSet": { "path": ["status", path], "labelName": "l", "list": ["a"] } } });
    let info = |path: &str| json!({ "name": "m", "help": "h", "each": { "type": "Info", "info": { "labelsFromPath": { "l": ["status", path] } } } });
    let configuration = Configuration::parse(&read(FILE));
    let resources = configuration.resources().iter();
    let mut sets = resources.filter(|r| r.group_version_kind.kind == "CollaSet");
    let schema = schema_of(sets.next().unwrap());
    for (metric, is_right) in [
        (gauge(json!({ "path": ["status", "replicas"] })), true),
        (gauge(json!({ "path": ["status", "replica"] })), false),
        (gauge(json!({ "path": ["metadata", "generations"] })), false),
        (
            gauge(json!({ "path": ["status", "currentRevision"] })),
            false,
        ),
        (gauge(json!({ "path": ["status", "rollout"] })), false),
        (conditions(json!({ "type": ["type"] }), "status"), true),
        (conditions(json!({ "type": ["typ"] }), "status"), false),
        (conditions(json!({}), "state"), false),
        (gauge(json!({ "path": ["status", "conditions"] })), false),
        (info("currentRevision"), true),
        (info("currentRevisions"), false),
        (state("currentRevision"), true),
        (state("phase"), false),
    ] {
        let parsed: Metric = serde_json::from_value(metric.clone()).unwrap();
        assert_eq!(problem(&schema, &parsed).is_none(), is_right, "{metric}");
    }
}

/// The schema of a kind, with the fields of `metadata` that every object has.
fn schema_of(resource: &Resource) -> Value {
    let kind = &resource.group_version_kind;
    let plural = format!("{}s", kind.kind.to_lowercase());
    let definition = yaml(&format!("manifests/crds/{plural}.yaml"));
    assert_eq!(definition["spec"]["group"], kind.group);
    assert_eq!(definition["spec"]["names"]["kind"], kind.kind);
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let served = versions.iter().find(|v| v["name"] == kind.version);
    let mut schema = served.unwrap()["schema"]["openAPIV3Schema"].clone();
    schema["properties"]["metadata"] = json!({ "type": "object", "properties": {
        "name": { "type": "string" }, "namespace": { "type": "string" },
        "generation": { "type": "integer" }, "deletionTimestamp": { "type": "string", "format": "date-time" },
    } });
    schema
}

/// The schema of the field at a path.
fn field<'a>(schema: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter()
        .try_fold(schema, |schema, part| schema["properties"].get(part))
}

/// What is wrong with the paths of a metric.
fn problem(schema: &Value, metric: &Metric) -> Option<String> {
    let is_text = |schema: &Value, path: &Vec<String>| {
        field(schema, path).is_some_and(|f| f["type"] == "string")
    };
    match &metric.each {
        Each::Gauge { gauge } => {
            let Some(target) = field(schema, &gauge.path) else {
                return Some(format!("no field {:?}", gauge.path));
            };
            let element = if target["type"] == "array" {
                &target["items"]
            } else {
                target
            };
            let Some(value) = field(element, &gauge.value_from) else {
                return Some(format!("no field {:?}", gauge.value_from));
            };
            // Times and the status of a condition are texts that count as numbers.
            let is_status = target["type"] == "array" && gauge.value_from == ["status"];
            let is_number = ["integer", "number", "boolean"]
                .iter()
                .any(|kind| value["type"] == *kind);
            if !is_number && !is_status && value["format"] != "date-time" {
                return Some(format!("{:?} is no number: {value}", gauge.path));
            }
            let mut labels = gauge.labels_from_path.values();
            labels
                .find(|path| !is_text(element, path))
                .map(|path| format!("no text {path:?}"))
        }
        Each::Info { info } => {
            let mut labels = info.labels_from_path.values();
            labels
                .find(|path| !is_text(schema, path))
                .map(|path| format!("no text {path:?}"))
        }
        Each::StateSet { state_set } => {
            (!is_text(schema, &state_set.path)).then(|| format!("no text {:?}", state_set.path))
        }
    }
}
