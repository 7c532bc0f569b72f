//! Defaults of PodDecoration (contract 1.4).

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Value, json};

use super::add_if_absent;
use crate::api::poddecoration::{HISTORY_LIMIT, InjectPolicy, PatchPolicy, TargetPolicy};

/// The defaults that a PodDecoration lacks. A history limit of 0 and an empty policy count as absent, for
/// compatibility. Values of an unexpected shape are left to validation.
pub fn default_poddecoration(object: &Value) -> Vec<PatchOperation> {
    let spec = &object["spec"];
    let template = &spec["template"];
    history_limit(spec)
        .into_iter()
        .chain(add_if_absent(spec, &["spec"], "weight", json!(0)))
        .chain(policies(template, "metadata", "patchPolicy", |_| {
            PatchPolicy::Retain.as_str().into()
        }))
        .chain(policies(template, "containers", "injectPolicy", |_| {
            InjectPolicy::BeforePrimaryContainer.as_str().into()
        }))
        .chain(policies(
            template,
            "primaryContainers",
            "targetPolicy",
            target_policy,
        ))
        .collect()
}

fn history_limit(spec: &Value) -> Option<PatchOperation> {
    let limit = spec.as_object()?.get("historyLimit");
    let is_unset = limit.is_none_or(|limit| limit.is_null() || *limit == 0);
    is_unset.then(|| add(&["spec", "historyLimit"], json!(HISTORY_LIMIT)))
}

/// With a name, the patch is meant for the container of that name.
fn target_policy(patch: &Value) -> Value {
    let policy = match patch["name"].as_str() {
        None | Some("") => TargetPolicy::All,
        Some(_) => TargetPolicy::ByName,
    };
    policy.as_str().into()
}

/// Sets the policy `key` in each entry of `list` that has none.
fn policies(
    template: &Value,
    list: &str,
    key: &str,
    default: impl Fn(&Value) -> Value,
) -> Vec<PatchOperation> {
    let entries = template[list].as_array().into_iter().flatten().enumerate();
    let has_none = |entry: &Value| entry[key].is_null() || entry[key] == "";
    let unset = entries.filter(|(_, entry)| entry.is_object() && has_none(entry));
    let set = unset.map(|(index, entry)| {
        let index = index.to_string();
        add(&["spec", "template", list, &index, key], default(entry))
    });
    set.collect()
}

fn add(path: &[&str], value: Value) -> PatchOperation {
    let path = PointerBuf::from_tokens(path.iter().copied());
    PatchOperation::Add(AddOperation { path, value })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn defaulted(spec: Value) -> Value {
        let mut object = json!({ "spec": spec });
        let operations = default_poddecoration(&object);
        json_patch::patch(&mut object, &operations).unwrap();
        assert_eq!(
            default_poddecoration(&object),
            [],
            "defaults are added once"
        );
        object["spec"].take()
    }

    fn defaulted_entry(list: &str, entry: Value) -> Value {
        let spec = defaulted(json!({ "template": { list: [{ "newer": 1 }, entry] } }));
        spec["template"][list][1].clone()
    }

    #[test]
    fn absent_limit_and_weight_are_defaulted() {
        let all = json!({ "historyLimit": 20, "weight": 0 });
        for given in [
            json!({}),
            json!({ "historyLimit": null, "weight": null }),
            json!({ "historyLimit": 0 }),
        ] {
            assert_eq!(defaulted(given.clone()), all, "{given}");
        }
        let given = json!({ "historyLimit": 3, "weight": -1, "newer": [1] });
        assert_eq!(defaulted(given.clone()), given);
    }

    #[test]
    fn absent_policies_of_template_are_defaulted() {
        for given in [json!({}), json!({ "patchPolicy": null })] {
            let entry = defaulted_entry("metadata", given);
            assert_eq!(entry, json!({ "patchPolicy": "Retain" }));
        }
        let empty = json!({ "patchPolicy": "", "labels": { "a": "b" } });
        let want = json!({ "patchPolicy": "Retain", "labels": { "a": "b" } });
        assert_eq!(defaulted_entry("metadata", empty), want);

        let entry = defaulted_entry("containers", json!({ "name": "log" }));
        let want = json!({ "name": "log", "injectPolicy": "BeforePrimaryContainer" });
        assert_eq!(entry, want);

        for (list, given) in [
            ("metadata", json!({ "patchPolicy": "Overwrite" })),
            (
                "containers",
                json!({ "injectPolicy": "AfterPrimaryContainer" }),
            ),
            (
                "primaryContainers",
                json!({ "targetPolicy": "First", "name": "web" }),
            ),
        ] {
            assert_eq!(defaulted_entry(list, given.clone()), given);
        }
    }

    #[test]
    fn target_policy_follows_the_name() {
        for (given, want) in [
            (json!({}), "All"),
            (json!({ "name": "" }), "All"),
            (json!({ "name": "web" }), "ByName"),
            (json!({ "name": "web", "targetPolicy": "" }), "ByName"),
        ] {
            let entry = defaulted_entry("primaryContainers", given.clone());
            assert_eq!(entry["targetPolicy"], want, "{given}");
        }
    }

    #[test]
    fn malformed_fields_are_left_unchanged() {
        for object in [
            json!(null),
            json!({}),
            json!({ "spec": null }),
            json!({ "spec": [] }),
            json!({ "spec": { "historyLimit": 1, "weight": 1, "template": [] } }),
            json!({ "spec": { "historyLimit": "a", "weight": "b",
                "template": { "metadata": {}, "containers": [1], "primaryContainers": ["a"] } } }),
        ] {
            assert_eq!(default_poddecoration(&object), [], "{object}");
        }
    }
}
