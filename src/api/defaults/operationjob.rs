//! Defaults of OperationJob (contract 1.5).

use json_patch::PatchOperation;
use serde_json::{Value, json};

use super::add_if_absent;

/// Default of `spec.activeDeadlineSeconds`: three hours for each target.
pub const ACTIVE_DEADLINE_SECONDS: i32 = 10_800;
/// Default of `spec.TTLSecondsAfterFinished`: half an hour.
pub const TTL_SECONDS_AFTER_FINISHED: i32 = 1_800;

/// The defaults that an OperationJob lacks. A value of 0 is not absent: validation refuses it. Values of an unexpected
/// shape are left to validation, too.
pub fn default_operationjob(object: &Value) -> Vec<PatchOperation> {
    let spec = &object["spec"];
    [
        ("activeDeadlineSeconds", ACTIVE_DEADLINE_SECONDS),
        ("TTLSecondsAfterFinished", TTL_SECONDS_AFTER_FINISHED),
    ]
    .into_iter()
    .filter_map(|(field, seconds)| add_if_absent(spec, &["spec"], field, json!(seconds)))
    .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut object = json!({ "spec": spec });
        let operations = default_operationjob(&object);
        json_patch::patch(&mut object, &operations).unwrap();
        assert_eq!(default_operationjob(&object), [], "defaults are added once");
        object["spec"].take()
    }

    #[test]
    fn absent_times_are_defaulted() {
        let both = json!({ "activeDeadlineSeconds": 10_800, "TTLSecondsAfterFinished": 1_800 });
        for given in [
            json!({}),
            json!({ "activeDeadlineSeconds": null, "TTLSecondsAfterFinished": null }),
        ] {
            assert_eq!(defaulted(given), both);
        }
        let given = json!({ "TTLSecondsAfterFinished": 5, "newer": [1] });
        let want =
            json!({ "TTLSecondsAfterFinished": 5, "newer": [1], "activeDeadlineSeconds": 10_800 });
        assert_eq!(defaulted(given), want);
    }

    #[test]
    fn present_and_malformed_values_are_left_unchanged() {
        for object in [
            json!(null),
            json!({}),
            json!({ "spec": null }),
            json!({ "spec": [] }),
            json!({ "spec": { "activeDeadlineSeconds": 0, "TTLSecondsAfterFinished": "a" } }),
        ] {
            assert_eq!(default_operationjob(&object), [], "{object}");
        }
    }
}
