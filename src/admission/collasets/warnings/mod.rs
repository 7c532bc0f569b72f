//! Warnings about the effects of a spec that the user may not have meant.

mod update_strategy;

use std::slice::from_ref;

use serde_json::Value;

use crate::api::collaset::CollaSetSpec;
use crate::domain::collaset::revision::data::{have_same_pvc_templates, pvc_template_name};
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdatePolicy};

/// The warnings for a spec. `old` is the stored spec of an update; warnings that already applied to it are left out.
pub fn spec_warnings(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Vec<String> {
    let mut warnings = pvc_template_warnings(old, new);
    if replaces_pvcs(new) && !old.is_some_and(replaces_pvcs) {
        warnings.push(
            "spec.updateStrategy.podUpgradePolicy: with Replace every rollout makes new Pods with new, empty volumes, and the PVCs \
             of the Pods that they replace are deleted, even with whenScaled: Retain; choose InPlaceIfPossible or Recreate to \
             keep the data"
                .into(),
        );
    }
    if old.is_some_and(|old| {
        retains_scaled(old)
            && !retains_scaled(new)
            && (has_pvc_templates(old) || has_pvc_templates(new))
    }) {
        warnings.push(
            "spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled: is no longer Retain: the PVCs of Pods that were \
             scaled in, and those of former PVC templates, are deleted now, and their data may go with them; set Retain again at \
             once to keep the remaining PVCs"
                .into(),
        );
    }
    if has_undecided_retention(new) && !old.is_some_and(has_pvc_templates) {
        warnings.push(
            "spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.whenScaled: is left out: unlike in a StatefulSet the PVCs of Pods \
             that are scaled in are deleted, and their data with them; set Retain to keep them, or Delete to say that it is meant"
                .into(),
        );
    }
    warnings.extend(update_strategy::strategy_warnings(old, new));
    let policy = restart_policy(new);
    if let Some(policy) = policy.filter(|_| old.and_then(restart_policy) != policy) {
        warnings.push(format!(
            "spec.template.spec.restartPolicy: {policy}: a Pod that ends is deleted and recreated, after 1 s at first \
             and 15 min at most; use a Job for a task that runs only once"
        ));
    }
    warnings
}

/// Warnings about PVC templates that are changed or removed. A PVC itself is never changed, so the Pods get new
/// volumes.
fn pvc_template_warnings(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Vec<String> {
    let before = old.map_or(&[][..], |old| &old.volume_claim_templates);
    let consequence = match ResolvedStrategy::from_spec(new).policy {
        UpdatePolicy::Replace => {
            "the PVCs that Pods have now are deleted, even with whenScaled: Retain"
        }
        UpdatePolicy::Recreate | UpdatePolicy::InPlace => {
            "the PVCs that Pods have now are deleted unless whenScaled is Retain"
        }
    };
    let warnings = before.iter().filter_map(|former| {
        let name = pvc_template_name(former);
        let mut templates = new.volume_claim_templates.iter();
        match templates.find(|template| pvc_template_name(template) == name) {
            Some(template) if have_same_pvc_templates(from_ref(former), from_ref(template)) => None,
            Some(_) => Some(format!(
                "spec.volumeClaimTemplates: {name} is changed: existing volumes are not expanded; every Pod is \
                 recreated with a new, empty volume, and {consequence}"
            )),
            None => Some(format!("spec.volumeClaimTemplates: {name} is taken out: {consequence}")),
        }
    });
    warnings.collect()
}

fn replaces_pvcs(spec: &CollaSetSpec) -> bool {
    ResolvedStrategy::from_spec(spec).policy == UpdatePolicy::Replace && has_pvc_templates(spec)
}

fn has_pvc_templates(spec: &CollaSetSpec) -> bool {
    !spec.volume_claim_templates.is_empty()
}

fn retains_scaled(spec: &CollaSetSpec) -> bool {
    ResolvedStrategy::from_spec(spec).retain_scaled
}

/// Whether the spec has PVC templates and does not say what happens to the PVCs of Pods that are scaled in.
fn has_undecided_retention(spec: &CollaSetSpec) -> bool {
    let scaling = spec.scale_strategy.as_ref();
    let policy = scaling.and_then(|s| s.persistent_volume_claim_retention_policy.as_ref());
    has_pvc_templates(spec) && policy.is_none_or(|policy| policy.when_scaled.is_none())
}

fn restart_policy(spec: &CollaSetSpec) -> Option<&str> {
    let policy = spec
        .template
        .pointer("/spec/restartPolicy")
        .and_then(Value::as_str);
    policy.filter(|policy| ["Never", "OnFailure"].contains(policy))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn spec(part: Value) -> CollaSetSpec {
        serde_json::from_value(part).unwrap()
    }

    fn pvc_template(name: &str, size: &str) -> Value {
        json!({ "metadata": { "name": name }, "spec": { "resources": { "requests": { "storage": size } } } })
    }

    #[test]
    fn each_warning_appears_when_its_cause_is_introduced() {
        let templates = |templates: &[Value]| spec(json!({ "volumeClaimTemplates": templates }));
        let policy = |policy: &str| {
            spec(json!({
                "volumeClaimTemplates": [pvc_template("data", "1Gi")], "updateStrategy": { "podUpgradePolicy": policy },
            }))
        };
        let retains = |scaled: &str| {
            spec(json!({
                "volumeClaimTemplates": [pvc_template("data", "1Gi")],
                "scaleStrategy": { "persistentVolumeClaimRetentionPolicy": { "whenScaled": scaled } },
            }))
        };
        let restarts = |policy: &str| {
            spec(json!({ "replicas": 1, "template": { "spec": { "restartPolicy": policy } } }))
        };
        for (old, new, word) in [
            (
                templates(&[pvc_template("data", "1Gi")]),
                templates(&[pvc_template("data", "2Gi")]),
                "data is changed",
            ),
            (
                templates(&[pvc_template("data", "1Gi")]),
                templates(&[]),
                "data is taken out",
            ),
            (
                policy("Recreate"),
                policy("Replace"),
                "with Replace every rollout",
            ),
            (
                restarts("Always"),
                restarts("Never"),
                "restartPolicy: Never",
            ),
            (
                retains("Retain"),
                retains("Delete"),
                "whenScaled: is no longer Retain",
            ),
            (
                retains("Retain"),
                templates(&[pvc_template("data", "1Gi")]),
                "whenScaled: is no longer Retain",
            ),
        ] {
            let warnings = spec_warnings(Some(&old), &new);
            assert!(
                warnings.len() == 1 && warnings[0].contains(word),
                "{warnings:?}"
            );
            assert_eq!(spec_warnings(Some(&new), &new), [""; 0]);
        }
        assert_eq!(spec_warnings(None, &restarts("OnFailure")).len(), 1);
        let mut grown = policy("Replace");
        grown.volume_claim_templates =
            templates(&[pvc_template("data", "2Gi")]).volume_claim_templates;
        let warnings = spec_warnings(Some(&policy("Replace")), &grown).join(" ");
        assert!(
            warnings.contains("deleted, even with whenScaled"),
            "{warnings}"
        );
        let warns_of_retention = |new| {
            spec_warnings(None, &new)
                .iter()
                .any(|w| w.contains("whenScaled: is left out"))
        };
        assert!(warns_of_retention(templates(&[pvc_template(
            "data", "1Gi"
        )])));
        assert!(!warns_of_retention(retains("Delete")) && !warns_of_retention(templates(&[])));
        let notation = spec_warnings(
            Some(&templates(&[pvc_template("data", "1Gi")])),
            &templates(&[pvc_template("data", "1024Mi"), pvc_template("more", "1Gi")]),
        );
        assert_eq!(notation, [""; 0]);
    }
}
