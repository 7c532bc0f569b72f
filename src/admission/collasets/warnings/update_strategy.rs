//! Warnings about update strategies whose effect differs from what they seem to say.

use crate::api::collaset::{CollaSetSpec, PodUpgradePolicy, RollingUpdate};
use crate::domain::collaset::strategy::{ResolvedStep, ResolvedStrategy, UpdateScope};

/// The warnings for a spec. `old` is the stored spec of an update; warnings that already applied to it are left out.
pub fn strategy_warnings(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Vec<String> {
    let all: [fn(&CollaSetSpec) -> Option<String>; 6] = [
        zero_replicas_warning,
        surge_warning,
        unavailable_warning,
        both_scopes_warning,
        idle_step_warning,
        early_pause_warning,
    ];
    let new_warnings = all.iter().filter_map(|warning_of| {
        let warning = warning_of(new)?;
        let is_known = old.is_some_and(|old| warning_of(old).as_ref() == Some(&warning));
        (!is_known).then_some(warning)
    });
    new_warnings.collect()
}

fn zero_replicas_warning(spec: &CollaSetSpec) -> Option<String> {
    spec.replicas.is_none().then(|| {
        "spec.replicas: is left out, so no Pod is made, and a HorizontalPodAutoscaler cannot scale the CollaSet; set a number"
            .to_owned()
    })
}

fn surge_warning(spec: &CollaSetSpec) -> Option<String> {
    let strategy = spec.update_strategy.as_ref()?;
    (strategy.max_surge.is_some() && !replaces(spec)).then(|| {
        "spec.updateStrategy.maxSurge: has no effect unless podUpgradePolicy is Replace".to_owned()
    })
}

fn unavailable_warning(spec: &CollaSetSpec) -> Option<String> {
    let strategy = spec.update_strategy.as_ref()?;
    (strategy.max_unavailable.is_some() && replaces(spec)).then(|| {
        "spec.updateStrategy.maxUnavailable: has no effect with podUpgradePolicy Replace, which makes no Pod unavailable"
            .to_owned()
    })
}

fn replaces(spec: &CollaSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref();
    let policy = strategy.and_then(|strategy| strategy.pod_upgrade_policy.as_ref());
    policy == Some(&PodUpgradePolicy::Replace)
}

fn both_scopes_warning(spec: &CollaSetSpec) -> Option<String> {
    let rolling_update = rolling_update_strategy(spec)?;
    let partition = rolling_update.by_partition.as_ref()?;
    let has_partition = partition.partition.is_some() || partition.partition_percent.is_some();
    (has_partition && rolling_update.by_label.is_some()).then(|| {
        "spec.updateStrategy.rollingUpdate.byPartition: has no effect beside byLabel, under which only Pods with the label \
         collaset.kusionstack.io/update-included are updated"
            .to_owned()
    })
}

/// The first step that updates no further Pod, as if the user had meant the number of Pods to update. A set without
/// Pods gets no warning, because it may be scaled later.
fn idle_step_warning(spec: &CollaSetSpec) -> Option<String> {
    let strategy = ResolvedStrategy::from_spec(spec);
    let UpdateScope::Partition(at_least) = strategy.scope else {
        return None;
    };
    let mut previous = Some(strategy.replicas).filter(|replicas| *replicas > 0)?;
    for (index, step) in strategy.steps.into_iter().enumerate() {
        let ResolvedStep::Partition(partition) = step else {
            continue;
        };
        let partition = partition.max(at_least);
        if partition >= previous {
            return Some(format!(
                "spec.updateStrategy.rollingUpdate.steps[{index}].partition: updates no further Pod, because it keeps \
                 at least as many Pods as the partition before it: a partition is the number of Pods that are kept on \
                 older revisions, not the number to update"
            ));
        }
        previous = partition;
    }
    None
}

fn early_pause_warning(spec: &CollaSetSpec) -> Option<String> {
    let first = rolling_update_strategy(spec)?.steps.first()?;
    first.pause.is_some().then(|| {
        "spec.updateStrategy.rollingUpdate.steps[0].pause: comes before any partition, so no Pod is updated until it is over; put \
         a partition before it to try the update on some Pods"
            .to_owned()
    })
}

fn rolling_update_strategy(spec: &CollaSetSpec) -> Option<&RollingUpdate> {
    spec.update_strategy.as_ref()?.rolling_update.as_ref()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn spec(part: Value) -> CollaSetSpec {
        serde_json::from_value(part).unwrap()
    }

    #[test]
    fn ineffective_setting_is_warned_when_introduced() {
        let update = |strategy: Value| spec(json!({ "replicas": 5, "updateStrategy": strategy }));
        let steps = |partitions: [&str; 2]| {
            let steps = partitions.map(|partition| json!({ "partition": partition }));
            update(json!({ "rollingUpdate": { "steps": steps } }))
        };
        let good = update(json!({ "maxUnavailable": 1 }));
        for (bad, field) in [
            (spec(json!({})), "spec.replicas: "),
            (
                update(json!({ "maxSurge": 1 })),
                "spec.updateStrategy.maxSurge: ",
            ),
            (
                update(json!({ "maxUnavailable": 1, "podUpgradePolicy": "Replace" })),
                "spec.updateStrategy.maxUnavailable: ",
            ),
            (
                update(
                    json!({ "rollingUpdate": { "byLabel": {}, "byPartition": { "partition": 0 } } }),
                ),
                "spec.updateStrategy.rollingUpdate.byPartition: ",
            ),
            (
                steps(["20%", "50%"]),
                "spec.updateStrategy.rollingUpdate.steps[1].partition: ",
            ),
        ] {
            let warnings = strategy_warnings(Some(&good), &bad);
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(field),
                "{warnings:?}"
            );
            assert_eq!(strategy_warnings(Some(&bad), &bad), [""; 0]);
        }
        assert_eq!(strategy_warnings(None, &good), [""; 0]);
        assert_eq!(strategy_warnings(None, &steps(["90%", "50%"])), [""; 0]);
    }

    #[test]
    fn step_that_updates_no_pod_is_named() {
        let path = "spec.updateStrategy.rollingUpdate.steps";
        let rolling = |replicas: u32, rolling: Value| {
            strategy_warnings(
                None,
                &spec(
                    json!({ "replicas": replicas, "updateStrategy": { "rollingUpdate": rolling } }),
                ),
            )
        };
        for (steps, partition, named) in [
            (json!([{ "partition": 8 }, { "partition": 9 }]), 0, 1),
            (
                json!([{ "partition": 8 }, { "pause": {} }, { "partition": 8 }]),
                0,
                2,
            ),
            (json!([{ "partition": "100%" }, { "pause": {} }]), 0, 0),
            (json!([{ "partition": 20 }, { "pause": {} }]), 0, 0),
            // A percentage below 100% lets at least one Pod be updated.
            (
                json!([{ "partition": "99%" }, { "partition": "90%" }]),
                0,
                1,
            ),
            (
                json!([{ "partition": 8 }, { "partition": 5 }, { "partition": 3 }]),
                5,
                2,
            ),
        ] {
            let warnings = rolling(
                10,
                json!({ "steps": steps, "byPartition": { "partition": partition } }),
            );
            let start = format!("{path}[{named}].partition: updates no further Pod");
            assert!(
                warnings.len() == 1 && warnings[0].starts_with(&start),
                "{steps}: {warnings:?}"
            );
        }
        let first = rolling(
            10,
            json!({ "steps": [{ "pause": {} }, { "partition": 0 }] }),
        );
        let start = format!("{path}[0].pause: comes before any partition");
        assert!(
            first.len() == 1 && first[0].starts_with(&start),
            "{first:?}"
        );
        for fine in [
            json!({ "steps": [{ "partition": "90%" }, { "pause": {} }, { "partition": 0 }, { "pause": {} }] }),
            json!({ "steps": [{ "partition": 5 }, { "pause": {} }], "byPartition": { "partition": 5 } }),
            json!({ "steps": [] }),
        ] {
            assert_eq!(rolling(10, fine), [""; 0]);
        }
        // A set without Pods may be scaled later.
        assert_eq!(
            rolling(0, json!({ "steps": [{ "partition": 1 }] })),
            [""; 0]
        );
    }
}
