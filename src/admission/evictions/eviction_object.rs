//! Parses the body of an eviction, and builds the patch with the preconditions that admission adds.

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::domain::pod::Pod;

/// The fields of an Eviction (`policy/v1` and `policy/v1beta1`) that the decision needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Eviction {
    metadata: NamedObject,
    delete_options: Option<DeleteOptions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NamedObject {
    name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteOptions {
    dry_run: Option<Vec<String>>,
    preconditions: Option<Preconditions>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// The precondition that admission adds to the delete behind an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteBinding {
    /// The UID: another Pod of the same name is not deleted.
    Uid,
    /// The UID and the resourceVersion: the Pod is deleted only in the version that was judged.
    Version,
}

impl Eviction {
    /// Whether the body names another Pod than the URL. The API server refuses such an eviction with 400, after
    /// admission.
    pub fn is_for_another_pod(&self, name: &str) -> bool {
        self.metadata.name.as_deref() != Some(name)
    }

    /// Whether the body asks for a dry run, as `kubectl drain --dry-run=server` does.
    pub fn is_dry_run(&self) -> bool {
        let options = self.delete_options.as_ref();
        let dry_run = options.and_then(|o| o.dry_run.as_ref());
        dry_run.is_some_and(|d| d.iter().any(|d| d == "All"))
    }

    /// Why the caller's own preconditions exclude this Pod; `None` if they do not. The text is the same as that of the
    /// API server.
    pub fn precondition_mismatch(&self, pod: &Pod) -> Option<String> {
        let theirs = self.preconditions()?;
        let version = pod.metadata.resource_version.to_string();
        let stored = [
            ("UID", &theirs.uid, &pod.metadata.uid),
            ("ResourceVersion", &theirs.resource_version, &version),
        ];
        stored.into_iter().find_map(|(field, wanted, stored)| {
            let wanted = wanted.as_ref().filter(|wanted| *wanted != stored)?;
            Some(format!(
                "the {field} in the precondition ({wanted}) does not match the {field} in record ({stored})"
            ))
        })
    }

    /// The patch that adds missing preconditions to the Eviction. Preconditions of the caller stay unchanged.
    pub fn binding_patch(&self, pod: &Pod, bound: DeleteBinding) -> Patch {
        let theirs = self.preconditions().cloned().unwrap_or_default();
        let mut missing = Map::new();
        if theirs.uid.is_none() {
            missing.insert("uid".to_owned(), pod.metadata.uid.clone().into());
        }
        if theirs.resource_version.is_none() && bound == DeleteBinding::Version {
            let version = pod.metadata.resource_version.to_string();
            missing.insert("resourceVersion".to_owned(), version.into());
        }
        let add = |path: &[&str], value: Value| {
            PatchOperation::Add(AddOperation {
                path: PointerBuf::from_tokens(path.iter().copied()),
                value,
            })
        };
        if missing.is_empty() {
            return Patch(Vec::new());
        }
        let (options, preconditions) = ("deleteOptions", "preconditions");
        if self.preconditions().is_some() {
            let fields = missing.into_iter();
            return Patch(
                fields
                    .map(|(field, value)| add(&[options, preconditions, &field], value))
                    .collect(),
            );
        }
        let missing = Value::Object(missing);
        Patch(vec![match self.delete_options {
            Some(_) => add(&[options, preconditions], missing),
            None => add(
                &[options],
                Map::from_iter([(preconditions.to_owned(), missing)]).into(),
            ),
        }])
    }

    fn preconditions(&self) -> Option<&Preconditions> {
        self.delete_options.as_ref()?.preconditions.as_ref()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let metadata = json!({ "name": "web-1", "uid": "u1", "resourceVersion": "7" });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    /// The `deleteOptions` after the patch.
    fn bound(options: &Value, bound: DeleteBinding) -> Value {
        let mut raw = json!({ "metadata": { "name": "web-1" }, "deleteOptions": options });
        if options == "absent" {
            raw = json!({ "metadata": { "name": "web-1" } });
        }
        let eviction: Eviction = serde_json::from_value(raw.clone()).unwrap();
        json_patch::patch(&mut raw, &eviction.binding_patch(&pod(), bound)).unwrap();
        raw["deleteOptions"].take()
    }

    #[test]
    fn body_that_names_another_pod_or_none_is_known() {
        for (metadata, is_of_another) in [
            (json!({ "name": "web-1" }), false),
            (json!({ "name": "web-2" }), true),
            (json!({ "generateName": "web-" }), true),
        ] {
            let raw = json!({ "metadata": metadata });
            let eviction: Eviction = serde_json::from_value(raw).unwrap();
            assert_eq!(eviction.is_for_another_pod("web-1"), is_of_another);
        }
    }

    #[test]
    fn delete_is_bound_to_the_uid_that_was_judged() {
        let uid = json!({ "uid": "u1" });
        for options in [json!("absent"), json!(null)] {
            let wanted = json!({ "preconditions": uid });
            assert_eq!(bound(&options, DeleteBinding::Uid), wanted, "{options}");
        }
        for preconditions in [json!(null), json!({}), json!({ "uid": null }), uid.clone()] {
            let options = json!({ "gracePeriodSeconds": 5, "preconditions": preconditions });
            let wanted = json!({ "gracePeriodSeconds": 5, "preconditions": uid });
            assert_eq!(bound(&options, DeleteBinding::Uid), wanted, "{options}");
        }
    }

    #[test]
    fn delete_is_bound_to_the_version_where_that_was_judged() {
        let both = json!({ "preconditions": { "uid": "u1", "resourceVersion": "7" } });
        for options in [json!("absent"), json!({}), both.clone()] {
            assert_eq!(bound(&options, DeleteBinding::Version), both, "{options}");
        }
        let theirs = json!({ "preconditions": { "resourceVersion": "7" } });
        assert_eq!(bound(&theirs, DeleteBinding::Uid), both);
    }

    #[test]
    fn preconditions_of_another_pod_or_version_are_named() {
        let mismatch = |preconditions: Value| {
            let raw = json!({ "deleteOptions": { "preconditions": preconditions } });
            let eviction: Eviction = serde_json::from_value(raw).unwrap();
            eviction.precondition_mismatch(&pod())
        };
        for fits in [
            json!(null),
            json!({}),
            json!({ "uid": "u1", "resourceVersion": "7" }),
        ] {
            assert_eq!(mismatch(fits), None);
        }
        let other = mismatch(json!({ "uid": "u0" })).unwrap();
        assert!(
            other.contains("the UID in the precondition (u0)"),
            "{other}"
        );
        let older = mismatch(json!({ "uid": "u1", "resourceVersion": "6" })).unwrap();
        assert!(older.contains("ResourceVersion in record (7)"), "{older}");
    }
}
