//! Defaults of CollaSet (contract 1.1).

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Value, json};

use crate::api::collaset::{PodNamingSuffixPolicy, PodUpgradePolicy};

/// The defaults that a CollaSet lacks: the upgrade policy, a rolling update, and the naming policy if there
/// is a naming strategy. An empty policy counts as absent, for compatibility. Values of an unexpected shape
/// are left to validation.
pub fn default_collaset(object: &Value) -> Vec<PatchOperation> {
    let spec = &object["spec"];
    if !spec.is_object() {
        return Vec::new();
    }
    default_update_strategy(&spec["updateStrategy"])
        .into_iter()
        .chain(default_naming_policy(&spec["namingStrategy"]))
        .collect()
}

fn default_update_strategy(strategy: &Value) -> Vec<PatchOperation> {
    let policy = Value::from(PodUpgradePolicy::InPlaceIfPossible.as_str());
    let rolling = json!({ "byPartition": {} });
    if strategy.is_null() {
        let strategy = json!({ "podUpgradePolicy": policy, "rollingUpdate": rolling });
        return vec![set_spec_field(&["updateStrategy"], strategy)];
    }
    let mut patch = Vec::new();
    if !strategy.is_object() {
        return patch;
    }
    if is_empty_policy(&strategy["podUpgradePolicy"]) {
        patch.push(set_spec_field(
            &["updateStrategy", "podUpgradePolicy"],
            policy,
        ));
    }
    match &strategy["rollingUpdate"] {
        Value::Null => patch.push(set_spec_field(
            &["updateStrategy", "rollingUpdate"],
            rolling,
        )),
        present if present.is_object() => {
            let children = [&present["byPartition"], &present["byLabel"]];
            if children.into_iter().all(Value::is_null) {
                let path = ["updateStrategy", "rollingUpdate", "byPartition"];
                patch.push(set_spec_field(&path, json!({})));
            }
        }
        _ => {}
    }
    patch
}

fn default_naming_policy(strategy: &Value) -> Option<PatchOperation> {
    let missing = strategy.is_object() && is_empty_policy(&strategy["podNamingSuffixPolicy"]);
    missing.then(|| {
        let random = PodNamingSuffixPolicy::Random.as_str().into();
        set_spec_field(&["namingStrategy", "podNamingSuffixPolicy"], random)
    })
}

fn is_empty_policy(policy: &Value) -> bool {
    policy.is_null() || policy == ""
}

/// Sets a field below `spec`, whether or not it exists.
fn set_spec_field(path: &[&str], value: Value) -> PatchOperation {
    let path = PointerBuf::from_tokens(["spec"].iter().chain(path).copied());
    PatchOperation::Add(AddOperation { path, value })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut object = json!({ "spec": spec });
        let operations = default_collaset(&object);
        json_patch::patch(&mut object, &operations).unwrap();
        assert_eq!(default_collaset(&object), [], "defaults are added once");
        object["spec"].take()
    }

    #[test]
    fn defaults_are_added_only_to_absent_fields() {
        let all = json!({ "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": {} } });
        for (update, want) in [
            (json!(null), all.clone()),
            (json!({}), all.clone()),
            (json!({ "podUpgradePolicy": "", "rollingUpdate": {} }), all),
            (
                json!({ "rollingUpdate": { "byPartition": null, "byLabel": null, "newer": 1 } }),
                json!({ "podUpgradePolicy": "InPlaceIfPossible",
                        "rollingUpdate": { "byPartition": {}, "byLabel": null, "newer": 1 } }),
            ),
            (
                json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "byLabel": {} }, "newer": 1 }),
                json!({ "podUpgradePolicy": "Replace", "rollingUpdate": { "byLabel": {} }, "newer": 1 }),
            ),
            (
                json!({ "rollingUpdate": { "byPartition": { "partition": 3 } } }),
                json!({ "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": { "partition": 3 } } }),
            ),
            (
                json!({ "rollingUpdate": { "byPartition": null, "byLabel": {} } }),
                json!({ "podUpgradePolicy": "InPlaceIfPossible", "rollingUpdate": { "byPartition": null, "byLabel": {} } }),
            ),
        ] {
            let spec = defaulted(json!({ "updateStrategy": update, "template": { "newer": 1 } }));
            assert_eq!(
                spec,
                json!({ "updateStrategy": want, "template": { "newer": 1 } }),
                "{update}"
            );
        }
    }

    #[test]
    fn naming_policy_defaults_if_strategy_is_set() {
        assert!(defaulted(json!({})).get("namingStrategy").is_none());
        for (given, want) in [
            (json!({}), "Random"),
            (json!({ "podNamingSuffixPolicy": "" }), "Random"),
            (
                json!({ "podNamingSuffixPolicy": "PersistentSequence" }),
                "PersistentSequence",
            ),
        ] {
            let spec = defaulted(json!({ "namingStrategy": given }));
            assert_eq!(
                spec["namingStrategy"]["podNamingSuffixPolicy"], want,
                "{given}"
            );
        }
    }

    #[test]
    fn malformed_fields_are_left_unchanged() {
        for object in [
            json!(null),
            json!({}),
            json!({ "spec": null }),
            json!({ "spec": [] }),
            json!({ "spec": { "updateStrategy": 1, "namingStrategy": "Random" } }),
            json!({ "spec": { "updateStrategy": { "podUpgradePolicy": 1, "rollingUpdate": [] } } }),
        ] {
            assert_eq!(default_collaset(&object), [], "{object}");
        }
    }
}
