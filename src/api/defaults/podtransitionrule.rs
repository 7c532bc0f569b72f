//! Defaults of PodTransitionRule (contract 1.3).

use json_patch::PatchOperation;
use serde_json::Value;

use super::add_if_absent;
use crate::api::podtransitionrule::{FailurePolicy, POLL_INTERVAL_SECONDS, POLL_TIMEOUT_SECONDS};

/// The defaults that a PodTransitionRule lacks: for webhook rules the failure policy, and the interval and
/// timeout of polling. The policy is `Fail`: Kuperator stored `Ignore` and behaved as `Fail` (contract Q10),
/// which is also the safe choice. Values of an unexpected shape are left to validation.
pub fn default_podtransitionrule(object: &Value) -> Vec<PatchOperation> {
    let rules = object.pointer("/spec/rules").and_then(Value::as_array);
    rules
        .into_iter()
        .flatten()
        .enumerate()
        .flat_map(|(index, rule)| default_webhook(&index.to_string(), rule))
        .collect()
}

fn default_webhook(index: &str, rule: &Value) -> Vec<PatchOperation> {
    let webhook = &rule["webhook"];
    let poll = &webhook["clientConfig"]["poll"];
    let at_webhook = ["spec", "rules", index, "webhook"];
    let at_poll = ["spec", "rules", index, "webhook", "clientConfig", "poll"];
    [
        add_if_absent(
            webhook,
            &at_webhook,
            "failurePolicy",
            FailurePolicy::Fail.as_str().into(),
        ),
        add_if_absent(
            poll,
            &at_poll,
            "intervalSeconds",
            POLL_INTERVAL_SECONDS.into(),
        ),
        add_if_absent(
            poll,
            &at_poll,
            "timeoutSeconds",
            POLL_TIMEOUT_SECONDS.into(),
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn defaulted(mut object: Value) -> Value {
        let operations = default_podtransitionrule(&object);
        json_patch::patch(&mut object, &operations).unwrap();
        object
    }

    #[test]
    fn defaults_are_added_only_to_absent_fields() {
        let object = json!({ "spec": { "rules": [
            { "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "b", "webhook": { "clientConfig": { "url": "u", "poll": { "url": "p" } } } },
            { "name": "c", "webhook": {
                "clientConfig": { "url": "u", "poll": { "url": "p", "intervalSeconds": 1, "timeoutSeconds": null } },
                "failurePolicy": "Fail",
                "newer": true,
            } },
        ] } });
        let want = json!({ "spec": { "rules": [
            { "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } },
            { "name": "b", "webhook": {
                "clientConfig": { "url": "u", "poll": { "url": "p", "intervalSeconds": 5, "timeoutSeconds": 60 } },
                "failurePolicy": "Fail",
            } },
            { "name": "c", "webhook": {
                "clientConfig": { "url": "u", "poll": { "url": "p", "intervalSeconds": 1, "timeoutSeconds": 60 } },
                "failurePolicy": "Fail",
                "newer": true,
            } },
        ] } });
        assert_eq!(defaulted(object), want);
        assert_eq!(default_podtransitionrule(&want), []);
    }

    #[test]
    fn malformed_fields_are_left_unchanged() {
        for object in [
            json!(null),
            json!({ "spec": 1 }),
            json!({ "spec": { "rules": {} } }),
            json!({ "spec": { "rules": [1, null, { "webhook": null }, { "webhook": [] }] } }),
        ] {
            assert_eq!(default_podtransitionrule(&object), [], "{object}");
        }
    }
}
