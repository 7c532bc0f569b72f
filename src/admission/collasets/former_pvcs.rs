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
    let template_of = |pvc: &Pvc| {
        let label = pvc.labels.get(keys::PVC_TEMPLATE_NAME);
        label.cloned().unwrap_or_default()
    };
    let is_former = |pvc: &&Arc<Pvc>| {
        let template = template_of(pvc);
        !pvc.terminating
            && !pvc.labels.contains_key(keys::ORPHANED)
            && !template.is_empty()
            && pvcs::is_generated(&format!("{name}-{template}-"), &pvc.name)
    };
    let uncontrolled = objects.pvcs.controlled_by(namespace, "");
    let former: Vec<_> = uncontrolled.iter().filter(is_former).collect();
    if former.is_empty() {
        return None;
    }
    let templates = &spec.volume_claim_templates;
    let hashes = TemplateHashes::from_templates(templates);
    let has_template = |pvc: &Pvc| {
        let name = template_of(pvc);
        templates.iter().any(|template| {
            pvc_template_name(template) == name
                && pvcs::matches_hash(pvc, &hashes.template_hash(template), &hashes)
        })
    };
    let others = former.iter().filter(|pvc| !has_template(pvc));
    let names: Vec<&str> = others.map(|pvc| &*pvc.name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "spec.volumeClaimTemplates: a former CollaSet of this name has left PVCs of other templates: {}. New Pods begin with new, empty \
             PVCs. PVCs that come with adopted Pods are kept, by the label {}, and updateStrategy decides when these Pods are \
             recreated with new, empty PVCs",
            messages::list_names(&names, MAX_NAMED),
            keys::KEPT_FOR
        )
    })
}
