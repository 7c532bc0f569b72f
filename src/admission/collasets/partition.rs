//! Warns when a user raises a partition to take updated Pods back, which a partition cannot do.

use super::ReviewedCollaSet;
use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};

/// The warning that a partition raised during a rollout leaves more Pods updated than the partition says. It needs a
/// status that has observed the stored spec, because only such a status has the number of updated Pods.
pub fn partition_warning(old: &ReviewedCollaSet, new: &CollaSetSpec) -> Option<String> {
    let progress = old.status.as_ref()?;
    let is_under_way = progress.current_revision != progress.updated_revision
        && progress.observed_generation == old.metadata.generation
        && old.spec.template == new.template
        && old.spec.volume_claim_templates == new.volume_claim_templates;
    let (former, strategy) = (
        ResolvedStrategy::from_spec(&old.spec),
        ResolvedStrategy::from_spec(new),
    );
    let (UpdateScope::Partition(before), UpdateScope::Partition(partition)) =
        (former.scope, strategy.scope)
    else {
        return None;
    };
    let (updated, replicas) = (progress.updated_replicas, progress.replicas);
    let older = replicas.saturating_sub(updated);
    if !is_under_way
        || partition <= before
        || older >= partition.min(strategy.replicas)
        || updated == 0
    {
        return None;
    }
    let verb = if updated == 1 { "is" } else { "are" };
    Some(format!(
        "spec.updateStrategy.rollingUpdate.byPartition: {updated} of {replicas} Pods {verb} updated, and a partition \
         of {partition} rolls none of them back; to roll all of them back, set the annotation {}=abort",
        keys::ROLLOUT
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn raised_partition_that_cannot_revert_pods_is_warned() {
        let set = |partition: Value, image: &str, status: Value| -> ReviewedCollaSet {
            serde_json::from_value(json!({
                "metadata": { "name": "web", "generation": 3 },
                "spec": {
                    "replicas": 4, "template": { "image": image },
                    "updateStrategy": { "rollingUpdate": { "byPartition": partition } },
                },
                "status": status,
            }))
            .unwrap()
        };
        let partition = |n: u32| json!({ "partition": n });
        let status = |generation: i64, current: &str| {
            json!({
                "observedGeneration": generation, "replicas": 4, "updatedReplicas": 2,
                "currentRevision": current, "updatedRevision": "web-2",
            })
        };
        let under_way = set(partition(2), "a", status(3, "web-1"));
        let warning = |old: &ReviewedCollaSet, partition: Value, image: &str| {
            partition_warning(old, &set(partition, image, Value::Null).spec)
        };
        assert_eq!(
            warning(&under_way, partition(4), "a").unwrap(),
            "spec.updateStrategy.rollingUpdate.byPartition: 2 of 4 Pods are updated, and a partition of 4 rolls none \
             of them back; to roll all of them back, set the annotation collaset.kusionstack.io/rollout=abort"
        );
        assert!(warning(&under_way, json!({ "partitionPercent": 75 }), "a").is_some());
        assert_eq!(
            warning(&under_way, partition(1), "a"),
            None,
            "the partition is lowered"
        );
        assert_eq!(
            warning(
                &set(partition(1), "a", status(3, "web-1")),
                partition(2),
                "a"
            ),
            None,
            "two Pods stay on older revisions"
        );
        assert_eq!(
            warning(&under_way, partition(4), "b"),
            None,
            "a new rollout"
        );
        assert_eq!(
            warning(
                &set(partition(2), "a", status(3, "web-2")),
                partition(4),
                "a"
            ),
            None,
            "the rollout is complete"
        );
        assert_eq!(
            warning(
                &set(partition(2), "a", status(2, "web-1")),
                partition(4),
                "a"
            ),
            None,
            "the status trails"
        );
    }
}
