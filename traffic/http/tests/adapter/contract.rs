//! The OpenAPI file describes what the adapter sends and reads.

use jsonschema::Validator;
use serde_json::{Value, json};
use traffic::{Adapter, Changes, Employer, Pod};
use traffic_http::wire::{ApplyAnswer, ObserveAnswer};

use crate::double::{Double, Reply, changes, employer, pod};

/// The validator of a schema of the file, with its formats.
fn schema(name: &str) -> Validator {
    let path = "../../docs/reference/traffic-http.openapi.yaml";
    let text = std::fs::read_to_string(path).unwrap();
    let file: Value = serde_norway::from_str(&text).unwrap();
    let root = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$ref": format!("#/components/schemas/{name}"),
        "components": file["components"],
    });
    let options = jsonschema::options().should_validate_formats(true);
    options.build(&root).unwrap()
}

fn fits(name: &str, value: &Value) {
    let errors: Vec<_> = schema(name)
        .iter_errors(value)
        .map(|e| e.to_string())
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:?} in {value}");
}

/// A Service and a Pod with little in them.
fn small() -> (Employer, Pod) {
    let employer = Employer {
        kind: "Service".into(),
        deleting: true,
        ..Employer::default()
    };
    let pod = Pod {
        addresses: vec!["fd00::1".parse().unwrap()],
        ..Pod::default()
    };
    (employer, pod)
}

#[tokio::test]
async fn requests_fit_the_file() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({"forwardLabels": ["tier"]}));
    let (small_employer, small_pod) = small();
    let route = Employer {
        kind: "Route".into(),
        ..Employer::default()
    };
    for (employer, pod) in [
        (employer(), pod(1)),
        (small_employer, small_pod),
        (route, pod(1)),
    ] {
        let _ = adapter.observe(&employer, &[pod, Pod::default()]).await;
        fits("ObserveRequest", &double.last().json());
        adapter.apply(&employer, &changes()).await;
        fits("ApplyRequest", &double.last().json());
        adapter.apply(&employer, &Changes::default()).await;
        fits("ApplyRequest", &double.last().json());
    }
    let asked = double.last();
    for header in ["x-request-id", "content-type"] {
        assert!(asked.headers.contains_key(header), "{header}");
    }
}

fn full_answers() -> [(&'static str, Value); 2] {
    let until = "2026-01-02T03:04:05Z";
    let error = json!({"message": "busy", "retryable": true});
    let members: Vec<_> = ["Serving", "Pending", "Draining", "Absent", "Unknown"]
        .iter()
        .zip(1..)
        .map(|(presence, port)| {
            json!({
                "group": "g", "address": "10.0.0.1", "port": port, "weight": 1, "podUid": "u",
                "podName": "p", "presence": presence, "drainUntil": until, "connections": 0,
            })
        })
        .collect();
    let observed = json!({
        "members": members, "unreadableGroups": [{"group": "h", "error": error}],
    });
    let key = json!({"group": "g", "address": "::1", "port": 1});
    let with = |fields: Value| {
        let mut all = key.clone();
        all.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        all
    };
    let applied = json!({"results": [
        with(json!({"presence": "Draining", "drainUntil": until})),
        with(json!({"error": {"message": "no"}})),
    ]});
    [("ObserveAnswer", observed), ("ApplyAnswer", applied)]
}

/// Whether the adapter reads an answer.
fn is_read(name: &str, value: &Value) -> bool {
    match name {
        "ObserveAnswer" => serde_json::from_value::<ObserveAnswer>(value.clone()).is_ok(),
        _ => serde_json::from_value::<ApplyAnswer>(value.clone()).is_ok(),
    }
}

/// Each value that a JSON value contains is left out, or replaced by one of another type.
fn mutants(value: &Value) -> Vec<Value> {
    let mut found = Vec::new();
    let replace = |key: &str, inner: Value| {
        let mut all = value.clone();
        all[key] = inner;
        all
    };
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                let mut without = value.clone();
                without.as_object_mut().unwrap().shift_remove(key);
                found.push(without);
                found.push(replace(key, json!([7])));
                found.extend(mutants(inner).into_iter().map(|inner| replace(key, inner)));
            }
        }
        Value::Array(items) => {
            for (at, inner) in items.iter().enumerate() {
                found.extend(mutants(inner).into_iter().map(|inner| {
                    let mut all = value.clone();
                    all[at] = inner;
                    all
                }));
            }
        }
        _ => {}
    }
    found
}

#[test]
fn file_and_adapter_accept_the_same_answers() {
    let (mut both, mut neither) = (0, 0);
    for (name, answer) in full_answers() {
        fits(name, &answer);
        assert!(is_read(name, &answer));
        let schema = schema(name);
        for mutant in mutants(&answer) {
            let (valid, read) = (schema.is_valid(&mutant), is_read(name, &mutant));
            // The adapter reads a result with neither a presence nor an error as "unknown".
            let is_empty = name == "ApplyAnswer" && read && !valid;
            assert!(
                valid == read || is_empty,
                "file {valid}, adapter {read}: {mutant}"
            );
            both += usize::from(valid && read);
            neither += usize::from(!valid && !read);
        }
    }
    assert!(both > 10 && neither > 40, "{both} {neither}");
}

#[tokio::test]
async fn answers_of_the_file_are_understood() {
    let double = Double::start().await;
    let adapter = double.adapter(json!({}));
    for (name, answer) in full_answers() {
        double.reply(Reply::json(&answer));
        match name {
            "ObserveAnswer" => {
                let observed = adapter.observe(&employer(), &[]).await.unwrap();
                assert_eq!(observed.registrations.len(), 5);
            }
            _ => assert!(adapter.apply(&employer(), &changes()).await.is_empty()),
        }
    }
}
