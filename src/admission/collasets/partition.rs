//! Warns when a user raises a partition to take updated Pods back, which a partition cannot do.

use super::ReviewedCollaSet;
use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};

/// The warning that a partition raised during a rollout leaves more Pods updated than the partition says. It needs a
/// status that has observed the stored spec, because only such a status has the number of updated Pods.
pub fn partition_warning(old: &ReviewedCollaSet, new: &CollaSetSpec) -> Option<String> {
    let progress = old.status.as_ref()?;
    let is_on = progress.current_revision != progress.updated_revision
        && progress.observed_generation == old.metadata.generation
        && old.spec.template == new.template
        && old.spec.volume_claim_templates == new.volume_claim_templates;
    let (former, strategy) = (
        ResolvedStrategy::from_spec(&old.spec),
        ResolvedStrategy::from_spec(new),
    );
    let (UpdateScope::Partition(before), UpdateScope::Partition(kept)) =
        (former.scope, strategy.scope)
    else {
        return None;
    };
    let (updated, replicas) = (progress.updated_replicas, progress.replicas);
    let older = replicas.saturating_sub(updated);
    if !is_on || kept <= before || older >= kept.min(strategy.replicas) || updated == 0 {
        return None;
    }
    let verb = if updated == 1 { "is" } else { "are" };
    Some(format!(
        "spec.updateStrategy.rollingUpdate.byPartition: {updated} of {replicas} Pods {verb} updated, and a partition of {kept} takes \
         none of them back; to take all back set the annotation {}=abort",
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
        let kept = |n: u32| json!({ "partition": n });
        let status = |generation: i64, current: &str| {
            json!({
                "observedGeneration": generation, "replicas": 4, "updatedReplicas": 2,
                "currentRevision": current, "updatedRevision": "web-2",
            })
        };
        let under_way = set(kept(2), "a", status(3, "web-1"));
        let told = |old: &ReviewedCollaSet, partition: Value, image: &str| {
            partition_warning(old, &set(partition, image, Value::Null).spec)
        };
        assert_eq!(
            told(&under_way, kept(4), "a").unwrap(),
            "spec.updateStrategy.rollingUpdate.byPartition: 2 of 4 Pods are updated, and a partition of 4 takes none of them back; to \
             take all back set the annotation collaset.kusionstack.io/rollout=abort"
        );
        assert!(told(&under_way, json!({ "partitionPercent": 75 }), "a").is_some());
        assert_eq!(told(&under_way, kept(1), "a"), None, "it is lowered");
        assert_eq!(
            told(&set(kept(1), "a", status(3, "web-1")), kept(2), "a"),
            None,
            "two are kept"
        );
        assert_eq!(told(&under_way, kept(4), "b"), None, "a new rollout");
        assert_eq!(
            told(&set(kept(2), "a", status(3, "web-2")), kept(4), "a"),
            None,
            "it is complete"
        );
        assert_eq!(
            told(&set(kept(2), "a", status(2, "web-1")), kept(4), "a"),
            None,
            "the status trails"
        );
    }
}
