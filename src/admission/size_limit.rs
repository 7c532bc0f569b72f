//! Refuses objects that are too large to be reviewed. A parsed template takes many times the bytes of its text.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::admission::review::{Request, Verdict};

/// The fields that tell whether the spec must be reviewed. Parsing copies nothing.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecOutline<'a> {
    #[serde(borrow)]
    metadata: Option<OutlineMetadata<'a>>,
    #[serde(borrow)]
    spec: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct OutlineMetadata<'a> {
    #[serde(borrow)]
    deletion_timestamp: Option<&'a RawValue>,
}

/// The verdict on an object of more than `limit` bytes; `None` if the object is smaller. An object that was stored before
/// the limit existed may be larger, and everything but its spec can still be changed.
pub(super) fn check_review_size(kind: &str, request: &Request, limit: usize) -> Option<Verdict> {
    let size = request.object.as_deref()?.get().len();
    (size > limit).then(|| {
        let problem = format!(
            "has {size} bytes, managedFields included; at most {limit} are allowed (--max-collaset-bytes). Make its \
             templates smaller, for example by ConfigMaps"
        );
        deny_spec_change(kind, request, &problem)
    })
}

/// The verdict on an object whose review would take more memory than a review may take.
pub(super) fn deny_excessive(kind: &str, request: &Request, why: &str) -> Verdict {
    deny_spec_change(kind, request, &format!("{why}; make the templates smaller"))
}

/// Denies a request that changes the spec, and allows every other request.
pub(super) fn deny_spec_change(kind: &str, request: &Request, problem: &str) -> Verdict {
    let object = request.object.as_deref();
    let old = request.old_object.as_deref();
    match object.is_none_or(|object| is_size_irrelevant(object, old)) {
        true => Verdict::allow(),
        false => {
            let message = format!("{kind}: {problem}");
            Verdict::deny(413, "RequestEntityTooLarge", message)
        }
    }
}

fn is_size_irrelevant(object: &RawValue, old: Option<&RawValue>) -> bool {
    let Some(new) = parse_outline(object) else {
        return false;
    };
    let deleted = new.metadata.is_some_and(|m| m.deletion_timestamp.is_some());
    // The API server serializes both objects in the same way, so equal specs have equal texts.
    let same = |old: SpecOutline<'_>| old.spec.map(RawValue::get) == new.spec.map(RawValue::get);
    deleted || old.and_then(parse_outline).is_some_and(same)
}

fn parse_outline(object: &RawValue) -> Option<SpecOutline<'_>> {
    serde_json::from_str(object.get()).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use serde_json::{Value, json};

    use super::*;

    fn object(size: usize, finalizer: &str) -> Value {
        json!({
            "metadata": { "namespace": "shop", "name": "web", "finalizers": [finalizer] },
            "spec": { "template": "x".repeat(size) },
        })
    }

    fn request(object: &Value, old: &Value) -> Request {
        let review = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "u", "operation": "UPDATE", "namespace": "shop", "name": "web",
                "kind": { "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "CollaSet" },
                "resource": { "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "collasets" },
                "object": object, "oldObject": old,
            },
        });
        Request::parse(review.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn large_collaset_is_refused_and_small_one_judged() {
        let small = object(100, "a");
        assert!(check_review_size("CollaSet", &request(&small, &Value::Null), 1_000).is_none());
        let large = object(1_000, "a");
        for old in [Value::Null, small.clone()] {
            let denied = check_review_size("CollaSet", &request(&large, &old), 1_000).unwrap();
            assert_eq!((denied.is_allowed(), denied.code()), (false, 413));
            assert!(denied.message().contains("--max-collaset-bytes"));
        }
        assert!(check_review_size("CollaSet", &request(&small, &large), 1_000).is_none());
    }

    #[test]
    fn large_collaset_with_unchanged_spec_can_be_updated() {
        let (old, new) = (object(1_000, "a"), object(1_000, "b"));
        assert!(
            check_review_size("CollaSet", &request(&new, &old), 1_000)
                .unwrap()
                .is_allowed()
        );
        let (old, mut gone) = (object(1_000, "a"), object(2_000, "a"));
        gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert!(
            check_review_size("CollaSet", &request(&gone, &old), 1_000)
                .unwrap()
                .is_allowed()
        );
        assert!(deny_excessive("CollaSet", &request(&gone, &old), "why").is_allowed());
        assert_eq!(
            deny_excessive("CollaSet", &request(&new, &object(5, "a")), "why").code(),
            413
        );
    }
}
