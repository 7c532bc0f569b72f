//! Decides what the Pod of each member should be made of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::draft::Draft;
use super::super::observed::Revision;
use super::super::pool;
use super::super::revision::inplace::InPlaceChange;
use super::super::set_facts::{SetFacts, Target, Targets};
use super::scope;
use super::way::{have_pvcs_changed, update_way};
use crate::api::keys;
use crate::domain::decoration::DecorationRevisions;
use crate::domain::decoration::apply::ApplyFailure;
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
    let new_target = |decorations| make_target(facts, (id, pod), (template, in_scope), decorations);
    let entry = draft.ids.get(&id);
    let wanted = facts.wanted_decorations((id, entry), (Some(pod), in_scope), template);
    if facts.strategy.paused {
        let present = decorations_of(pod);
        return Target {
            is_postponed: wanted.sure != present,
            ..new_target(present)
        };
    }
    if wanted.by_all_labels == wanted.sure {
        return new_target(wanted.sure);
    }
    let target = new_target(wanted.by_all_labels.clone());
    if matches!(
        *update_way(facts, id, pod, &target),
        InPlaceChange::Yes { .. }
    ) {
        return target;
    }
    let differs = |name: &&String| wanted.by_all_labels.get(*name) != wanted.sure.get(*name);
    let names = wanted.by_all_labels.keys().chain(wanted.sure.keys());
    Target {
        by_single_labels: names.filter(differs).cloned().collect(),
        ..new_target(wanted.sure.clone())
    }
}

fn make_target(
    facts: &SetFacts,
    (id, pod): (i64, &Arc<Pod>),
    (template, in_scope): (&Arc<Revision>, bool),
    decorations: DecorationRevisions,
) -> Target {
    let is_template_behind =
        in_scope && (!facts.is_updated(pod) || have_pvcs_changed(facts, id, pod));
    let is_wanted_otherwise = is_template_behind || decorations != decorations_of(pod);
    let goal = match facts.lost_decoration(&decorations) {
        Some((decoration, revision)) if is_wanted_otherwise => Err(ApplyFailure {
            decoration: decoration.clone(),
            message: format!(
                "revision {revision} of the Pod is not stored any more, and the Pod is to keep it: let the rollout of the \
                 PodDecoration reach the Pod, or delete the Pod"
            ),
        }),
        _ => facts.compose(template, &decorations),
    };
    let asked_for = facts.observed.refused.altered.get(&pod.metadata.uid);
    let goal = goal.and_then(
        |goal| match asked_for.is_some_and(|name| name == goal.name()) {
            true => Err(altered_labels_failure(&decorations)),
            false => Ok(goal),
        },
    );
    Target {
        template: Arc::clone(template),
        in_scope,
        decorations,
        is_behind: goal.is_ok() && is_wanted_otherwise,
        by_decorations: !is_template_behind,
        is_postponed: false,
        by_single_labels: BTreeSet::new(),
        goal,
    }
}

/// Says that a Pod that is created again would not have these decorations either.
fn altered_labels_failure(decorations: &DecorationRevisions) -> ApplyFailure {
    let names: Vec<&str> = decorations.keys().map(String::as_str).collect();
    ApplyFailure {
        decoration: names.join(", "),
        message: format!(
            "a webhook or policy of admission changed the labels {}<name> of the Pod when it was created: exempt these \
             labels from it, and delete the Pod",
            keys::DECORATION_PREFIX
        ),
    }
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
    report_single_labels(facts, draft);
    for ((decoration, message), count) in failures {
        let pods = crate::domain::messages::count_pods_with_verb(count, "stays", "stay");
        draft.report_refusal(
            "UpdateFailed",
            format!("PodDecoration {decoration} can't be applied, so {pods} unchanged: {message}"),
        );
    }
}

/// Reports the decorations that select Pods by labels that only these Pods have, and that can't be applied in place.
fn report_single_labels(facts: &SetFacts, draft: &mut Draft) {
    let mut counts = BTreeMap::<&String, usize>::new();
    let targets = facts.targets.get().into_iter().flatten();
    for name in targets.flat_map(|(_, target)| &target.by_single_labels) {
        *counts.entry(name).or_default() += 1;
    }
    for (decoration, count) in counts {
        let pods = crate::domain::messages::count_pods_with_verb(count, "has", "have");
        draft.report_refusal(
            "UpdateFailed",
            format!(
                "PodDecoration {decoration} selects by labels that {pods} and the next Pods of these instances will not have, \
                 and it can't be applied or removed in place: put these labels into the template, or change the selector"
            ),
        );
    }
}
