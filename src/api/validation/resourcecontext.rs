//! Validation of ResourceContext (contract 1.6, contract 6.2 and contract Q24). Any owners may share a pool.

use std::collections::{BTreeMap, BTreeSet};

use super::{FieldError, FieldErrors, truncate_value};
use crate::api::resourcecontext::ResourceContextSpec;

/// Key in `data`: name of the CollaSet that uses the instance ID.
const OWNER_KEY: &str = "Owner";

/// The errors of a spec.
pub fn validate(spec: &ResourceContextSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    check_contexts(spec, &mut errors);
    errors
}

/// Adds the errors of a spec to `errors`.
pub fn check_contexts(spec: &ResourceContextSpec, errors: &mut FieldErrors) {
    let owner = |data: &BTreeMap<String, String>| data.get(OWNER_KEY).cloned().unwrap_or_default();
    let owners: BTreeSet<String> = spec.contexts.iter().map(|c| owner(&c.data)).collect();
    let named: Vec<&str> = owners
        .iter()
        .filter(|o| !o.is_empty())
        .map(String::as_str)
        .collect();
    let sharers = named.join(" and ");
    let mut first = BTreeMap::new();
    for (index, context) in spec.contexts.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = format!("spec.contexts[{index}]");
        let id = context.id.to_string();
        if context.id < 0 {
            let problem = "must be 0 or more: instance IDs count from 0";
            errors.push(FieldError::with_raw_value(
                format!("{path}.id"),
                &id,
                problem,
            ));
        } else if let Some(earlier) = first.get(&context.id) {
            let problem = format!(
                "is the ID of spec.contexts[{earlier}] too: two instances would be taken for one; take one entry out"
            );
            errors.push(FieldError::with_raw_value(
                format!("{path}.id"),
                &id,
                problem,
            ));
        } else {
            first.insert(context.id, index);
        }
        if named.len() > 1 && owner(&context.data).is_empty() {
            let problem = format!(
                "is required for ID {id} in a pool that {} share: name the CollaSet that it belongs to",
                truncate_value(&sharers, 200)
            );
            errors.push(FieldError::missing_field(
                format!("{path}.data.{OWNER_KEY}"),
                problem,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn errors(contexts: Value) -> Vec<String> {
        let spec = serde_json::from_value(json!({ "contexts": contexts })).unwrap();
        validate(&spec).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn pools_of_one_owner_of_several_and_of_none_pass() {
        for contexts in [
            json!(null),
            json!([{ "id": 0 }, { "id": 1 }]),
            json!([{ "id": 0, "data": { "Owner": "a" } }, { "id": 7 }]),
            json!([{ "id": 3, "data": { "Owner": "a" } }, { "id": 1, "data": { "Owner": "b", "Newer": "x" } }]),
        ] {
            assert_eq!(errors(contexts.clone()), [""; 0], "{contexts}");
        }
    }

    #[test]
    fn invalid_entries_are_refused_with_field() {
        assert_eq!(
            errors(json!([
                { "id": -1, "data": { "Owner": "a" } },
                { "id": 2, "data": { "Owner": "b" } },
                { "id": 2, "data": { "Owner": "" } },
            ])),
            [
                "spec.contexts[0].id: -1: must be 0 or more: instance IDs count from 0",
                "spec.contexts[2].id: 2: is the ID of spec.contexts[1] too: two instances would be taken for one; take one \
                 entry out",
                "spec.contexts[2].data.Owner: is required for ID 2 in a pool that a and b share: name the CollaSet that it \
                 belongs to",
            ]
        );
    }
}
