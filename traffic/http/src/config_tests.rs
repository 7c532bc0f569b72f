//! Bounds of the settings.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn config(fields: Value) -> Config {
    let mut all = json!({"url": "https://lb.example/base/"});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    serde_json::from_value(all).unwrap()
}

fn problem(fields: Value) -> String {
    config(fields).check().unwrap_err().to_string()
}

#[test]
fn calls_are_appended_to_the_url() {
    let (observe, apply) = config(json!({})).check().unwrap();
    assert_eq!(observe.as_str(), "https://lb.example/base/v1/observe");
    assert_eq!(apply.as_str(), "https://lb.example/base/v1/apply");
}

#[test]
fn plain_http_goes_to_loopback_only_unless_allowed() {
    for url in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost"] {
        config(json!({"url": url})).check().unwrap();
    }
    for url in [
        "http://lb.example",
        "http://10.0.0.1",
        "http://localhost.example",
    ] {
        let text = problem(json!({"url": url}));
        assert!(text.contains("`allowPlainHttp`"), "{text}");
        let allowed = json!({"url": url, "allowPlainHttp": true});
        config(allowed).check().unwrap();
    }
}

#[test]
fn wrong_fields_are_named_with_a_remedy() {
    let cases = [
        (json!({"url": "lb"}), "`url` can't be parsed"),
        (json!({"url": "ftp://lb"}), "`url` has another scheme"),
        (json!({"url": "https://me:word@lb"}), "`tokenFile`"),
        (json!({"url": "https://lb?x=1"}), "`url` has a query"),
        (json!({"batch": 0}), "`batch` is 0; set it to 1 to 1000"),
        (json!({"timeoutSeconds": 0}), "`timeoutSeconds`"),
        (json!({"callsPerSecond": 0}), "`callsPerSecond`"),
        (json!({"drainSeconds": 3601}), "`drainSeconds`"),
        (json!({"resyncSeconds": 86401}), "`resyncSeconds`"),
        (json!({"weight": 0}), "`weight` is 0; set it to 1"),
        (json!({"protocols": []}), "`protocols` is empty"),
        (json!({"protocols": ["tcp"]}), "`protocols` has \"tcp\""),
        (json!({"portName": ""}), "`portName` is empty"),
        (json!({"clientCertFile": "c"}), "`clientKeyFile` is missing"),
        (json!({"clientKeyFile": "k"}), "`clientCertFile` is missing"),
        (
            json!({"url": "http://[::1]", "caFile": "c"}),
            "`caFile` has no effect",
        ),
    ];
    for (fields, expected) in cases {
        let text = problem(fields.clone());
        assert!(text.contains(expected), "{fields}: {text}");
    }
}

#[test]
fn password_in_url_is_in_no_text() {
    let with_password = json!({"url": "https://me:hunter2@lb"});
    let text = format!(
        "{:?} {}",
        config(with_password.clone()),
        problem(with_password)
    );
    assert!(!text.contains("hunter2"), "{text}");
    let text = problem(json!({"url": "https://me:hunter2@:99999"}));
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn unknown_fields_are_refused() {
    let parsed = serde_json::from_value::<Config>(json!({"url": "https://lb", "tokn": "x"}));
    assert!(parsed.unwrap_err().to_string().contains("`tokn`"));
}

#[test]
fn settings_follow_the_fields() {
    let settings = config(json!({
        "control": "deregisters", "drainSeconds": 7, "batch": 3, "resyncSeconds": 0,
        "timeoutSeconds": 4, "callsPerSecond": 2,
    }))
    .settings();
    assert_eq!(settings.control, Control::Deregisters);
    assert_eq!(settings.drain_time, Duration::from_secs(7));
    assert_eq!((settings.batch, settings.calls_per_second), (3, 2));
    assert_eq!(settings.resync, None);
    assert!(settings.timeout > Duration::from_secs(4));
}
