//! The PVCs of the set: by instance ID, by Pod and by template.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::SetFacts;
use crate::api::keys;
use crate::domain::collaset::observed::{Pvc, Revision};
use crate::domain::collaset::pvcs::{self, hash::TemplateHashes};
use crate::domain::collaset::revision::data::{pvc_template_name, pvc_templates};
use crate::domain::pod::Pod;

impl<'a> SetFacts<'a> {
    /// The PVCs with this instance ID, whoever controls them.
    pub fn pvcs_with_id(&self, id: i64) -> &[Arc<Pvc>] {
        self.pvcs_by_id.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The PVCs with this instance ID that belong to the set.
    pub fn owned_pvcs_with_id(&self, id: i64) -> impl Iterator<Item = &Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let at = self.pvcs_with_id(id).iter();
        at.filter(move |pvc| pvc.belongs_to_set(uid))
    }

    /// IDs of PVCs that belong to the set and that no Pod mounts. The ID of the oldest PVC comes first.
    pub fn ids_of_unmounted_pvcs(&self) -> Vec<i64> {
        let ids = self.pvcs_by_id.keys().copied();
        let mut unmounted: Vec<_> = ids
            .filter_map(|id| {
                let own = || self.owned_pvcs_with_id(id).filter(|pvc| !pvc.terminating);
                let since = own().map(|pvc| pvc.creation_timestamp).min()?;
                let mut mounting = own().flat_map(|pvc| self.pods_mounting(&pvc.name));
                mounting.next().is_none().then_some((since, id))
            })
            .collect();
        unmounted.sort_unstable();
        unmounted.into_iter().map(|(_, id)| id).collect()
    }

    /// The PVCs that a Pod mounts and that belong to the set.
    pub fn owned_pvcs_of_pod(&self, pod: &Pod) -> impl Iterator<Item = &'a Arc<Pvc>> {
        let uid = self.observed.set.metadata.uid.as_deref();
        let mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        mounted.filter(move |pvc| pvc.belongs_to_set(uid))
    }

    /// The PVCs of the set that at least one Pod mounts, and for which `is_so` is true for every Pod that mounts them.
    pub fn pvcs_mounted_only_by(
        &self,
        is_so: impl Fn(&Arc<Pod>) -> bool,
    ) -> impl Iterator<Item = &'a Arc<Pvc>> {
        let own = self.owned_pvc_ids.keys().filter(move |name| {
            let mut pods = self.pods_mounting(name).iter();
            pods.next().is_some_and(&is_so) && pods.all(&is_so)
        });
        own.filter_map(|name| self.find_pvc(name))
    }

    /// Finds an observed PVC by name: the set controls it, or nobody does.
    pub fn find_pvc(&self, name: &str) -> Option<&'a Arc<Pvc>> {
        self.pvcs_by_name.get(name).copied()
    }

    /// Whether the set keeps the PVC and therefore never deletes it.
    pub fn keeps_pvc(&self, pvc: &Pvc) -> bool {
        pvc.is_kept_for(self.observed.set.metadata.uid.as_deref())
    }

    /// Whether the hash of a PVC that enters with its Pod is the hash of a template of the spec. The set would delete
    /// any other PVC as left over once the Pod is updated, without a warning to the user who recreated the set or
    /// included the Pod. The updated revision can't answer this question: it may have a former template while the
    /// revision of the spec is refused, or while the rollout is aborted.
    pub fn is_pvc_of_spec(&self, pvc: &Pvc) -> bool {
        let template = self.template_in_spec(pvc);
        let hash = pvc.labels.get(keys::PVC_TEMPLATE_HASH);
        hash.zip(template).is_some_and(|(hash, template)| {
            let hashes = self.template_hashes_with_spec();
            hashes.is_equivalent(hash, &hashes.template_hash(template))
        })
    }

    /// Whether Pods of the spec mount this kept PVC.
    pub fn serves_spec_template(&self, pvc: &Pvc) -> bool {
        self.template_in_spec(pvc).is_some_and(|template| {
            let hashes = self.template_hashes_with_spec();
            pvcs::matches_hash(pvc, &hashes.template_hash(template), hashes)
        })
    }

    /// Whether the spec has a volume claim template with the name that the PVC carries.
    pub fn has_template_in_spec(&self, pvc: &Pvc) -> bool {
        self.template_in_spec(pvc).is_some()
    }

    fn template_in_spec(&self, pvc: &Pvc) -> Option<&Value> {
        template_of_pvc(&self.observed.set.spec.volume_claim_templates, pvc)
    }

    /// Includes the spec, because its revision may have the templates in another notation.
    fn template_hashes_with_spec(&self) -> &TemplateHashes {
        let templates = &self.observed.set.spec.volume_claim_templates;
        self.hashes_with_spec
            .get_or_init(|| self.template_hashes.with_templates(templates))
    }

    /// The hash of the template of this revision that has the name in the PVC's label, if there is such a template.
    pub fn template_hash_in(&self, revision: &Revision, pvc: &Pvc) -> Option<Cow<'_, str>> {
        let template = template_of_pvc(pvc_templates(&revision.data), pvc)?;
        Some(self.template_hashes.template_hash(template))
    }

    /// Whether the set keeps a PVC that a Pod does not mount, for a return to a former template: the Pod mounts another
    /// PVC of the same template name, or the Pod's revision does not have that template.
    pub fn is_pvc_spare(&self, pod: &Pod, pvc: &Pvc) -> bool {
        let is_same = |other: &Arc<Pvc>| {
            let mut keys = [keys::INSTANCE_ID, keys::PVC_TEMPLATE_NAME].into_iter();
            keys.all(|key| other.labels.get(key) == pvc.labels.get(key))
        };
        let mut mounted = pod.spec.pvcs.iter().filter_map(|name| self.find_pvc(name));
        let revision = self.revision_of(pod);
        self.keeps_pvc(pvc)
            && (mounted.any(is_same)
                || revision.is_some_and(|of| self.template_hash_in(of, pvc).is_none()))
    }

    /// If the label of a mounted PVC names another known template than the Pod's revision has, returns the hash of the
    /// template of the Pod's revision. Somebody has edited the label of the PVC or of the Pod, and the set can't tell
    /// which.
    pub fn mismatched_template_hash(&self, pod: &Pod, pvc: &Pvc) -> Option<Cow<'_, str>> {
        let hash = pvc.labels.get(keys::PVC_TEMPLATE_HASH)?;
        let own = self.template_hash_in(self.revision_of(pod)?, pvc)?;
        let hashes = &self.template_hashes;
        (!pvcs::matches_hash(pvc, &own, hashes) && hashes.contains(hash)).then_some(own)
    }

    /// The managed Pods that mount a PVC.
    pub fn pods_mounting(&self, pvc_name: &str) -> &[Arc<Pod>] {
        self.observed
            .mounts
            .get(pvc_name)
            .map_or(&[], Vec::as_slice)
    }

    /// A Pod that may still write to a PVC: it mounts the PVC and is not finished. A terminating Pod may still write,
    /// also on a lost node.
    pub fn pvc_writer(&self, pvc_name: &str) -> Option<&Arc<Pod>> {
        self.pods_mounting(pvc_name)
            .iter()
            .find(|pod| !pod.is_finished())
    }

    /// A PVC that the next Pod of an instance ID waits for, with the Pod that still mounts it.
    pub fn awaited_pvc(&self) -> Option<(&Pod, &str)> {
        let vacant = self.recorded_ids.iter().filter(|id| !self.is_id_held(**id));
        let pvcs = vacant.flat_map(|id| self.pvcs_with_id(*id));
        let pvcs = pvcs.filter(|pvc| !pvc.labels.contains_key(keys::ORPHANED));
        let mut mounted = pvcs.filter_map(|pvc| Some((&**self.pvc_writer(&pvc.name)?, &*pvc.name)));
        mounted.next()
    }
}

/// Finds the template with the name in the PVC's label.
fn template_of_pvc<'a>(templates: &'a [Value], pvc: &Pvc) -> Option<&'a Value> {
    let name = pvc.labels.get(keys::PVC_TEMPLATE_NAME)?;
    let mut templates = templates.iter();
    templates.find(|template| pvc_template_name(template) == name)
}
