//! Warns of PVCs that an earlier CollaSet of the same name has left behind.

use std::sync::Arc;

use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::cluster::objects::ObjectCaches;
use crate::domain::collaset::observed::Pvc;
use crate::domain::collaset::pvcs::{self, hash::TemplateHashes};
use crate::domain::collaset::revision::data::pvc_template_name;
use crate::domain::messages;

/// Maximum number of PVCs that the warning names.
const MAX_NAMED: usize = 5;

/// The warning that a new CollaSet does not use the PVCs of an earlier CollaSet of this name, because they belong to
/// other templates. It considers only the PVCs that this replica knows, because it is a hint and not a verdict.
pub fn former_pvcs_warning(
    objects: &ObjectCaches,
    namespace: &str,
    name: &str,
    spec: &CollaSetSpec,
) -> Option<String> {
    let template_of = |claim: &Pvc| {
        let of = claim.labels.get(keys::PVC_TEMPLATE_NAME);
        of.cloned().unwrap_or_default()
    };
    let is_left = |claim: &&Arc<Pvc>| {
        let of = template_of(claim);
        !claim.terminating
            && !claim.labels.contains_key(keys::ORPHANED)
            && !of.is_empty()
            && pvcs::is_generated(&format!("{name}-{of}-"), &claim.name)
    };
    let free = objects.claims.controlled_by(namespace, "");
    let left: Vec<_> = free.iter().filter(is_left).collect();
    if left.is_empty() {
        return None;
    }
    let templates = &spec.volume_claim_templates;
    let known = TemplateHashes::from_templates(templates);
    let is_of_one = |claim: &Pvc| {
        let of = template_of(claim);
        let mut same = templates.iter();
        same.any(|template| {
            pvc_template_name(template) == of
                && pvcs::matches_hash(claim, &known.template_hash(template), &known)
        })
    };
    let others = left.iter().filter(|claim| !is_of_one(claim));
    let left: Vec<&str> = others.map(|claim| &*claim.name).collect();
    (!left.is_empty()).then(|| {
        format!(
            "spec.volumeClaimTemplates: a former CollaSet of this name has left PVCs of other templates: {}. New Pods begin with new, empty \
             PVCs. PVCs that come with adopted Pods are kept, by the label {}, and updateStrategy decides when these Pods are \
             recreated with new, empty PVCs",
            messages::list_names(&left, MAX_NAMED),
            keys::KEPT_FOR
        )
    })
}
