//! Builds the probes of a CollaSet's templates: a Pod and PVCs to be created in dry-run mode. The API server thus
//! judges the templates by the rules of its own version, and this crate does not repeat the validation of the core
//! kinds.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::admission::dry_run::{DryRunProbe, FieldPaths, probe_object};
use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::api::validation::FieldError;
use crate::api::validation::collaset::MAX_PVC_TEMPLATES;

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
                paths: FieldPaths::Below("spec.template".into()),
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
                paths: FieldPaths::Below(format!("spec.volumeClaimTemplates[{index}]")),
                object,
            });
        }
        (probes, None)
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
            paths: FieldPaths::Below(format!("spec.volumeClaimTemplates[{index}]")),
            object: json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": { "generateName": "dry-run-", "labels": { "l": "m" } }, "spec": { "newer": name },
            }),
        };
        let pod = DryRunProbe {
            resource: "pods",
            paths: FieldPaths::Below("spec.template".into()),
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
}
