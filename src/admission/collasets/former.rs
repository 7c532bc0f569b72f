//! Claims that a former set of the name has left behind.

use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::cluster::index::Index;
use crate::domain::collaset::claims::{self, hash::hash};
use crate::domain::collaset::observed::Claim;
use crate::domain::collaset::revision::data::claim_name;
use crate::domain::wording;

/// Claims that a warning names at most.
const NAMED: usize = 5;

/// That a new set of this name does not go on with the claims of a former one, since they are of other templates. Only those count that
/// this replica knows: it is a hint, and no verdict.
pub fn warning(index: &Index, namespace: &str, name: &str, spec: &CollaSetSpec) -> Option<String> {
    let templates = &spec.volume_claim_templates;
    let templates: Vec<_> = templates
        .iter()
        .map(|of| (claim_name(of), hash(of)))
        .collect();
    let is_of_another = |claim: &Claim| {
        let label = |key: &str| claim.labels.get(key).map(String::as_str);
        let of = label(keys::PVC_TEMPLATE_NAME).unwrap_or_default();
        let mut same = templates.iter().filter(|(name, _)| *name == of);
        let is_same = same.any(|(_, hash)| label(keys::PVC_TEMPLATE_HASH) == Some(hash));
        !is_same
            && !claim.terminating
            && label(keys::ORPHANED).is_none()
            && !of.is_empty()
            && claims::is_generated(&format!("{name}-{of}-"), &claim.name)
    };
    let left = index.objects.claims.controlled_by(namespace, "");
    let left: Vec<&str> = left
        .iter()
        .filter(|claim| is_of_another(claim))
        .map(|claim| &*claim.name)
        .collect();
    (!left.is_empty()).then(|| {
        format!(
            "spec.volumeClaimTemplates: a former CollaSet of this name has left claims of other templates: {}. Pods that come with them are made again with new, \
             empty ones, as updateStrategy has it; theirs are kept, by the label {}",
            wording::listed(&left, NAMED),
            keys::KEPT_FOR
        )
    })
}
