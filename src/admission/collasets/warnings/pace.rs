//! How an update goes, where the spec reads as if it went otherwise.

use crate::api::collaset::{CollaSetSpec, PodUpgradePolicy, RollingUpdate};
use crate::api::int_or_percent::IntOrPercent;

/// Each is said when it begins to be so; `old` is the stored spec of an update.
pub fn of(old: Option<&CollaSetSpec>, new: &CollaSetSpec) -> Vec<String> {
    let all: [fn(&CollaSetSpec) -> Option<String>; 5] =
        [no_replicas, surge, unavailable, both_scopes, rising_steps];
    let told = all.iter().filter_map(|warning| {
        let told = warning(new)?;
        let known = old.is_some_and(|old| warning(old).as_ref() == Some(&told));
        (!known).then_some(told)
    });
    told.collect()
}

fn no_replicas(spec: &CollaSetSpec) -> Option<String> {
    spec.replicas.is_none().then(|| {
        "spec.replicas: is left out, so no Pod is made, and a HorizontalPodAutoscaler cannot scale the CollaSet; set a number"
            .to_owned()
    })
}

fn surge(spec: &CollaSetSpec) -> Option<String> {
    let strategy = spec.update_strategy.as_ref()?;
    (strategy.max_surge.is_some() && !replaces(spec)).then(|| {
        "spec.updateStrategy.maxSurge: has no effect unless podUpgradePolicy is Replace".to_owned()
    })
}

fn unavailable(spec: &CollaSetSpec) -> Option<String> {
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

fn both_scopes(spec: &CollaSetSpec) -> Option<String> {
    let by = rolling(spec)?;
    let partition = by.by_partition.as_ref()?;
    let says = partition.partition.is_some() || partition.partition_percent.is_some();
    (says && by.by_label.is_some()).then(|| {
        "spec.updateStrategy.rollingUpdate.byPartition: has no effect beside byLabel, under which only Pods with the label \
         collaset.kusionstack.io/update-included are updated"
            .to_owned()
    })
}

/// Steps that were written as the share to update.
fn rising_steps(spec: &CollaSetSpec) -> Option<String> {
    let replicas = u32::try_from(spec.replicas?).ok()?;
    let steps = rolling(spec)?.steps.iter().enumerate();
    let kept: Vec<(usize, u32)> = steps
        .filter_map(|(index, step)| {
            let partition = IntOrPercent::parse(step.partition.as_ref()?).ok()?;
            Some((index, partition.of_rounded_up(replicas)))
        })
        .collect();
    let rising = kept.windows(2).find(|pair| pair[0].1 < pair[1].1)?;
    let (index, _) = rising[1];
    Some(format!(
        "spec.updateStrategy.rollingUpdate.steps[{index}].partition: is more than that of the step before, so this step updates \
         nothing: a partition is the number of Pods that are kept on older revisions, not the number to update"
    ))
}

fn rolling(spec: &CollaSetSpec) -> Option<&RollingUpdate> {
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
    fn what_has_no_effect_is_said_when_it_begins() {
        let update = |strategy: Value| spec(json!({ "replicas": 5, "updateStrategy": strategy }));
        let steps = |kept: [&str; 2]| {
            let steps = kept.map(|kept| json!({ "partition": kept }));
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
            let told = of(Some(&good), &bad);
            assert!(told.len() == 1 && told[0].starts_with(field), "{told:?}");
            assert_eq!(of(Some(&bad), &bad), [""; 0]);
        }
        assert_eq!(of(None, &good), [""; 0]);
        assert_eq!(of(None, &steps(["90%", "50%"])), [""; 0]);
    }
}
