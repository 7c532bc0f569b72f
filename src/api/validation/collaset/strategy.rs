//! Validates the strategies of updating, scaling and naming.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{FieldError, FieldErrors, naming_policy, steps};
use crate::api::collaset::{
    CollaSetSpec, PodNamingSuffixPolicy, PodUpgradePolicy, RetentionPolicy, ScaleStrategy,
    UpdateStrategy,
};
use crate::api::int_or_percent::IntOrPercent;
use crate::api::labels;
use crate::api::validation::values::{allowed_values, check_non_negative};

pub(super) fn check_strategies(spec: &CollaSetSpec, errors: &mut FieldErrors) {
    if let Some(strategy) = &spec.update_strategy {
        check_update_strategy(strategy, errors);
        steps::check_rollout_steps(strategy, errors);
    }
    check_deadlines(spec, errors);
    if let PodNamingSuffixPolicy::Other(text) = naming_policy(spec) {
        let path = "spec.namingStrategy.podNamingSuffixPolicy";
        let problem = allowed_values(PodNamingSuffixPolicy::KNOWN);
        errors.push(FieldError::new(path, text, problem));
    }
    if let Some(strategy) = &spec.scale_strategy {
        check_scale_strategy(strategy, naming_policy(spec), errors);
    }
}

fn check_deadlines(spec: &CollaSetSpec, errors: &mut FieldErrors) {
    check_non_negative(spec.min_ready_seconds, "spec.minReadySeconds", errors);
    let Some(deadline) = spec.progress_deadline_seconds else {
        return;
    };
    let ready = spec.min_ready_seconds.unwrap_or(0).max(0);
    if deadline <= ready {
        let path = "spec.progressDeadlineSeconds";
        let problem = format!(
            "must be more than minReadySeconds, which is {ready}: no Pod could be available in time; leave it out for no deadline"
        );
        errors.push(FieldError::with_raw_value(
            path,
            deadline.to_string(),
            problem,
        ));
    }
}

fn check_update_strategy(strategy: &UpdateStrategy, errors: &mut FieldErrors) {
    if let Some(PodUpgradePolicy::Other(text)) = &strategy.pod_upgrade_policy {
        let path = "spec.updateStrategy.podUpgradePolicy";
        let problem = allowed_values(PodUpgradePolicy::KNOWN);
        errors.push(FieldError::new(path, text, problem));
    }
    let path = "spec.updateStrategy.rollingUpdate.byPartition.partition";
    check_non_negative(partition_value(strategy), path, errors);
    check_partition_percent(strategy, errors);
    let path = "spec.updateStrategy.operationDelaySeconds";
    check_non_negative(strategy.operation_delay_seconds, path, errors);
    let replaces = strategy.pod_upgrade_policy == Some(PodUpgradePolicy::Replace);
    check_bound(
        "maxUnavailable",
        strategy.max_unavailable.as_ref(),
        replaces,
        errors,
    );
    check_bound("maxSurge", strategy.max_surge.as_ref(), !replaces, errors);
    let key = strategy.rolling_update.as_ref().map(|r| &*r.priority_label);
    if let Some(key) = key.filter(|key| !key.is_empty())
        && let Some(problem) = labels::key_problem(key)
    {
        let path = "spec.updateStrategy.rollingUpdate.priorityLabel";
        errors.push(FieldError::new(path, key, problem));
    }
}

fn check_partition_percent(strategy: &UpdateStrategy, errors: &mut FieldErrors) {
    let rolling = strategy.rolling_update.as_ref();
    let by = rolling.and_then(|rolling| rolling.by_partition.as_ref());
    let Some(percent) = by.and_then(|by| by.partition_percent) else {
        return;
    };
    let path = "spec.updateStrategy.rollingUpdate.byPartition.partitionPercent";
    let problem = match percent {
        0..=100 if partition_value(strategy).is_none() => return,
        0..=100 => "must not be given beside partition: leave one of them out",
        _ => "must be a percentage from 0 to 100",
    };
    errors.push(FieldError::with_raw_value(
        path,
        percent.to_string(),
        problem,
    ));
}

/// Checks a limit of an update. An absent limit is valid. A limit of 0 would prevent all updates, unless the
/// policy does not use the limit (`idle`).
fn check_bound(field: &str, value: Option<&IntOrString>, idle: bool, errors: &mut FieldErrors) {
    let path = format!("spec.updateStrategy.{field}");
    match value.map(IntOrPercent::parse) {
        Some(Err(e)) => errors.push(FieldError::with_raw_value(&path, e.value, e.problem)),
        Some(Ok(zero @ (IntOrPercent::Int(0) | IntOrPercent::Percent(0)))) if !idle => {
            let problem = "must be 1 or more: with 0 no Pod would ever be updated; leave it out for no bound, or set paused";
            errors.push(FieldError::with_raw_value(&path, zero.to_string(), problem));
        }
        _ => {}
    }
}

fn partition_value(strategy: &UpdateStrategy) -> Option<i32> {
    let rolling = strategy.rolling_update.as_ref()?;
    rolling.by_partition.as_ref()?.partition
}

/// A warning if the partition is larger than the number of Pods: some users take the partition for the number
/// of Pods to update.
pub(super) fn partition_beyond_replicas(spec: &CollaSetSpec) -> Option<String> {
    let strategy = spec.update_strategy.as_ref()?;
    let by_label = strategy.rolling_update.as_ref()?.by_label.is_some();
    let (partition, replicas) = (partition_value(strategy)?, spec.replicas.unwrap_or(0));
    (partition > replicas && !by_label).then(|| {
        format!(
            "spec.updateStrategy.rollingUpdate.byPartition.partition: {partition} is more than the {replicas} replicas: \
             it is the number of Pods kept on old revisions, so none is updated"
        )
    })
}

fn check_scale_strategy(
    strategy: &ScaleStrategy,
    naming: &PodNamingSuffixPolicy,
    errors: &mut FieldErrors,
) {
    let context = &strategy.context;
    if let Some(problem) = labels::dns_name_problem(context).filter(|_| !context.is_empty()) {
        let problem = format!(
            "{problem}: it is the name of a ResourceContext (a DNS-1123 subdomain); leave it out to use the name of the CollaSet"
        );
        errors.push(FieldError::new(
            "spec.scaleStrategy.context",
            context,
            problem,
        ));
    }
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
    check_pod_lists(lists, errors);
    if let Some(policy) = &strategy.persistent_volume_claim_retention_policy {
        for (field, value) in [
            ("whenDeleted", &policy.when_deleted),
            ("whenScaled", &policy.when_scaled),
        ] {
            if let Some(RetentionPolicy::Other(text)) = value {
                let path =
                    format!("spec.scaleStrategy.persistentVolumeClaimRetentionPolicy.{field}");
                errors.push(FieldError::new(
                    path,
                    text,
                    allowed_values(RetentionPolicy::KNOWN),
                ));
            }
        }
    }
    let path = "spec.scaleStrategy.operationDelaySeconds";
    check_non_negative(strategy.operation_delay_seconds, path, errors);
}

/// Checks that each name occurs only once in all of the lists.
fn check_pod_lists(lists: [(&str, &Vec<String>); 3], errors: &mut FieldErrors) {
    let mut list_of_name: BTreeMap<&str, &str> = BTreeMap::new();
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
            match list_of_name.insert(name, list) {
                None => {}
                Some(before) if before == list => {
                    let problem = format!("is in {list} already: take it out here");
                    errors.push(FieldError::new(path, name, problem));
                }
                Some(before) => {
                    let problem = format!(
                        "is in {before} too: a Pod can only be excluded, included or deleted; remove it from one of \
                         the lists"
                    );
                    errors.push(FieldError::new(path, name, problem));
                }
            }
        }
    }
}
