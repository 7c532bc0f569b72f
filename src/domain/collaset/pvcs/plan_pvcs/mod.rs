//! Plans the PersistentVolumeClaims (PVCs) of instances (contract 6.8, contract Q45).

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use super::hash::TemplateHashes;
use crate::api::collaset::{CollaSet, RetentionPolicy};
use crate::api::keys;
use crate::api::selector::Selector;
use crate::domain::collaset::construct::{controller_reference, template_labels};
use crate::domain::collaset::observed::{Pvc, set_name};
use crate::domain::collaset::plan::PvcChange;
use crate::domain::collaset::revision::data::{pvc_template_name, pvc_templates};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// The PVCs that one instance needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InstancePvcs {
    /// PVCs to create.
    pub create: Vec<PvcChange>,
    /// Name of the PVC that serves each volume claim template, if it exists.
    pub volumes: BTreeMap<String, String>,
    /// Whether every template has its PVC, so that the Pod can be created.
    pub ready: bool,
}

/// Returns the PVCs of instance `id`, whose Pod has a revision with these templates. `existing` are all observed PVCs,
/// and `hashes` the hashes of the templates of all revisions.
///
/// A PVC serves a template if it is not being deleted, and has the instance ID, the template name and the hash. These
/// rules refine this choice:
///
/// - A PVC that the set owns serves too if no revision knows its hash, because the hash may be another implementation's
///   notation of the same template. A PVC with the wanted hash is preferred. If the instance also has a PVC with
///   another known hash, the PVC with the unknown hash is of an older template and serves nobody.
/// - A kept PVC also serves the template in its label `kept-as`.
/// - PVCs that belong to the set are preferred.
/// - The oldest PVC is preferred. A younger PVC may come from a request that was carried out late, and be empty.
pub fn plan_instance_pvcs(
    set: &CollaSet,
    templates: &[Value],
    id: i64,
    existing: &[Arc<Pvc>],
    hashes: &TemplateHashes,
) -> InstancePvcs {
    let mut wanted = InstancePvcs::default();
    for template in templates {
        let (name, hash) = (pvc_template_name(template), hashes.template_hash(template));
        match serving_pvcs(set, id, name, &hash, existing, hashes) {
            Some(pvc) => {
                wanted.volumes.insert(name.to_owned(), pvc.name.clone());
            }
            None => wanted.create.push(PvcChange::Create {
                id,
                template: name.to_owned(),
                body: pvc_manifest(set, template, id, &hash),
            }),
        }
    }
    wanted.ready = wanted.create.is_empty();
    wanted
}

/// Returns the PVCs that a Pod mounts and that are gone, to be created under the names that the Pod has. Only templates
/// in the revision's data count. A Pod that was never scheduled does not protect its PVCs from deletion, and waits for
/// them in vain.
pub fn missing_pvcs(
    set: &CollaSet,
    revision: &Value,
    id: i64,
    pod: &Pod,
    exists: impl Fn(&str) -> bool,
    hashes: &TemplateHashes,
) -> Vec<PvcChange> {
    let volumes = revision.pointer("/spec/template/spec/volumes");
    let volumes = volumes
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let is_given = |name: &str| {
        let mut volumes = volumes.iter();
        volumes.any(|volume| volume["persistentVolumeClaim"]["claimName"] == name)
    };
    let missing = pvc_templates(revision).iter().filter_map(|template| {
        let is_of = |template: &Value, pvc_name: &str| {
            is_generated(&name_prefix(set, pvc_template_name(template)), pvc_name)
        };
        let mut mounted = pod
            .spec
            .pvcs
            .iter()
            .filter(|pvc_name| is_of(template, pvc_name));
        let missing_name = mounted.find(|pvc_name| !exists(pvc_name) && !is_given(pvc_name))?;
        // Long names share a truncated prefix, so a PVC may match several templates.
        let mut of = pvc_templates(revision)
            .iter()
            .filter(|other| is_of(other, missing_name));
        of.nth(1).is_none().then_some(())?;
        let mut body = pvc_manifest(set, template, id, &hashes.template_hash(template));
        body["metadata"]["name"] = json!(missing_name);
        Some(PvcChange::Create {
            id,
            template: pvc_template_name(template).to_owned(),
            body,
        })
    });
    missing.collect()
}

/// Whether the PVCs of instance `id` are of other templates than these, so that its Pod must be created again. A
/// missing or terminating PVC is no reason: the Pod may run on, and gets a new PVC when it is created again for another
/// reason. Added and removed templates show in the revisions, see [`super::super::revision::inplace::in_place_change`].
pub fn have_templates_changed(
    set: &CollaSet,
    templates: &[Value],
    id: i64,
    existing: &[Arc<Pvc>],
    hashes: &TemplateHashes,
) -> bool {
    templates.iter().any(|template| {
        let (name, hash) = (pvc_template_name(template), hashes.template_hash(template));
        let mut pvcs_of_template = existing
            .iter()
            .filter(|c| {
                is_usable_pvc(set, c)
                    && instance_id_label(c) == Some(id)
                    && template_name(c) == Some(name)
            })
            .peekable();
        pvcs_of_template.peek().is_some()
            && pvcs_of_template.all(|c| !serves_template(set, c, &hash, hashes) && !c.terminating)
    })
}

/// Returns the PVCs that no Pod needs any more; see [`delete_or_release`] for what the set does with them. `needed` are
/// the templates of each instance that has an ID: those of its Pod's revision, and those of the revision that its next
/// Pod will have. `needed` must be complete, because the set deletes PVCs of other templates. The module
/// `domain::collaset::reclaim` decides about PVCs when the set is deleted.
///
/// - A PVC is left over if its instance is gone, or if its template is removed or changed and no Pod needs it. With
///   `whenScaled: Retain` no PVC is left over. A PVC with a hash that no revision knows counts as a PVC of the template
///   with its template name.
/// - A kept PVC is left over only if its instance is gone, so that a return to its template is a return to its data.
/// - A PVC that does not belong to the set stays. It enters with the Pod that mounts it.
pub fn leftover_pvcs(
    set: &CollaSet,
    existing: &[Arc<Pvc>],
    needed: &BTreeMap<i64, Vec<&Value>>,
    hashes: &TemplateHashes,
) -> Vec<Arc<Pvc>> {
    let policy = set.spec.scale_strategy.as_ref();
    let policy = policy.and_then(|s| s.persistent_volume_claim_retention_policy.clone());
    let retains = policy.unwrap_or_default().when_scaled == Some(RetentionPolicy::Retain);
    let is_needed = |pvc: &Pvc| {
        let templates = instance_id_label(pvc).and_then(|id| needed.get(&id));
        templates.is_some_and(|templates| {
            is_kept_pvc(set, pvc) || is_from_templates(set, pvc, templates, hashes)
        })
    };

    let leftover = existing.iter().filter(|pvc| {
        let is_ours = instance_id_label(pvc).is_some() && template_name(pvc).is_some();
        is_owned_pvc(set, pvc) && is_ours && !pvc.terminating && !retains && !is_needed(pvc)
    });
    let mut leftover: Vec<_> = leftover.cloned().collect();
    // The order of the cache is arbitrary.
    leftover.sort_by_cached_key(|pvc| (pvc.creation_timestamp, pvc.name.clone()));
    leftover
}

/// Returns the change for a PVC that is left over. The set releases a kept PVC, and deletes every other PVC. A
/// released PVC serves nobody, as if it were deleted.
pub fn delete_or_release(set: &CollaSet, pvc: &Arc<Pvc>) -> PvcChange {
    match is_kept_pvc(set, pvc) {
        true => PvcChange::Retain(Arc::clone(pvc)),
        false => PvcChange::Delete(Arc::clone(pvc)),
    }
}

/// The label of a PVC that leaves with a Pod, or that stays and may not be taken by any set.
pub fn left_behind_labels() -> LabelPatch {
    LabelPatch([(keys::ORPHANED.to_owned(), Some("true".to_owned()))].into())
}

fn serving_pvcs<'a>(
    set: &CollaSet,
    id: i64,
    template: &str,
    hash: &str,
    existing: &'a [Arc<Pvc>],
    hashes: &TemplateHashes,
) -> Option<&'a Arc<Pvc>> {
    let of_instance = existing.iter().filter(|c| {
        is_usable_pvc(set, c)
            && instance_id_label(c) == Some(id)
            && template_name(c) == Some(template)
    });
    let is_exact = |c: &Pvc| matches_hash(c, hash, hashes);
    // Among PVCs of unknown templates, the template that came last served last.
    let since = |c: &Pvc| {
        let of = label(c, keys::PVC_TEMPLATE_HASH);
        let same = of_instance.clone();
        let same = same.filter(|other| label(other, keys::PVC_TEMPLATE_HASH) == of);
        same.map(|other| other.creation_timestamp).min()
    };
    let order = |c: &Pvc| {
        let latest = (!is_exact(c)).then(|| Reverse(since(c)));
        (
            !is_owned_pvc(set, c),
            !is_exact(c),
            latest,
            c.creation_timestamp,
            c.name.clone(),
        )
    };
    let serving = of_instance.clone();
    let serving = serving.filter(|c| !c.terminating && serves_template(set, c, hash, hashes));
    let serving = serving.min_by_key(|c| order(c))?;
    let is_known = |c: &Pvc| {
        // A kept PVC may stay beside the serving one forever.
        let of = label(c, keys::PVC_TEMPLATE_HASH);
        is_owned_pvc(set, c) && !is_kept_pvc(set, c) && of.is_some_and(|of| hashes.contains(of))
    };
    let is_older = !is_exact(serving) && of_instance.clone().any(|c| is_known(c));
    (!is_older).then_some(serving)
}

/// Whether a PVC is of one of these templates, as far as its labels tell.
fn is_from_templates(
    set: &CollaSet,
    pvc: &Pvc,
    templates: &[&Value],
    hashes: &TemplateHashes,
) -> bool {
    templates.iter().any(|template| {
        template_name(pvc) == Some(pvc_template_name(template))
            && serves_template(set, pvc, &hashes.template_hash(template), hashes)
    })
}

/// Whether a PVC is of the template with this hash, as far as its labels tell.
fn serves_template(set: &CollaSet, pvc: &Pvc, hash: &str, hashes: &TemplateHashes) -> bool {
    // A PVC without an owner may be of a very old template.
    let is_controlled = set.metadata.uid.is_some() && pvc.controller == set.metadata.uid;
    let of = label(pvc, keys::PVC_TEMPLATE_HASH).unwrap_or_default();
    let may_be = is_controlled && !hashes.contains(of);
    may_be || matches_hash(pvc, hash, hashes)
}

/// Whether a PVC has this hash, or has it in its label `kept-as`.
pub fn matches_hash(pvc: &Pvc, hash: &str, hashes: &TemplateHashes) -> bool {
    let mut keys = [keys::PVC_TEMPLATE_HASH, keys::KEPT_AS].into_iter();
    keys.any(|key| label(pvc, key).is_some_and(|of| hashes.is_equivalent(of, hash)))
}

/// Whether a PVC may serve an instance of the set: it belongs to the set, or the set may adopt it.
pub fn is_usable_pvc(set: &CollaSet, pvc: &Pvc) -> bool {
    is_owned_pvc(set, pvc) || is_adoptable_pvc(set, pvc)
}

/// Whether the PVC belongs to the set.
pub(super) fn is_owned_pvc(set: &CollaSet, pvc: &Pvc) -> bool {
    pvc.belongs_to_set(set.metadata.uid.as_deref())
}

fn is_kept_pvc(set: &CollaSet, pvc: &Pvc) -> bool {
    pvc.is_kept_for(set.metadata.uid.as_deref())
}

/// Whether the set may adopt a PVC without a controller, by its labels and its name. Sets with overlapping selectors
/// give their PVCs the same labels; the name tells to which set a PVC belongs.
fn is_adoptable_pvc(set: &CollaSet, pvc: &Pvc) -> bool {
    pvc.controller.is_none()
        && has_generated_name(set, pvc)
        && label(pvc, keys::CONTROL) == Some(keys::CONTROL_VALUE)
        && label(pvc, keys::PVC_TEMPLATE_HASH).is_some()
        && label(pvc, keys::ORPHANED).is_none()
        && matches_selector(set, pvc)
}

/// Whether a PVC has a name that the set generates for the PVC's template.
pub fn has_generated_name(set: &CollaSet, pvc: &Pvc) -> bool {
    let template = template_name(pvc).unwrap_or_default();
    is_generated(&name_prefix(set, template), &pvc.name)
}

/// Whether a PVC has the labels in `matchLabels`, or, for a selector without them, matches the expressions. A selector
/// that is empty, or that only excludes labels, matches no PVC.
fn matches_selector(set: &CollaSet, pvc: &Pvc) -> bool {
    let Some(selector) = set.spec.selector.as_ref() else {
        return false;
    };
    let mut labels = selector.match_labels.iter().flatten().peekable();
    if labels.peek().is_some() {
        return labels.all(|(key, value)| label(pvc, key) == Some(value));
    }
    let asks = expression_keys(selector).next().is_some();
    asks && Selector::compile(selector).is_ok_and(|selector| selector.matches(&pvc.labels))
}

/// Label keys whose presence the expressions of a selector require.
fn expression_keys(selector: &LabelSelector) -> impl Iterator<Item = &String> {
    let expressions = selector.match_expressions.iter().flatten();
    let asking = expressions.filter(|e| ["In", "Exists"].contains(&e.operator.as_str()));
    asking.map(|e| &e.key)
}

/// Labels by which the selector matches a PVC: those of `matchLabels`, and those of the Pod template that its
/// expressions require.
fn labels_for_selector(set: &CollaSet) -> Map<String, Value> {
    let selector = set.spec.selector.clone().unwrap_or_default();
    let template = template_labels(&set.spec.template);
    let mut labels: Map<String, Value> = expression_keys(&selector)
        .filter_map(|key| Some((key.clone(), template.get(key)?.clone())))
        .collect();
    for (key, value) in selector.match_labels.iter().flatten() {
        labels.insert(key.clone(), value.as_str().into());
    }
    labels
}

fn label<'a>(pvc: &'a Pvc, key: &str) -> Option<&'a str> {
    pvc.labels.get(key).map(String::as_str)
}

/// Longest part of a `generateName` that becomes part of a name, both in the API server and in this program.
pub(super) const MAX_NAME_PREFIX: usize = 58;

/// Whether a name is generated from this `generateName`, or ends with a number in the place of the random characters.
pub fn is_generated(prefix: &str, name: &str) -> bool {
    let prefix = prefix.get(..MAX_NAME_PREFIX).unwrap_or(prefix);
    name.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && !rest.contains('-'))
}

pub(super) fn name_prefix(set: &CollaSet, template: &str) -> String {
    format!("{}-{template}-", set_name(set))
}

/// The instance ID in the label of a PVC.
pub fn instance_id_label(pvc: &Pvc) -> Option<i64> {
    label(pvc, keys::INSTANCE_ID)?.parse().ok()
}

pub(super) fn template_name(pvc: &Pvc) -> Option<&str> {
    label(pvc, keys::PVC_TEMPLATE_NAME)
}

fn pvc_manifest(set: &CollaSet, template: &Value, id: i64, hash: &str) -> Value {
    let mut labels = template_labels(template);
    labels.extend(labels_for_selector(set));
    for (key, value) in [
        (keys::CONTROL, keys::CONTROL_VALUE),
        (keys::INSTANCE_ID, &id.to_string()),
        (keys::PVC_TEMPLATE_NAME, pvc_template_name(template)),
        (keys::PVC_TEMPLATE_HASH, hash),
    ] {
        labels.insert(key.to_owned(), value.into());
    }
    let mut metadata = Map::new();
    let prefix = name_prefix(set, pvc_template_name(template));
    metadata.insert("generateName".to_owned(), prefix.into());
    metadata.insert("labels".to_owned(), labels.into());
    if let Some(annotations) = template
        .pointer("/metadata/annotations")
        .filter(|a| a.is_object())
    {
        metadata.insert("annotations".to_owned(), annotations.clone());
    }
    metadata.insert(
        "ownerReferences".to_owned(),
        json!([controller_reference(set)]),
    );
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": template.get("spec").cloned().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
