//! Decides from a stored CollaSet how far its rollout is, and whether it goes on by itself. The decision does no I/O.

use crate::api::collaset::{CollaSet, CollaSetCondition, CollaSetStatus};
use crate::api::keys;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};

/// How far a rollout is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolloutState {
    /// All Pods in the scope of the update are updated and available.
    Complete(String),
    /// The rollout does not go on by itself. The text has the reason and the remedy.
    Stopped(String),
    /// The rollout goes on.
    Going(String),
}

/// The counts of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RolloutCounts {
    /// Pods of the updated revision that are available.
    pub done: u64,
    /// Pods that the rollout will have updated in the end. By label this number is not known, and is that of all Pods.
    pub wanted: u64,
}

/// The state of the rollout of a CollaSet.
pub fn rollout_state(set: &CollaSet) -> RolloutState {
    let status = set.status.clone().unwrap_or_default();
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let title = format!("CollaSet {name}");
    if set.metadata.deletion_timestamp.is_some() {
        return RolloutState::Stopped(format!("{title} is being deleted"));
    }
    let generation = set.metadata.generation.unwrap_or(0);
    if status.observed_generation < generation {
        return RolloutState::Going(format!(
            "{title}: its controller has not seen the present spec yet"
        ));
    }
    let annotations = set.metadata.annotations.as_ref();
    if let Some(command) = annotations.and_then(|annotations| annotations.get(keys::ROLLOUT)) {
        return RolloutState::Going(format!(
            "{title}: its controller has not carried out {}={command} yet",
            keys::ROLLOUT
        ));
    }
    let condition = |type_: &str| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == type_)
    };
    let is_true = |type_: &str| condition(type_).is_some_and(|c| c.status == "True");
    if let Some(stalled) = condition("Stalled").filter(|c| c.status == "True") {
        return RolloutState::Stopped(format!("{title} is stalled: {}", describe(stalled)));
    }
    if status.rollout.as_ref().is_some_and(|r| r.aborted) {
        return RolloutState::Stopped(format!(
            "{title}: the rollout is aborted: apply another template, or set the annotation \
             collaset.kusionstack.io/rollout=retry"
        ));
    }
    let wanted = set.spec.replicas.unwrap_or(0);
    let is_sized = status.replicas == wanted && status.available_replicas >= wanted;
    if is_true("Update") && is_true("Scale") && is_sized {
        return RolloutState::Complete(format!("{title}: {}", describe_complete(set, &status)));
    }
    if set.spec.paused {
        return RolloutState::Stopped(format!(
            "{title} is paused with work left: go on with operating rollout resume cls/{name}"
        ));
    }
    let counts = rollout_counts(set);
    let progress = format!(
        "{title}: {} of {} Pods are updated and available",
        counts.done, counts.wanted
    );
    if let Some(step) = unbounded_pause(set, &status) {
        return RolloutState::Stopped(format!(
            "{progress}; step {step} pauses until somebody promotes or aborts the rollout: kubectl annotate collaset \
             {name} collaset.kusionstack.io/rollout=promote"
        ));
    }
    let mut failures = ["Update", "Scale"].into_iter().filter_map(condition);
    let failure = failures.find(|c| {
        let failed = [
            "UpdateFailed",
            "ScaleOutFailed",
            "ScaleInFailed",
            "StepPaused",
        ];
        c.status == "False" && failed.contains(&c.reason.as_str())
    });
    let failure = failure.map_or_else(String::new, |c| format!("; {}", describe(c)));
    RolloutState::Going(progress + &failure)
}

/// The counts for a bar of progress.
pub fn rollout_counts(set: &CollaSet) -> RolloutCounts {
    let status = set.status.clone().unwrap_or_default();
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    let kept = match strategy.scope {
        UpdateScope::Partition(kept) => kept,
        UpdateScope::ByLabel => 0,
    };
    let wanted = u64::try_from(strategy.replicas.saturating_sub(kept)).unwrap_or(0);
    let is_seen = status.observed_generation >= set.metadata.generation.unwrap_or(0);
    let done = match is_seen {
        true => u64::try_from(status.updated_available_replicas).unwrap_or(0),
        false => 0,
    };
    RolloutCounts {
        done: done.min(wanted),
        wanted,
    }
}

fn describe(condition: &CollaSetCondition) -> String {
    match condition.message.is_empty() {
        true => condition.reason.clone(),
        false => format!("{}: {}", condition.reason, condition.message),
    }
}

fn describe_complete(set: &CollaSet, status: &CollaSetStatus) -> String {
    let strategy = ResolvedStrategy::from_spec(&set.spec);
    let (updated, wanted) = (status.updated_replicas, status.replicas);
    match strategy.scope {
        _ if updated >= wanted => format!("all {wanted} Pods are updated and available"),
        UpdateScope::ByLabel => format!(
            "{updated} of {wanted} Pods are updated; the rollout is complete by label (byLabel)"
        ),
        UpdateScope::Partition(kept) => format!(
            "{updated} of {wanted} Pods are updated; the rollout is complete by partition {kept}"
        ),
    }
}

/// The step that pauses without a duration. `None` if the rollout does not pause, or goes on by itself.
fn unbounded_pause(set: &CollaSet, status: &CollaSetStatus) -> Option<i32> {
    let mut conditions = status.conditions.iter();
    conditions.find(|c| c.type_ == "Update" && c.reason == "StepPaused")?;
    let step = status.rollout.as_ref()?.step;
    let rolling = set.spec.update_strategy.as_ref()?.rolling_update.as_ref()?;
    let position = usize::try_from(step).ok()?.checked_sub(1)?;
    let pause = rolling.steps.get(position)?.pause.as_ref()?;
    pause.duration.is_none().then_some(step)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    /// A set of four Pods whose rollout has updated one, with changes.
    fn state(changes: Value) -> RolloutState {
        let mut set = json!({
            "metadata": { "name": "web", "generation": 2 },
            "spec": { "replicas": 4 },
            "status": {
                "observedGeneration": 2, "replicas": 4, "availableReplicas": 4,
                "updatedReplicas": 1, "updatedAvailableReplicas": 1,
                "conditions": [
                    { "type": "Update", "status": "False", "reason": "Updating" },
                    { "type": "Scale", "status": "True", "reason": "Scaled" },
                ],
            },
        });
        json_patch::merge(&mut set, &changes);
        rollout_state(&serde_json::from_value(set).unwrap())
    }

    fn conditions(update: &str, reason: &str) -> Value {
        json!([
            { "type": "Update", "status": update, "reason": reason, "message": "m" },
            { "type": "Scale", "status": "True", "reason": "Scaled" },
        ])
    }

    #[test]
    fn states_of_rollouts_are_told_apart() {
        let updated = conditions("True", "Updated");
        let pause = |pause: Value| {
            json!({
                "spec": { "updateStrategy": { "rollingUpdate": { "steps": [{ "pause": pause }] } } },
                "status": { "conditions": conditions("False", "StepPaused"), "rollout": { "revision": "r", "step": 1 } },
            })
        };
        let stalled =
            json!([{ "type": "Stalled", "status": "True", "reason": "ProgressDeadlineExceeded" }]);
        for (changes, kind, part) in [
            (json!({}), "going", "1 of 4 Pods are updated"),
            (
                json!({ "metadata": { "generation": 3 } }),
                "going",
                "not seen",
            ),
            (
                json!({ "spec": { "paused": true } }),
                "stopped",
                "rollout resume",
            ),
            (
                json!({ "status": { "conditions": stalled } }),
                "stopped",
                "ProgressDeadlineExceeded",
            ),
            (
                json!({ "status": { "rollout": { "revision": "r", "aborted": true } } }),
                "stopped",
                "aborted",
            ),
            (pause(json!({})), "stopped", "step 1 pauses"),
            (
                json!({ "metadata": { "annotations": { "collaset.kusionstack.io/rollout": "retry" } },
                        "status": { "rollout": { "revision": "r", "aborted": true } } }),
                "going",
                "rollout=retry",
            ),
            (pause(json!({ "duration": "1m" })), "going", "StepPaused: m"),
            (
                json!({ "status": { "conditions": conditions("False", "UpdateFailed") } }),
                "going",
                "UpdateFailed: m",
            ),
            (
                json!({ "spec": { "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } },
                        "status": { "conditions": updated } }),
                "complete",
                "1 of 4 Pods are updated; the rollout is complete by partition 3",
            ),
            (
                json!({ "spec": { "updateStrategy": { "rollingUpdate": { "byLabel": {} } } },
                        "status": { "conditions": updated } }),
                "complete",
                "by label",
            ),
            (
                json!({ "status": { "conditions": updated, "updatedReplicas": 4, "updatedAvailableReplicas": 4 } }),
                "complete",
                "all 4 Pods",
            ),
            (
                json!({ "status": { "conditions": updated, "availableReplicas": 3 } }),
                "going",
                "1 of 4",
            ),
            // A rollout that is complete needs nobody to resume it.
            (
                json!({ "spec": { "paused": true }, "status": { "conditions": updated, "updatedReplicas": 4 } }),
                "complete",
                "all 4 Pods",
            ),
        ] {
            let (found, text) = match state(changes.clone()) {
                RolloutState::Complete(text) => ("complete", text),
                RolloutState::Stopped(text) => ("stopped", text),
                RolloutState::Going(text) => ("going", text),
            };
            assert_eq!(found, kind, "{changes}: {text}");
            assert!(text.contains(part), "{changes}: {text}");
        }
    }

    #[test]
    fn partition_lowers_wanted_count() {
        let set = json!({
            "metadata": { "generation": 1 },
            "spec": { "replicas": 4, "updateStrategy": { "rollingUpdate": { "byPartition": { "partition": 3 } } } },
            "status": { "observedGeneration": 1, "updatedAvailableReplicas": 4 },
        });
        let counts = rollout_counts(&serde_json::from_value(set).unwrap());
        assert_eq!(counts, RolloutCounts { done: 1, wanted: 1 });
    }
}
