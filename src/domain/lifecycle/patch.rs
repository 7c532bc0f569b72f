//! Changes of labels, in the forms that a webhook and a client send.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation};
use serde_json::{Value, json};

/// Labels to set (`Some`) and to remove (`None`). Empty if nothing changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelPatch(pub BTreeMap<String, Option<String>>);

impl LabelPatch {
    /// The change that turns `from` into `to`.
    pub fn between(from: &BTreeMap<String, String>, to: &BTreeMap<String, String>) -> LabelPatch {
        let removed = from
            .keys()
            .filter(|k| !to.contains_key(*k))
            .map(|k| (k.clone(), None));
        let set = to
            .iter()
            .filter(|(k, v)| from.get(*k) != Some(v))
            .map(|(k, v)| (k.clone(), Some(v.clone())));
        LabelPatch(removed.chain(set).collect())
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies the change to `labels`.
    pub fn apply(&self, labels: &mut BTreeMap<String, String>) {
        for (key, value) in &self.0 {
            match value {
                Some(value) => labels.insert(key.clone(), value.clone()),
                None => labels.remove(key),
            };
        }
    }

    /// The JSON patch (RFC 6902) under `/metadata/labels`. `current` is the raw value there. If it is absent or null,
    /// the patch creates the object. The patch removes only labels that exist. Otherwise the API server would refuse
    /// the patch.
    pub fn to_json_patch(&self, current: Option<&Value>) -> Vec<PatchOperation> {
        let Some(current) = current.and_then(Value::as_object) else {
            let set: serde_json::Map<String, Value> = self
                .0
                .iter()
                .filter_map(|(k, v)| Some((k.clone(), Value::String(v.clone()?))))
                .collect();
            return if set.is_empty() {
                Vec::new()
            } else {
                vec![add_operation(["metadata", "labels"], Value::Object(set))]
            };
        };
        self.0
            .iter()
            .filter_map(|(key, value)| {
                let path = ["metadata", "labels", key.as_str()];
                match value {
                    Some(value) => Some(add_operation(path, Value::String(value.clone()))),
                    None if current.contains_key(key) => {
                        Some(PatchOperation::Remove(RemoveOperation {
                            path: PointerBuf::from_tokens(path),
                        }))
                    }
                    None => None,
                }
            })
            .collect()
    }

    /// The value of `metadata.labels` in a JSON merge patch (RFC 7386).
    pub fn to_merge_patch(&self) -> Value {
        json!(self.0)
    }
}

fn add_operation<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation {
        path: PointerBuf::from_tokens(path),
        value,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn patch() -> LabelPatch {
        LabelPatch(
            [
                ("a.io/x".to_owned(), Some("1".to_owned())),
                ("b~c".to_owned(), None),
            ]
            .into(),
        )
    }

    fn applied(mut object: Value) -> Value {
        let operations = patch().to_json_patch(object.pointer("/metadata/labels"));
        json_patch::patch(&mut object, &operations).unwrap();
        object
    }

    #[test]
    fn keys_are_escaped_and_other_labels_stay() {
        let operations =
            serde_json::to_value(patch().to_json_patch(Some(&json!({"b~c": "2"})))).unwrap();
        assert_eq!(
            operations,
            json!([
                {"op": "add", "path": "/metadata/labels/a.io~1x", "value": "1"},
                {"op": "remove", "path": "/metadata/labels/b~0c"},
            ])
        );
        assert_eq!(
            applied(json!({"metadata": {"labels": {"b~c": "2", "z": "3"}}})),
            json!({"metadata": {"labels": {"a.io/x": "1", "z": "3"}}})
        );
    }

    #[test]
    fn missing_or_null_labels_object_is_created() {
        let expected = json!({"metadata": {"labels": {"a.io/x": "1"}}});
        assert_eq!(applied(json!({"metadata": {}})), expected);
        assert_eq!(applied(json!({"metadata": {"labels": null}})), expected);
    }

    #[test]
    fn removing_what_is_not_there_is_no_operation() {
        let only_removal = LabelPatch([("b".to_owned(), None)].into());
        assert_eq!(only_removal.to_json_patch(Some(&json!({}))), []);
        assert_eq!(only_removal.to_json_patch(None), []);
    }

    #[test]
    fn merge_patch_removes_by_null() {
        assert_eq!(
            patch().to_merge_patch(),
            json!({"a.io/x": "1", "b~c": null})
        );
    }

    #[test]
    fn patch_between_labels_applies_to_target() {
        let from: BTreeMap<_, _> = [
            ("a".to_owned(), "1".to_owned()),
            ("b".to_owned(), "2".to_owned()),
        ]
        .into();
        let to: BTreeMap<_, _> = [
            ("b".to_owned(), "3".to_owned()),
            ("c".to_owned(), "4".to_owned()),
        ]
        .into();
        let mut labels = from.clone();
        LabelPatch::between(&from, &to).apply(&mut labels);
        assert_eq!(labels, to);
        assert!(LabelPatch::between(&to, &to).is_empty());
    }
}
