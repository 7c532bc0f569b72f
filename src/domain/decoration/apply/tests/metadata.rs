use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{failure, revision, try_apply};
use crate::api::keys;
use crate::domain::decoration::labels::decorated_labels;

/// Applies patches of metadata to a template with these metadata, and returns its metadata.
fn patched(metadata: Value, patches: Value) -> Value {
    let decoration = revision("log", 0, json!({ "metadata": patches }));
    let mut pod = try_apply(&json!({ "metadata": metadata }), &[decoration]).unwrap();
    pod["metadata"].take()
}

#[test]
fn policy_decides_about_existing_key() {
    for (policy, value) in [
        (json!("Retain"), "old"),
        (json!(""), "old"),
        (Value::Null, "old"),
        (json!("Overwrite"), "new"),
    ] {
        for kind in ["labels", "annotations"] {
            let patch = json!({ "patchPolicy": policy, kind: { "key": "new", "added": "1" } });
            let metadata = patched(
                json!({ kind: { "key": "old", "other": "" } }),
                json!([patch]),
            );
            let wanted = json!({ kind: { "key": value, "other": "", "added": "1" } });
            assert_eq!(metadata, wanted, "{policy}");
            for empty in [json!({}), Value::Null, json!({ kind: null })] {
                let metadata = patched(empty, json!([patch]));
                assert_eq!(metadata, json!({ kind: { "key": "new", "added": "1" } }));
            }
        }
    }
}

#[test]
fn patches_are_applied_in_their_order() {
    let entry =
        |policy: &str, value: &str| json!({ "patchPolicy": policy, "labels": { "key": value } });
    for (patches, value) in [
        (json!([entry("Retain", "1"), entry("Retain", "2")]), "1"),
        (json!([entry("Retain", "1"), entry("Overwrite", "2")]), "2"),
        (json!([entry("Overwrite", "1"), entry("Retain", "2")]), "1"),
    ] {
        assert_eq!(patched(json!({}), patches)["labels"]["key"], value);
    }
}

#[test]
fn json_of_annotation_is_merged() {
    for (present, patch, merged) in [
        (
            r#"{"a":1,"b":{"c":2}}"#,
            r#"{"b":{"d":3}}"#,
            r#"{"a":1,"b":{"c":2,"d":3}}"#,
        ),
        (r#"{"a":1,"b":2}"#, r#"{"b":null}"#, r#"{"a":1}"#),
        ("[1,2]", "[3]", "[3]"),
        (
            r#"{"z":1.50,"a":10000000000000001}"#,
            r#"{"m":1e2}"#,
            r#"{"z":1.5,"a":10000000000000001,"m":100.0}"#,
        ),
        ("", r#"{ "a": 1, "b": null }"#, r#"{ "a": 1, "b": null }"#),
    ] {
        let patches = json!([{ "patchPolicy": "MergePatchJson", "annotations": { "key": patch } }]);
        let metadata = patched(
            json!({ "annotations": { "key": present } }),
            patches.clone(),
        );
        assert_eq!(metadata["annotations"]["key"], merged);
        let metadata = patched(json!({}), patches);
        assert_eq!(metadata["annotations"]["key"], patch, "absent");
    }
}

#[test]
fn merge_of_what_is_not_json_fails() {
    for (present, patch, part) in [
        (
            "a=b",
            "{}",
            "whose value is not JSON (expected value at line 1 column 1)",
        ),
        (
            "{}",
            "a=b",
            "the value is not JSON (expected value at line 1 column 1)",
        ),
    ] {
        let patch = json!({ "patchPolicy": "MergePatchJson", "annotations": { "key": patch } });
        let message = failure(
            &json!({ "metadata": { "annotations": { "key": present } } }),
            json!({ "metadata": [{}, patch] }),
        );
        assert!(
            message.starts_with("spec.template.metadata[1].annotations[key]: "),
            "{message}"
        );
        assert!(message.contains(part), "{message}");
        assert!(message.contains("set patchPolicy Overwrite"), "{message}");
    }
}

#[test]
fn unknown_policy_fails() {
    assert_eq!(
        failure(
            &json!({}),
            json!({ "metadata": [{ "patchPolicy": "Drop" }] })
        ),
        "spec.template.metadata[0].patchPolicy: \"Drop\" is not known to this version: set Retain, Overwrite or \
         MergePatchJson"
    );
}

#[test]
fn marks_of_decorations_are_removed_from_template() {
    let template = json!({ "metadata": {
        "labels": { "poddecoration.kusionstack.io/pd-log": "log-1", "app": "web" },
        "annotations": { "poddecoration.kusionstack.io/revisions": "[]", "other": "x" },
    } });
    let wanted =
        json!({ "metadata": { "labels": { "app": "web" }, "annotations": { "other": "x" } } });
    assert_eq!(try_apply(&template, &[]), Ok(wanted));
}

#[test]
fn reserved_key_is_never_set() {
    let labels = [
        keys::CONTROL,
        keys::INSTANCE_ID,
        keys::REVISION,
        keys::TO_DELETE,
        keys::SERVICE_AVAILABLE,
        "operating.podopslifecycle.kusionstack.io/collaset",
        "poddecoration.kusionstack.io/pd-log",
    ];
    let annotations = [keys::LAST_POD_STATUS, keys::DECORATIONS];
    let labels = labels.map(|key| ("labels", key));
    let annotations = annotations.map(|key| ("annotations", key));
    for (kind, key) in labels.into_iter().chain(annotations) {
        for policy in ["Retain", "Overwrite"] {
            let patch = json!({ "patchPolicy": policy, kind: { key: "1" } });
            let message = failure(&json!({}), json!({ "metadata": [patch] }));
            let start = format!("spec.template.metadata[0].{kind}[{key}]: the key is reserved");
            assert!(message.starts_with(&start), "{message}");
        }
    }
}

#[test]
fn labels_are_those_by_which_decorations_are_planned() {
    let strings = |value: &Value| -> BTreeMap<String, String> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let policies = ["Retain", "Overwrite", "MergePatchJson", ""];
    for (first, second) in policies.iter().flat_map(|a| policies.map(|b| (*a, b))) {
        for weight in [0, 1] {
            let patch = |policy: &str, value: &str| json!({ "patchPolicy": policy, "labels": { "app": value, "new": value, value: "" } });
            let both = json!([patch(first, "a"), patch(second, "b")]);
            let decorations = [
                revision("one", weight, json!({ "metadata": both })),
                revision("two", 0, json!({ "metadata": [patch(second, "c")] })),
            ];
            for labels in [json!({ "app": "web" }), json!({}), Value::Null] {
                let template = json!({ "metadata": { "labels": labels } });
                let pod = try_apply(&template, &decorations).unwrap();
                let planned = decorated_labels(&strings(&labels), &decorations.each_ref());
                assert_eq!(
                    strings(&pod["metadata"]["labels"]),
                    planned,
                    "{first} {second}"
                );
            }
        }
    }
}
