//! The compositions that an update deletes Pods for.

use std::collections::BTreeSet;

use super::super::composition::{composition_name, composition_name_of};
use super::super::draft::Draft;
use super::super::pool;
use super::super::set_facts::SetFacts;
use super::super::strategy::UpdatePolicy;
use super::targets;
use crate::api::keys;
use crate::domain::pod::Pod;

/// Names of the compositions that the update gives to Pods: that of the updated revision, and the targets of all Pods
/// that are behind. Until the API server has accepted a Pod of each of them, one Pod at a time is deleted.
#[derive(Debug)]
pub struct SlotGoals {
    goals: BTreeSet<String>,
    /// IDs without a Pod whose next Pod is of one of these compositions.
    pub vacant: Vec<i64>,
}

impl SlotGoals {
    /// Collects the compositions from the targets of a plan.
    pub fn from_targets(facts: &SetFacts, draft: &Draft, counted: &[i64]) -> SlotGoals {
        let behind = targets::targets(facts, draft).values();
        let behind = behind.filter(|target| target.is_behind);
        let names: BTreeSet<&str> = behind.map(|target| target.name()).collect();
        let mut goals: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        if goals.is_empty() || facts.observed.decorations.is_empty() {
            goals.insert(facts.history.updated.name.clone());
        }
        let vacant = counted.iter().copied().filter(|id| {
            !facts.members.contains_key(id)
                && next_composition(facts, draft, *id).is_some_and(|name| goals.contains(&name))
        });
        let vacant = vacant.collect();
        SlotGoals { goals, vacant }
    }

    /// Whether the API server is known to accept Pods of every composition: it has accepted one, or one exists. Under
    /// `InPlaceIfPossible` an existing Pod counts only if it was created so and not changed to it.
    pub fn are_proven(&self, facts: &SetFacts) -> bool {
        let created = |pod: &Pod| {
            let fresh = [keys::CREATING, keys::COMPLETING];
            facts.strategy.policy != UpdatePolicy::InPlace
                || fresh.iter().any(|key| pod.label(key).is_some())
        };
        let is_of = |pod: &Pod, goal: &String| {
            let is_updated = || *goal != facts.history.updated.name || facts.is_updated(pod);
            let revision = pod.label(keys::REVISION);
            revision.is_some_and(|revision| goal.starts_with(revision))
                && composition_name_of(pod).as_ref() == Some(goal)
                && is_updated()
        };
        self.goals.iter().all(|goal| {
            let mut pods = facts.observed.pods.iter();
            facts.observed.refused.proven.contains(goal)
                || pods.any(|pod| created(pod) && is_of(pod, goal))
        })
    }
}

/// The name of the composition of which the next Pod of an ID is created.
fn next_composition(facts: &SetFacts, draft: &Draft, id: i64) -> Option<String> {
    let entry = draft.ids.get(&id);
    let recorded = entry.and_then(|data| data.get(pool::REVISION))?;
    let Some(template) = facts.history.find_revision(recorded) else {
        return Some(recorded.clone());
    };
    let wanted = facts.wanted_decorations((id, entry), (None, true), template);
    Some(composition_name(recorded, &wanted.sure))
}
