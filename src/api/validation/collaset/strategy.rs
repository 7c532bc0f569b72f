//! The strategies of updating, scaling and naming.

use std::collections::BTreeMap;

use super::{FieldError, FieldErrors, naming, non_negative};
use crate::api::collaset::{
    CollaSetSpec, PodNamingSuffixPolicy, PodUpgradePolicy, RetentionPolicy, ScaleStrategy,
    UpdateStrategy,
};

pub(super) fn check(spec: &CollaSetSpec, errors: &mut FieldErrors) {
    if let Some(strategy) = &spec.update_strategy {
        update(strategy, errors);
    }
    if let PodNamingSuffixPolicy::Other(text) = naming(spec) {
        let path = "spec.namingStrategy.podNamingSuffixPolicy";
        let problem = one_of(PodNamingSuffixPolicy::KNOWN);
        errors.push(FieldError::new(path, text, problem));
    }
    if let Some(strategy) = &spec.scale_strategy {
        scale(strategy, naming(spec), errors);
    }
}

fn update(strategy: &UpdateStrategy, errors: &mut FieldErrors) {
    if let Some(PodUpgradePolicy::Other(text)) = &strategy.pod_upgrade_policy {
        let path = "spec.updateStrategy.podUpgradePolicy";
        let problem = one_of(PodUpgradePolicy::KNOWN);
        errors.push(FieldError::new(path, text, problem));
    }
    let path = "spec.updateStrategy.rollingUpdate.byPartition.partition";
    non_negative(partition(strategy), path, errors);
    let path = "spec.updateStrategy.operationDelaySeconds";
    non_negative(strategy.operation_delay_seconds, path, errors);
}

fn partition(strategy: &UpdateStrategy) -> Option<i32> {
    let rolling = strategy.rolling_update.as_ref()?;
    rolling.by_partition.as_ref()?.partition
}

/// A partition that keeps more Pods than there are is taken for the number to update by some.
pub(super) fn partition_beyond_replicas(spec: &CollaSetSpec) -> Option<String> {
    let strategy = spec.update_strategy.as_ref()?;
    let by_label = strategy.rolling_update.as_ref()?.by_label.is_some();
    let (partition, replicas) = (partition(strategy)?, spec.replicas.unwrap_or(0));
    (partition > replicas && !by_label).then(|| {
        format!(
            "spec.updateStrategy.rollingUpdate.byPartition.partition: {partition} is more than the {replicas} replicas: \
             it is the number of Pods kept on old revisions, so none is updated"
        )
    })
}

fn scale(strategy: &ScaleStrategy, naming: &PodNamingSuffixPolicy, errors: &mut FieldErrors) {
    let lists = [
        ("podToExclude", &strategy.pod_to_exclude),
        ("podToInclude", &strategy.pod_to_include),
        ("podToDelete", &strategy.pod_to_delete),
    ];
    if *naming == PodNamingSuffixPolicy::PersistentSequence {
        for (list, names) in &lists[..2] {
            let problem = "must be empty with podNamingSuffixPolicy PersistentSequence: the name of such a Pod belongs to \
                           its place in the set";
            let path = format!("spec.scaleStrategy.{list}");
            errors.extend(
                names
                    .first()
                    .map(|first| FieldError::new(path, first, problem)),
            );
        }
    }
    pods(lists, errors);
    if let Some(policy) = &strategy.persistent_volume_claim_retention_policy {
        for (field, value) in [
            ("whenDeleted", &policy.when_deleted),
            ("whenScaled", &policy.when_scaled),
        ] {
            if let Some(RetentionPolicy::Other(text)) = value {
                let path =
                    format!("spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.{field}");
                errors.push(FieldError::new(path, text, one_of(RetentionPolicy::KNOWN)));
            }
        }
    }
    let path = "spec.scaleStrategy.operationDelaySeconds";
    non_negative(strategy.operation_delay_seconds, path, errors);
}

/// Each name once, over all of the lists.
fn pods(lists: [(&str, &Vec<String>); 3], errors: &mut FieldErrors) {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (list, names) in lists {
        for (index, name) in names.iter().enumerate() {
            if errors.is_full() {
                return;
            }
            let path = format!("spec.scaleStrategy.{list}[{index}]");
            if name.is_empty() {
                let problem = "must be the name of a Pod: take the empty entry out";
                errors.push(FieldError::new(path, name, problem));
                continue;
            }
            match seen.insert(name, list) {
                None => {}
                Some(before) if before == list => {
                    let problem = format!("is in {list} already: take it out here");
                    errors.push(FieldError::new(path, name, problem));
                }
                Some(before) => {
                    let problem = format!(
                        "is in {before} too: a Pod is excluded, included or deleted, one of these; take it out of one list"
                    );
                    errors.push(FieldError::new(path, name, problem));
                }
            }
        }
    }
}

fn one_of(known: &[&str]) -> String {
    format!("must be {}", known.join(" or "))
}
