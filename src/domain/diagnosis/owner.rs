//! What the controller of a Pod does to the Pod.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{OwnerFacts, RolloutFacts, RuleFacts, RuleVerdict};
use super::{ObservedPod, PodController};
use crate::api::collaset::{CollaSet, PodUpgradePolicy};
use crate::api::int_or_percent::IntOrPercent;
use crate::api::keys;
use crate::domain::collaset::strategy::{
    ResolvedStep, ResolvedStrategy, UpdatePolicy, UpdateScope,
};
use crate::domain::lifecycle::operator;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// The controller of the Pod. `None` if the Pod has none.
pub fn owner_facts(observed: &ObservedPod, rules: &[RuleFacts]) -> Option<OwnerFacts> {
    let owner = observed.pod.controller()?;
    let mut facts = OwnerFacts {
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        replicas: None,
        rollout: None,
        remark: None,
        troubles: Vec::new(),
    };
    match &observed.controller {
        None => {}
        Some(PodController::CollaSet(set)) => {
            let rollout = rollout_facts(set, &observed.pod);
            facts.replicas = Some(u32::try_from(set.spec.replicas.unwrap_or(0)).unwrap_or(0));
            let paused = rollout.paused.then(|| PAUSED_MESSAGE.to_owned());
            let step = describe_steps(set);
            let pauses = step.as_ref().is_some_and(|step| step.pauses);
            let older_reason =
                older_revision_reason(observed, set, &rollout).filter(|_| step.is_none());
            let unavailable_limit =
                (!pauses).then(|| describe_max_unavailable(observed, set, &rollout));
            let surge_limit = (!pauses).then(|| describe_max_surge(observed, set, &rollout));
            let step = step.map(|step| step.text);
            let remarks = [
                paused,
                step,
                older_reason,
                unavailable_limit.flatten(),
                surge_limit.flatten(),
            ];
            let remarks: Vec<String> = remarks.into_iter().flatten().collect();
            facts.remark = (!remarks.is_empty()).then(|| remarks.join("; "));
            if observed.is_set_deleted() {
                facts.remark = Some("it is being deleted".to_owned());
            }
            facts.rollout = Some(rollout);
            facts.troubles = collaset_problems(set);
        }
        Some(PodController::Other { replicas }) => facts.replicas = *replicas,
        Some(PodController::Gone) => facts.remark = Some("it is gone".to_owned()),
    }
    let deployment = observed.context.recreate.as_deref();
    let deployment =
        deployment.filter(|_| facts.remark.is_none() && rules.iter().any(is_availability_rule));
    if let Some(deployment) = deployment {
        facts.remark = Some(describe_recreate(deployment));
    }
    Some(facts)
}

fn is_availability_rule(rule: &RuleFacts) -> bool {
    rule.kind == "availablePolicy" && rule.verdict != RuleVerdict::NotApplying
}

fn describe_recreate(deployment: &str) -> String {
    format!(
        "Deployment {deployment} has the strategy Recreate, which deletes all Pods before it makes new ones: under a rule \
         with availablePolicy its rollouts stop once the budget is used up; use RollingUpdate"
    )
}

fn rollout_facts(set: &CollaSet, pod: &Pod) -> RolloutFacts {
    let update = set.spec.update_strategy.clone().unwrap_or_default();
    let partition = match ResolvedStrategy::from_spec(&set.spec).scope {
        UpdateScope::Partition(partition) => Some(u32::try_from(partition).unwrap_or(u32::MAX)),
        UpdateScope::ByLabel => None,
    };
    let count = |n: Option<i32>| u32::try_from(n.unwrap_or(0)).unwrap_or(0);
    RolloutFacts {
        revision: pod.label(keys::REVISION).unwrap_or_default().to_owned(),
        updated_revision: updated_revision(set).unwrap_or_default().to_owned(),
        policy: update
            .pod_upgrade_policy
            .unwrap_or(PodUpgradePolicy::InPlaceIfPossible)
            .to_string(),
        partition,
        delay_seconds: count(update.operation_delay_seconds),
        paused: set.spec.paused,
    }
}

/// The revision of the present template. `None` until the status describes the latest change of the set, although the
/// controller may already work on Pods for this change.
pub(super) fn updated_revision(set: &CollaSet) -> Option<&str> {
    let status = set.status.as_ref()?;
    let follows = set.metadata.generation.unwrap_or(0) <= status.observed_generation;
    (follows && !status.updated_revision.is_empty()).then_some(&status.updated_revision)
}

/// The position of a rollout in its steps.
pub(super) struct RolloutPosition {
    pub(super) text: String,
    /// Whether the rollout is at a pause, so that no further Pod is updated.
    pub(super) pauses: bool,
}

/// The text about a rollout that was aborted or is at a step. The status of the set has more details.
pub(super) fn describe_steps(set: &CollaSet) -> Option<RolloutPosition> {
    let status = set.status.as_ref()?;
    let rollout = status.rollout.as_ref()?;
    if rollout.aborted {
        let revision = &rollout.revision;
        return Some(RolloutPosition {
            text: format!("the rollout of its revision {revision} was aborted"),
            pauses: false,
        });
    }
    let (step, steps) = (rollout.step, rollout.steps);
    if step < 1 || step > steps {
        return None;
    }
    let position = format!("step {step} of {steps}");
    let mut conditions = status.conditions.iter();
    let pause = conditions.find(|c| c.type_ == "Update" && c.reason == "StepPaused");
    // The message begins with the step, such as "step 2 of 4". The rest says how the pause ends.
    let pause = pause.and_then(|c| c.message.strip_prefix(&position));
    Some(RolloutPosition {
        text: match pause {
            Some(pause) => format!("its rollout is at {position}, which{pause}"),
            None => format!("its rollout is at {position}"),
        },
        pauses: pause.is_some(),
    })
}

const PAUSED_MESSAGE: &str = "it is paused: set spec.paused to false to let it scale and update (a deleted Pod is still recreated)";

/// Reasons of conditions about a write that the API server refuses, or about a Pod that can't enter or leave the set.
const REFUSAL_REASONS: [&str; 5] = [
    "ScaleOutFailed",
    "ScaleInFailed",
    "UpdateFailed",
    "IncludeNotAllowed",
    "ExcludeNotAllowed",
];

/// Refused writes of a set, each reason and each message once, and the message of the condition `Stalled`.
pub(super) fn collaset_problems(set: &CollaSet) -> Vec<String> {
    let conditions = set.status.iter().flat_map(|status| &status.conditions);
    let mut reported: Vec<(&str, &str)> = Vec::new();
    let problems = conditions.filter_map(|c| {
        let (type_, reason, message) = (&*c.type_, &*c.reason, &c.message);
        match (type_, &*c.status) {
            ("Scale" | "Update" | "Ready", "False") if REFUSAL_REASONS.contains(&reason) => {
                // Several conditions may report the same refusal, one of them with an additional text.
                let mut earlier = reported.iter();
                let is_new = !earlier.any(|(r, m)| *r == reason || message.starts_with(m));
                reported.push((reason, message));
                is_new.then(|| format!("{reason}: {message}"))
            }
            ("Stalled", "True") => Some(format!("{type_}: {reason}: {message}")),
            _ => None,
        }
    });
    problems.collect()
}

/// Why a Pod of an older revision is not updated.
fn older_revision_reason(
    observed: &ObservedPod,
    set: &CollaSet,
    rollout: &RolloutFacts,
) -> Option<String> {
    let pod = &observed.pod;
    if rollout.paused || !awaits_update(rollout, pod) {
        return None;
    }
    match rollout.partition {
        Some(0) => None,
        Some(_) if is_template_rolled_back(set) => Some(format!(
            "the template is that of its current revision {}: Pods of newer revisions go back to this revision, and \
             its partition keeps Pods of older revisions",
            rollout.updated_revision
        )),
        Some(partition) => {
            let partition = usize::try_from(partition).unwrap_or(usize::MAX);
            let owned = owned_pods(observed);
            let older = owned.as_ref().map(|owned| count_older(owned, rollout));
            let is_kept = older.is_some_and(|older| older <= partition);
            let verb = if is_kept { "is" } else { "may be" };
            let kept_count = older.map_or(partition, |older| older.min(partition));
            let pods = messages::count_pods(kept_count);
            // The other Pods are updated already.
            let present = owned.map_or(0, |owned| owned.len());
            let raised_partition = match kept_count < partition.min(present) {
                true => format!("; {}", messages::partition_keeps_updated(partition)),
                false => String::new(),
            };
            Some(format!(
                "its partition keeps {pods} on older revisions, and this Pod {verb} one of them{raised_partition}"
            ))
        }
        None if pod.label(keys::UPDATE_INCLUDED).is_none() => Some(format!(
            "it updates by label: set {} on the Pod to include it",
            keys::UPDATE_INCLUDED
        )),
        None => None,
    }
}

/// Whether `maxUnavailable`, `maxSurge` or the partition of the set may hold back the update of a Pod. If so, the
/// diagnosis needs the Pods of the set.
pub fn may_be_bounded(set: &CollaSet, pod: &Pod) -> bool {
    let update = set.spec.update_strategy.as_ref();
    let is_bounded = update.is_some_and(|u| u.max_unavailable.is_some() || u.max_surge.is_some());
    let rollout = rollout_facts(set, pod);
    (is_bounded || rollout.partition.is_some_and(|partition| partition > 0))
        && awaits_update(&rollout, pod)
}

/// The Pods of the Pod's controller. `None` if they were not read, which shows by the absence of the Pod itself.
fn owned_pods(observed: &ObservedPod) -> Option<Vec<&Arc<Pod>>> {
    let uid = &observed.pod.controller()?.uid;
    let owned = observed.pods.iter();
    let owned = owned.filter(|pod| pod.controller().is_some_and(|owner| owner.uid == *uid));
    let owned: Vec<_> = owned.collect();
    let mut listed = owned.iter();
    listed.find(|pod| pod.metadata.uid == observed.pod.metadata.uid)?;
    Some(owned)
}

/// How many of these Pods have an older revision and no update in progress.
fn count_older(owned: &[&Arc<Pod>], rollout: &RolloutFacts) -> usize {
    let older = owned.iter().filter(|pod| {
        pod.label(keys::REVISION) != Some(&*rollout.updated_revision)
            && !operator::is_in_progress(pod, "collaset", "update")
    });
    older.count()
}

/// Why `maxUnavailable` or `maxSurge` of the set holds back the update of an available Pod, in words that are the same
/// for all such Pods.
pub(super) fn describe_own_limit(observed: &ObservedPod, set: &CollaSet) -> Option<String> {
    let rollout = rollout_facts(set, &observed.pod);
    let limit = describe_max_unavailable(observed, set, &rollout)
        .or_else(|| describe_max_surge(observed, set, &rollout))?;
    Some(limit.replace(" holds the update of this Pod: ", " holds its update: "))
}

/// The text if `maxUnavailable` of the set holds back the update of an available Pod. The Pods are counted as in the
/// plan of the set.
fn describe_max_unavailable(
    observed: &ObservedPod,
    set: &CollaSet,
    rollout: &RolloutFacts,
) -> Option<String> {
    if !awaits_update(rollout, &observed.pod) || is_update_paused_or_unselected(observed, rollout) {
        return None;
    }
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    let kept_count = kept_by_step(set, &strategy).max(kept_by_partition(set, &strategy));
    if count_older(&owned_pods(observed)?, rollout) <= kept_count {
        return None;
    }
    describe_used_max_unavailable(observed, set)
}

/// The text if `maxUnavailable` of the set is used up, so that no update of an available Pod begins.
pub(super) fn describe_used_max_unavailable(
    observed: &ObservedPod,
    set: &CollaSet,
) -> Option<String> {
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    let limit = strategy.max_unavailable?;
    let value = set
        .spec
        .update_strategy
        .as_ref()?
        .max_unavailable
        .as_ref()?;
    let value = IntOrPercent::parse(value).ok()?;
    if !observed.pod.is_available() || strategy.policy == UpdatePolicy::Replace {
        return None;
    }
    let owned = owned_pods(observed)?;
    let operations = ["update", "scale-in"];
    let is_staying = |pod: &&&Arc<Pod>| {
        let mut operations = operations.iter();
        let is_leaving = operations.any(|type_| operator::is_in_progress(pod, "collaset", type_))
            || pod.label(keys::TO_DELETE).is_some();
        pod.is_available() && !is_leaving
    };
    let replicas = strategy.replicas;
    let unavailable = replicas.saturating_sub(owned.iter().filter(is_staying).count());
    (unavailable >= limit).then(|| {
        format!(
            "its updateStrategy.maxUnavailable ({value}) holds the update of this Pod: {unavailable} of {replicas} Pods are unavailable or on \
             their way, and at most {limit} may be"
        )
    })
}

/// Whether the set is paused, or updates by label and leaves the Pod out.
fn is_update_paused_or_unselected(observed: &ObservedPod, rollout: &RolloutFacts) -> bool {
    let by_label = rollout.partition.is_none();
    rollout.paused || by_label && observed.pod.label(keys::UPDATE_INCLUDED).is_none()
}

/// The text if `maxSurge` of the set holds back the replacement of a Pod. The Pods are counted as in the plan of the
/// set.
fn describe_max_surge(
    observed: &ObservedPod,
    set: &CollaSet,
    rollout: &RolloutFacts,
) -> Option<String> {
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    let limit = strategy.max_surge?;
    let value = set.spec.update_strategy.as_ref()?.max_surge.as_ref()?;
    let value = IntOrPercent::parse(value).ok()?;
    let pod = &observed.pod;
    let is_waiting = awaits_update(rollout, pod) && pod.label(keys::TO_REPLACE).is_none();
    if !is_waiting
        || is_update_paused_or_unselected(observed, rollout)
        || strategy.policy != UpdatePolicy::Replace
    {
        return None;
    }
    let owned = owned_pods(observed)?;
    let present = owned.iter().filter(|pod| !pod.is_terminating());
    // A replace pair of a cancelled update counts as long as both of its Pods exist.
    let new_halves = present.clone();
    let new_halves: BTreeMap<_, _> = new_halves
        .filter_map(|new_half| Some((new_half.label(keys::REPLACE_PAIR_ORIGIN_NAME)?, new_half)))
        .collect();
    let is_replaced = |pod: &Pod| match pod.label(keys::TO_REPLACE) {
        Some(_) => pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_some(),
        None => new_halves
            .get(&*pod.metadata.name)
            .is_some_and(|new_half| new_half.label(keys::REVISION) != pod.label(keys::REVISION)),
    };
    if is_replaced(pod) {
        return None;
    }
    let is_older = |pod: &Pod| pod.label(keys::REVISION) != Some(&*rollout.updated_revision);
    let waiting = present
        .clone()
        .filter(|pod| is_older(pod) && !is_replaced(pod));
    let kept_count = kept_by_step(set, &strategy).max(kept_by_partition(set, &strategy));
    let replaced_count = present.filter(|pod| is_replaced(pod)).count();
    if replaced_count < limit || waiting.count() <= kept_count {
        return None;
    }
    let pods = messages::count_pods_with_verb(replaced_count, "is", "are");
    Some(format!(
        "its updateStrategy.maxSurge ({value}) holds the update of this Pod: {pods} being replaced, and at most {limit} may be"
    ))
}

/// Number of Pods that the partition keeps on older revisions. 0 if it is uncertain.
fn kept_by_partition(set: &CollaSet, strategy: &ResolvedStrategy) -> usize {
    match strategy.scope {
        UpdateScope::Partition(partition) if !is_template_rolled_back(set) => partition,
        _ => 0,
    }
}

/// Whether the template is the one of the current revision, from which a rollout would start. The status does not show
/// which revisions are newer.
fn is_template_rolled_back(set: &CollaSet) -> bool {
    let current = set.status.as_ref().map(|s| &*s.current_revision);
    current.is_some() && current == updated_revision(set)
}

/// Number of Pods that the reached steps of a rollout keep on older revisions.
fn kept_by_step(set: &CollaSet, strategy: &ResolvedStrategy) -> usize {
    let status = set.status.as_ref().and_then(|s| s.rollout.as_ref());
    let step = status.filter(|rollout| !rollout.aborted);
    let reached = step.map_or(0, |rollout| usize::try_from(rollout.step).unwrap_or(0));
    let mut steps = strategy.steps.iter().take(reached).rev();
    let partition = steps.find_map(|step| match step {
        ResolvedStep::Partition(partition) => Some(*partition),
        ResolvedStep::Pause(_) => None,
    });
    partition.unwrap_or(0)
}

/// Whether a Pod does not have the updated revision of the set, and its update has not begun.
fn awaits_update(rollout: &RolloutFacts, pod: &Pod) -> bool {
    let updated = &rollout.updated_revision;
    !updated.is_empty()
        && *updated != rollout.revision
        && !operator::is_in_progress(pod, "collaset", "update")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn set(generation: i64, observed: i64) -> CollaSet {
        serde_json::from_value(json!({
            "metadata": { "name": "web", "generation": generation },
            "spec": { "replicas": 1, "template": {} },
            "status": { "observedGeneration": observed, "updatedRevision": "web-1" },
        }))
        .unwrap()
    }

    #[test]
    fn step_of_a_rollout_is_reported() {
        let with = |rollout: serde_json::Value| {
            let mut set = set(2, 2);
            let status = set.status.as_mut().unwrap();
            status.rollout = serde_json::from_value(rollout).unwrap();
            status.conditions = serde_json::from_value(json!([{
                "type": "Ready", "status": "False", "reason": "ScaleOutFailed", "message": "no quota",
            }, {
                "type": "Update", "status": "False", "reason": "StepPaused", "message": "step 2 of 4 pauses until 10:00",
            }]))
            .unwrap();
            describe_steps(&set).map(|step| step.text)
        };
        assert_eq!(with(json!(null)), None);
        let over = json!({ "revision": "web-1", "step": 5, "steps": 4 });
        assert_eq!(with(over), None);
        let paused = with(json!({ "revision": "web-1", "step": 2, "steps": 4 })).unwrap();
        assert_eq!(
            paused,
            "its rollout is at step 2 of 4, which pauses until 10:00"
        );
        let aborted = with(json!({ "revision": "web-1", "aborted": true })).unwrap();
        assert_eq!(aborted, "the rollout of its revision web-1 was aborted");
    }

    #[test]
    fn refusal_of_scale_and_rollout_is_reported_once() {
        let mut set = set(2, 2);
        set.status.as_mut().unwrap().conditions = serde_json::from_value(json!([
            { "type": "Scale", "status": "False", "reason": "ScaleOutFailed", "message": "no quota" },
            { "type": "Update", "status": "False", "reason": "UpdateFailed", "message": "no quota; 3 Pods to update" },
            { "type": "Ready", "status": "False", "reason": "UpdateFailed", "message": "no quota; 3 Pods to update" },
        ]))
        .unwrap();
        assert_eq!(collaset_problems(&set), ["ScaleOutFailed: no quota"]);
    }

    #[test]
    fn updated_revision_is_reported_only_for_the_present_template() {
        assert_eq!(updated_revision(&set(2, 2)), Some("web-1"));
        assert_eq!(updated_revision(&set(3, 2)), None);
    }
}
