//! Decides what the Pod of each member should be made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::composition::composition_name_of;
use super::super::draft::Draft;
use super::super::pool;
use super::super::revision::data;
use super::super::set_facts::{SetFacts, Target, Targets};
use super::scope;
use crate::domain::decoration::labels::decorations_of;
use crate::domain::pod::Pod;

/// The targets of the counted members that have a Pod.
///
/// The scope of a rollout decides only the revision of the template. Decorations have a rollout of their own, so a
/// member out of scope is updated for its decorations and keeps its revision of the template.
pub fn targets<'a>(facts: &'a SetFacts, draft: &Draft) -> &'a Targets {
    facts.targets.get_or_init(|| {
        let counted = pool::counted_ids(facts, draft);
        let scope = scope_of_update(facts, draft, &counted);
        let present = counted
            .iter()
            .filter_map(|id| Some((*id, facts.members.get(id)?)));
        let targets = present.map(|(id, pod)| {
            let target = member_target(facts, draft, (id, pod), scope.contains(&id));
            (id, target)
        });
        targets.collect()
    })
}

/// The IDs in the scope of the rollout; empty if the set is paused.
pub fn scope_of_update(facts: &SetFacts, draft: &Draft, counted: &[i64]) -> BTreeSet<i64> {
    match facts.strategy.paused {
        true => BTreeSet::new(),
        false => scope::ids_in_scope(facts, draft, counted),
    }
}

fn member_target(
    facts: &SetFacts,
    draft: &Draft,
    (id, pod): (i64, &Arc<Pod>),
    in_scope: bool,
) -> Target {
    let own = facts.revision_of(pod).unwrap_or(&facts.history.current);
    let template = match in_scope {
        true => &facts.history.updated,
        false => own,
    };
    let present = decorations_of(pod);
    let decorations = match facts.strategy.paused {
        true => present.clone(),
        false => {
            facts.wanted_decorations((id, draft.ids.get(&id)), (Some(pod), in_scope), template)
        }
    };
    let goal = facts.compose(template, &decorations);
    let is_template_behind =
        in_scope && (!facts.is_updated(pod) || have_pvcs_changed(facts, id, pod));
    let is_decorated_otherwise = decorations != present;
    Target {
        template: Arc::clone(template),
        in_scope,
        decorations,
        is_behind: goal.is_ok() && (is_template_behind || is_decorated_otherwise),
        by_decorations: !is_template_behind,
        goal,
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
    super::super::pvcs::have_templates_changed(
        &observed.set,
        templates,
        id,
        &mounted,
        &facts.template_hashes,
    )
}

/// Whether the labels of a Pod name everything that its target is made of. Its resources may differ.
pub fn has_labels_of_target(pod: &Pod, target: &Target) -> bool {
    composition_name_of(pod).as_deref() == Some(target.name())
}

/// Reports the decorations that can't be applied, each once, and how many Pods stay as they are for it.
pub fn report_failures(facts: &SetFacts, draft: &mut Draft) {
    let mut failures = BTreeMap::<(&str, &str), usize>::new();
    let targets = facts.targets.get().into_iter().flatten();
    for (_, target) in targets {
        if let Err(failure) = &target.goal {
            *failures
                .entry((&failure.decoration, &failure.message))
                .or_default() += 1;
        }
    }
    for ((decoration, message), count) in failures {
        let pods = crate::domain::messages::count_pods_with_verb(count, "stays", "stay");
        draft.report_refusal(
            "UpdateFailed",
            format!("PodDecoration {decoration} can't be applied, so {pods} unchanged: {message}"),
        );
    }
}
