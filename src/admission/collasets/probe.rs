//! Builds the probes of a CollaSet's templates: a Pod and PVCs to be created in dry-run mode. The API server thus
//! judges the templates by the rules of its own version, and this crate does not repeat the validation of the core
//! kinds.

use std::collections::BTreeMap;

use kube::core::Status;
use serde_json::{Map, Value, json};

use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::api::validation::collaset::MAX_PVC_TEMPLATES;
use crate::api::validation::{FieldError, FieldErrors, truncate_value};

/// Longest text of the API server that is passed on, in characters.
const MAX_TEXT_CHARS: usize = 1_000;

/// An object to create in dry-run mode.
#[derive(Clone, Debug, PartialEq)]
pub struct DryRunProbe {
    /// Plural name of the resource in the API `v1`.
    pub resource: &'static str,
    /// Path of the template in the CollaSet. Errors name fields below this path.
    pub at: String,
    /// The object. It has no name, but a `generateName`.
    pub object: Value,
}

/// The meaning of a refusal of a probe.
#[derive(Clone, Debug, PartialEq)]
pub enum DryRunFinding {
    /// The template is invalid: no object can ever be created from it.
    Wrong(FieldErrors),
    /// The refusal may be temporary: a quota, a policy, a ServiceAccount that does not exist yet. The text is the
    /// message.
    Doubtful(String),
    /// The API server gave no judgement; a clause that says why.
    Unknown(String),
}

#[derive(Debug, PartialEq)]
pub struct SpecTemplates {
    pod: Value,
    pvcs: Vec<Value>,
}

impl SpecTemplates {
    /// Takes the templates out of a spec. A copy would double the memory of a review.
    pub fn take_from_spec(spec: &mut CollaSetSpec) -> SpecTemplates {
        SpecTemplates {
            pod: spec.template.take(),
            pvcs: std::mem::take(&mut spec.volume_claim_templates),
        }
    }

    /// The probes of these templates, and an error if the templates need too many probes. A template without a spec has
    /// no probe.
    ///
    /// PVC templates that `old` contains have no probe, and equal templates share one probe, because their names do not
    /// matter to the API server.
    pub fn probes(self, old: Option<SpecTemplates>) -> (Vec<DryRunProbe>, Option<FieldError>) {
        let old = old.map(|old| old.pvcs).unwrap_or_default();
        let pod = probe_object(self.pod, "Pod").map(|mut object| {
            add_pvc_volumes(&mut object["spec"], &self.pvcs);
            // Without this label, the API server does not call our own webhooks for the probe.
            if let Some(labels) = object["metadata"]["labels"].as_object_mut() {
                labels.shift_remove(keys::CONTROL);
            }
            DryRunProbe {
                resource: "pods",
                at: "spec.template".into(),
                object,
            }
        });
        let templates = self.pvcs.into_iter().enumerate();
        let new_templates = templates.filter(|(index, template)| {
            let is_same = old.get(*index) == Some(template);
            !is_same && !old.contains(template)
        });
        let mut probes: Vec<DryRunProbe> = pod.into_iter().collect();
        let pod_probes = probes.len();
        for (index, template) in new_templates {
            let Some(object) = probe_object(template, "PersistentVolumeClaim") else {
                continue;
            };
            if probes[pod_probes..]
                .iter()
                .any(|probe| probe.object == object)
            {
                continue;
            }
            if probes.len() - pod_probes == MAX_PVC_TEMPLATES {
                let problem = format!(
                    "more than {MAX_PVC_TEMPLATES} different entries are new or changed, and one request may try no \
                     more: change them in several steps"
                );
                let error = FieldError::missing_field("spec.volumeClaimTemplates", problem);
                return (probes, Some(error));
            }
            probes.push(DryRunProbe {
                resource: "persistentvolumeclaims",
                at: format!("spec.volumeClaimTemplates[{index}]"),
                object,
            });
        }
        (probes, None)
    }
}

/// The probe object of a template: its spec unchanged, and the metadata that is copied to objects.
fn probe_object(mut template: Value, kind: &str) -> Option<Value> {
    let spec = template.get_mut("spec").filter(|s| s.is_object())?.take();
    let mut metadata = Map::from_iter([("generateName".to_owned(), "dry-run-".into())]);
    for field in ["labels", "annotations", "finalizers"] {
        if let Some(value) = template.pointer_mut(&format!("/metadata/{field}")) {
            metadata.insert(field.into(), value.take());
        }
    }
    // `json!` would copy the spec.
    let parts = [
        ("apiVersion", "v1".into()),
        ("kind", kind.into()),
        ("metadata", metadata.into()),
        ("spec", spec),
    ];
    let object = parts.map(|(name, part): (&str, Value)| (name.to_owned(), part));
    Some(Map::from_iter(object).into())
}

/// Adds a volume for each PVC template. It replaces a volume of the same name (contract 6.8).
fn add_pvc_volumes(spec: &mut Value, templates: &[Value]) {
    if spec["volumes"].is_null() {
        spec["volumes"] = json!([]);
    }
    let Some(volumes) = spec["volumes"].as_array_mut() else {
        return; // the API server refuses this value
    };
    let key = |name: &Value| name.as_str().map(str::to_owned);
    // Of several volumes with the same name, the first one is replaced.
    let named = volumes.iter().enumerate().rev();
    let mut index_by_name: BTreeMap<_, _> = named.map(|(at, v)| (key(&v["name"]), at)).collect();
    for name in templates
        .iter()
        .map(|template| &template["metadata"]["name"])
    {
        let volume = json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        let index = *index_by_name.entry(key(name)).or_insert(volumes.len());
        match volumes.get_mut(index) {
            Some(same) => *same = volume,
            None => volumes.push(volume),
        }
    }
}

/// Classifies a refusal of the API server.
pub fn classify_refusal(status: &Status, at: &str) -> DryRunFinding {
    let message = truncate_value(&status.message, MAX_TEXT_CHARS);
    let doubtful = || DryRunFinding::Doubtful(message.clone().into_owned());
    // Another webhook refused the probe. A webhook without support for dry run gives the same message, with the code
    // 400 of the API server.
    if message.starts_with("admission webhook ") {
        return doubtful();
    }
    match status.code {
        // A webhook that Pods or PVCs need does not answer. Until then users must be able to change the template, above
        // all to roll back.
        500 if message.contains("failed calling webhook") => doubtful(),
        422 => {
            let causes = status.details.iter().flat_map(|d| &d.causes);
            let mut errors = FieldErrors::default();
            errors.extend(causes.filter(|c| !c.field.is_empty()).map(|cause| {
                let field = truncate_value(&cause.field, MAX_TEXT_CHARS);
                FieldError::missing_field(
                    format!("{at}.{field}"),
                    truncate_value(&cause.message, MAX_TEXT_CHARS),
                )
            }));
            // A 422 without a field comes from a ValidatingAdmissionPolicy.
            if errors.is_empty() {
                doubtful()
            } else {
                DryRunFinding::Wrong(errors)
            }
        }
        400 | 413 => DryRunFinding::Wrong(FieldError::missing_field(at, message).into()),
        403 | 404 => doubtful(),
        code => DryRunFinding::Unknown(format!(
            "the API server answers {code} to a dry-run, {message}"
        )),
    }
}

/// The text of a `Warning` header such as `299 - "unknown field \"spec.x\""`.
pub fn parse_warning_header(header: &str) -> Option<String> {
    let quoted = header.splitn(3, ' ').nth(2)?;
    let inner = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(inner.len());
    let mut escaped = false;
    for c in inner.chars() {
        escaped = c == '\\' && !escaped;
        if !escaped {
            text.push(c);
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn probes(spec: Value) -> Vec<DryRunProbe> {
        let mut spec: CollaSetSpec = serde_json::from_value(spec).unwrap();
        SpecTemplates::take_from_spec(&mut spec).probes(None).0
    }

    #[test]
    fn pod_and_pvcs_are_dry_run_as_created() {
        let template = |name: &str| json!({ "metadata": { "name": name, "labels": { "l": "m" } }, "spec": { "newer": name } });
        let probes = probes(json!({
            "template": {
                "metadata": {
                    "name": "ignored", "creationTimestamp": null,
                    "labels": { "app": "a", "kusionstack.io/control": "true" }, "annotations": { "n": "o" },
                },
                "spec": { "newer": [1], "volumes": [{ "name": "data", "emptyDir": {} }, { "name": "tmp", "emptyDir": {} }] },
            },
            "volumeClaimTemplates": [template("data"), template("more")],
        }));
        let volume =
            |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name } });
        let pvc = |index: usize, name: &str| DryRunProbe {
            resource: "persistentvolumeclaims",
            at: format!("spec.volumeClaimTemplates[{index}]"),
            object: json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "generateName": "dry-run-", "labels": { "l": "m" } }, "spec": { "newer": name },
            }),
        };
        let pod = DryRunProbe {
            resource: "pods",
            at: "spec.template".into(),
            object: json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "generateName": "dry-run-", "labels": { "app": "a" }, "annotations": { "n": "o" } },
                "spec": { "newer": [1], "volumes": [volume("data"), { "name": "tmp", "emptyDir": {} }, volume("more")] },
            }),
        };
        assert_eq!(probes, [pod, pvc(0, "data"), pvc(1, "more")]);
    }

    #[test]
    fn malformed_templates_are_dry_run_where_possible() {
        for template in [json!(null), json!(1), json!({ "spec": [] })] {
            assert_eq!(probes(json!({ "template": template })), []);
        }
        let malformed = probes(json!({
            "template": { "metadata": [], "spec": { "volumes": "x" } },
            "volumeClaimTemplates": [{ "metadata": 1 }],
        }));
        assert_eq!(malformed.len(), 1);
        assert_eq!(malformed[0].object["spec"], json!({ "volumes": "x" }));
    }

    fn status(code: u16, message: &str, causes: Value) -> Status {
        let details = json!({ "kind": "Pod", "causes": causes });
        serde_json::from_value(
            json!({ "status": "Failure", "code": code, "message": message, "details": details }),
        )
        .unwrap()
    }

    #[test]
    fn wrong_fields_are_named_by_their_path_in_the_collaset() {
        let causes = json!([
            { "reason": "FieldValueRequired", "message": "Required value", "field": "spec.containers[0].image" },
            { "reason": "FieldValueInvalid", "message": "Invalid value: \"a b\": no", "field": "metadata.labels" },
            { "message": "of a policy" },
        ]);
        let DryRunFinding::Wrong(errors) =
            classify_refusal(&status(422, "m", causes), "spec.template")
        else {
            panic!("it is wrong");
        };
        assert_eq!(
            errors.to_string(),
            "spec.template.spec.containers[0].image: Required value; spec.template.metadata.labels: Invalid value: \"a b\": no"
        );
        let undecodable = "Pod in version \"v1\" cannot be handled as a Pod: json: …";
        let want = FieldError::missing_field("spec.template", undecodable).into();
        assert_eq!(
            classify_refusal(&status(400, undecodable, json!([])), "spec.template"),
            DryRunFinding::Wrong(want)
        );
    }

    #[test]
    fn refusal_that_may_end_is_doubtful_failed_call_unknown() {
        for (code, message) in [
            (403, "pods \"x\" is forbidden: exceeded quota: q"),
            (404, "namespaces \"x\" not found"),
            (
                422,
                "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no",
            ),
            (400, "admission webhook \"a.b.c\" does not support dry run"),
            (422, "admission webhook \"a.b.c\" denied the request: no"),
        ] {
            let causes = json!([{ "message": "no" }]);
            assert_eq!(
                classify_refusal(&status(code, message, causes), "a"),
                DryRunFinding::Doubtful(message.into())
            );
        }
        let down = "Internal error occurred: failed calling webhook \"a.b.c\": failed to call webhook: no endpoints";
        assert_eq!(
            classify_refusal(&status(500, down, json!([])), "a"),
            DryRunFinding::Doubtful(down.into())
        );
        assert_eq!(
            classify_refusal(&status(500, "etcdserver: no leader", json!([])), "a"),
            DryRunFinding::Unknown(
                "the API server answers 500 to a dry-run, etcdserver: no leader".into()
            )
        );
    }

    #[test]
    fn warnings_are_unquoted() {
        for (header, want) in [
            (
                r#"299 - "unknown field \"spec.a\"""#,
                Some("unknown field \"spec.a\""),
            ),
            (r#"299 - "back\\slash""#, Some("back\\slash")),
            (r#"299 - """#, Some("")),
            ("299 - plain", None),
            ("299", None),
        ] {
            assert_eq!(parse_warning_header(header).as_deref(), want, "{header}");
        }
    }
}
