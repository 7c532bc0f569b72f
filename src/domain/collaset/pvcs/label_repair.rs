//! Repairs labels that somebody has edited on PVCs of the set. A plan reads such a PVC with its original labels, and
//! restores them. With the edited labels, a mounted PVC would serve another instance or be deleted as left over.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::plan_pvcs::{
    MAX_NAME_PREFIX, instance_id_label, is_generated, is_owned_pvc, name_prefix, template_name,
};
use crate::api::keys;
use crate::domain::collaset::has_name_of_set;
use crate::domain::collaset::observed::{ObservedSet, Pvc, owns_entry};
use crate::domain::collaset::plan::{OwnershipChange, PvcChange};
use crate::domain::collaset::revision::data::{pvc_template_name, pvc_templates};
use crate::domain::lifecycle::LabelPatch;
use crate::domain::pod::Pod;

/// Returns the observation with the original labels of the PVCs, and the PVCs whose labels must be restored.
pub fn with_corrected_labels(
    observed: &ObservedSet,
) -> (Cow<'_, ObservedSet>, Vec<(Arc<Pvc>, LabelPatch)>) {
    let templates = named_templates(observed);
    let pvcs = observed.pvcs.iter().enumerate();
    let wrong: Vec<_> = pvcs
        .filter_map(|(at, pvc)| Some((at, label_repairs(observed, &templates, pvc)?)))
        .collect();
    if wrong.is_empty() {
        return (Cow::Borrowed(observed), Vec::new());
    }
    let mut as_made = observed.clone();
    let mended = wrong.into_iter().map(|(at, labels)| {
        let mut pvc = Pvc::clone(&observed.pvcs[at]);
        pvc.labels.extend(labels.clone());
        as_made.pvcs[at] = Arc::new(pvc);
        let labels = labels.into_iter().map(|(key, value)| (key, Some(value)));
        (Arc::clone(&observed.pvcs[at]), LabelPatch(labels.collect()))
    });
    let mended = mended.collect();
    (Cow::Owned(as_made), mended)
}

/// Adds to the changes of a plan the restored labels of PVCs. A label that a change sets itself has priority, and a PVC
/// that is deleted needs no repair. `alone` says whether a PVC without another change is patched, too.
pub fn restore_labels(
    changes: &mut Vec<PvcChange>,
    mended: Vec<(Arc<Pvc>, LabelPatch)>,
    alone: bool,
) {
    for (pvc, mut labels) in mended {
        let is_of = |change: &&mut PvcChange| match change {
            PvcChange::Patch { pvc: of, .. } | PvcChange::Delete(of) | PvcChange::Retain(of) => {
                of.uid == pvc.uid
            }
            PvcChange::Create { .. } => false,
        };
        match changes.iter_mut().find(is_of) {
            Some(PvcChange::Patch {
                labels: planned, ..
            }) => {
                labels.0.append(&mut planned.0);
                *planned = labels;
            }
            None if alone => changes.push(PvcChange::Patch {
                pvc,
                labels,
                ownership: OwnershipChange::Keep,
            }),
            _ => {}
        }
    }
}

/// Volume claim templates of all revisions, each once: its name, and the prefix of the names of its PVCs.
type NamedTemplates<'a> = Vec<(&'a str, String)>;

fn named_templates(observed: &ObservedSet) -> NamedTemplates<'_> {
    let revisions = observed.revisions.iter();
    let stored = revisions.flat_map(|revision| pvc_templates(&revision.data));
    let templates = stored.chain(&observed.set.spec.volume_claim_templates);
    let names: BTreeSet<&str> = templates.map(pvc_template_name).collect();
    let templates = names
        .into_iter()
        .map(|name| (name, name_prefix(&observed.set, name)));
    templates.collect()
}

/// The original values of the labels of a PVC that somebody has edited; `None` if there are none, as far as can be
/// known.
fn label_repairs(
    observed: &ObservedSet,
    templates: &NamedTemplates<'_>,
    pvc: &Pvc,
) -> Option<BTreeMap<String, String>> {
    let is_owned = is_owned_pvc(&observed.set, pvc);
    let is_ours = is_owned || pvc.controller.is_none();
    if !is_ours || pods_mounting(observed, pvc).next().is_none() {
        return None; // a user may label an unmounted PVC so that the set keeps it
    }
    let template =
        mislabelled_template(templates, pvc).map(|of| (keys::PVC_TEMPLATE_NAME.to_owned(), of));
    let id = is_owned
        .then(|| instance_id_from_pods(observed, pvc))
        .flatten();
    let id = id.map(|id| (keys::INSTANCE_ID.to_owned(), id));
    let labels: BTreeMap<_, _> = template.into_iter().chain(id).collect();
    (!labels.is_empty()).then_some(labels)
}

/// The Pods that mount a PVC and belong to the set, or have no controller and the name of a Pod of this set.
fn pods_mounting<'a>(observed: &'a ObservedSet, pvc: &Pvc) -> impl Iterator<Item = &'a Arc<Pod>> {
    let pods = observed.mounts.get(&pvc.name).into_iter().flatten();
    let set = &observed.set.metadata;
    pods.filter(|pod| match pod.controller() {
        Some(owner) => Some(&owner.uid) == set.uid.as_ref(),
        None => has_name_of_set(set.name.as_deref().unwrap_or_default(), &pod.metadata.name),
    })
}

/// The Pods that mount a PVC and that the set controls.
fn owned_pods_mounting<'a>(
    observed: &'a ObservedSet,
    pvc: &Pvc,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    pods_mounting(observed, pvc).filter(|pod| pod.controller().is_some())
}

/// Returns the template in the name of a PVC, if its label names another template. If the name of the PVC contains the
/// template in the label, the label is correct, even if another set generated the name.
fn mislabelled_template(templates: &NamedTemplates<'_>, pvc: &Pvc) -> Option<String> {
    let template_label = template_name(pvc);
    let named = pvc.name.rsplit_once('-').map(|(named, _)| named);
    let rest = named
        .zip(template_label)
        .and_then(|(named, template_label)| named.strip_suffix(template_label));
    if rest.is_some_and(|rest| rest.ends_with('-')) {
        return None;
    }
    let mut of = templates
        .iter()
        .filter(|(_, prefix)| is_generated(prefix, &pvc.name));
    let (name, prefix) = of.next()?;
    // A long prefix is truncated, and may be that of a template that is gone.
    let is_unambiguous = of.next().is_none() && prefix.len() <= MAX_NAME_PREFIX;
    (is_unambiguous && template_label != Some(name)).then(|| (*name).to_owned())
}

/// Returns the instance ID of the Pods that mount a PVC, if somebody has edited the label of the PVC and not of the
/// Pod. The PVC was edited if the pool has the ID of the Pod and not that of the PVC, or if another PVC of the set has
/// that ID by right.
fn instance_id_from_pods(observed: &ObservedSet, pvc: &Pvc) -> Option<String> {
    let id_label = pvc.labels.get(keys::INSTANCE_ID);
    let carried = owned_pods_mounting(observed, pvc)
        .next()?
        .label(keys::INSTANCE_ID)?;
    let agrees = |pod: &Arc<Pod>| pod.label(keys::INSTANCE_ID) == Some(carried);
    let id: i64 = carried.parse().ok()?;
    if id_label.is_some_and(|id_label| id_label == carried)
        || !owned_pods_mounting(observed, pvc).all(agrees)
    {
        return None;
    }
    let is_known = is_id_in_pool(observed, id);
    let is_believed =
        instance_id_label(pvc).is_some_and(|id_label| is_id_in_pool(observed, id_label));
    let is_other = |other: &Pvc| {
        other.name != pvc.name
            && is_owned_pvc(&observed.set, other)
            && instance_id_label(other) == instance_id_label(pvc)
            && template_name(other) == template_name(pvc)
    };
    // An instance may have PVCs of several templates with one name while the templates change.
    let is_same = |other: &Pvc| {
        let hash = |pvc: &Pvc| pvc.labels.get(keys::PVC_TEMPLATE_HASH).cloned();
        hash(other) == hash(pvc)
    };
    let has_right = |other: &Pvc| match owned_pods_mounting(observed, other).next() {
        Some(pod) => pod.label(keys::INSTANCE_ID) == id_label.map(String::as_str),
        None => is_known && is_same(other),
    };
    let mut others = observed.pvcs.iter().filter(|other| is_other(other));
    let is_edited = is_known && !is_believed || others.any(|other| has_right(other));
    is_edited.then(|| carried.to_owned())
}

/// Whether the pool has an entry of the set with this ID.
fn is_id_in_pool(observed: &ObservedSet, id: i64) -> bool {
    let contexts = observed.pool.iter().flat_map(|pool| &pool.contexts);
    let mut entry = contexts.filter(|context| context.id == id);
    entry.any(|context| owns_entry(&observed.set, &context.data))
}
