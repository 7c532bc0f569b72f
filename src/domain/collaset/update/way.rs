//! How a Pod gets from what it is made of to its target.

use std::rc::Rc;

use super::super::pvcs;
use super::super::revision::data;
use super::super::revision::inplace::InPlaceChange;
use super::super::revision::progress::{self, UpdateProgress};
use super::super::set_facts::{SetFacts, Target};
use super::super::strategy::UpdatePolicy;
use crate::api::keys;
use crate::domain::decoration::labels::decorations_of;
use crate::domain::pod::Pod;

/// Returns how the Pod gets from its composition to its target.
pub fn update_way(facts: &SetFacts, id: i64, pod: &Pod, target: &Target) -> Rc<InPlaceChange> {
    let no = |reason: String| Rc::new(InPlaceChange::No(reason));
    if facts.strategy.policy != UpdatePolicy::InPlace {
        return no("podUpgradePolicy is not InPlaceIfPossible".into());
    }
    if target.in_scope && have_pvcs_changed(facts, id, pod) {
        return no("volumeClaimTemplates have changed".into());
    }
    let goal = match &target.goal {
        Ok(goal) => goal,
        Err(failure) => return no(failure.message.clone()),
    };
    let Some(from) = facts.composition_of(pod) else {
        return no(
            "the revision of the Pod, or of one of its decorations, is not known any more".into(),
        );
    };
    let mut change = facts.in_place_change(&from, goal);
    for resized in facts.resized_to(pod) {
        let back = facts.in_place_change(resized, goal);
        change = Rc::new(InPlaceChange::clone(&change).with_resize_of(&back));
    }
    let resizes = matches!(
        *change,
        InPlaceChange::Yes {
            resize: Some(_),
            ..
        }
    );
    if has_labels_of_target(pod, target)
        && let UpdateProgress::Refused(reason) = progress::update_progress(pod)
    {
        return no(reason);
    }
    let refused = &facts.observed.refused;
    match refused.resize_refusal(pod, target.name()) {
        Some(reason) if resizes => no(format!("its resize is refused: {reason}")),
        _ => change,
    }
}

/// Compares only the PVCs that the Pod mounts, because other PVCs of its ID may be kept for a rollback.
pub fn have_pvcs_changed(facts: &SetFacts, id: i64, pod: &Pod) -> bool {
    let observed = facts.observed;
    let templates = data::pvc_templates(&facts.history.updated.data);
    let pvcs = facts.pvcs_with_id(id).iter();
    let mounted = pvcs.filter(|pvc| {
        pod.spec.pvcs.contains(&pvc.name) && facts.mismatched_template_hash(pod, pvc).is_none()
    });
    let mounted: Vec<_> = mounted.cloned().collect();
    pvcs::have_templates_changed(
        &observed.set,
        templates,
        id,
        &mounted,
        &facts.template_hashes,
    )
}

/// Whether the labels of a Pod name everything that its target is made of. Its resources may differ.
fn has_labels_of_target(pod: &Pod, target: &Target) -> bool {
    let goal = target.goal.as_ref().ok();
    goal.is_some_and(|goal| {
        pod.label(keys::REVISION) == Some(&goal.template.name)
            && goal.decorations == decorations_of(pod)
    })
}
