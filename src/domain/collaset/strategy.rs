//! Resolves the spec for the planning steps: fills in defaults, enforces bounds and turns lists of names into sets.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::api::collaset::{
    self, CollaSetSpec, PodNamingSuffixPolicy, PodUpgradePolicy, RetentionPolicy, RollingUpdate,
};
use crate::api::int_or_percent::IntOrPercent;

/// The Pods that get a new revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateScope {
    /// All Pods except this many.
    Partition(usize),
    /// The Pods with the label `update-included`.
    ByLabel,
}

/// How a Pod gets its new revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdatePolicy {
    /// The Pod is deleted and created again under its instance ID.
    Recreate,
    /// The Pod is updated in place if the change allows it, otherwise as by [`UpdatePolicy::Recreate`]. `InPlaceOnly`
    /// has the same meaning as `InPlaceIfPossible` (contract 6.5).
    InPlace,
    /// A new Pod is made available before the old one is deleted.
    Replace,
}

/// One step of a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedStep {
    /// Updates all Pods except this many.
    Partition(usize),
    /// Waits for this many nanoseconds, or with `None` until a user promotes the rollout.
    Pause(Option<u64>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedStrategy {
    /// Number of wanted Pods.
    pub replicas: usize,
    /// Whether the set neither scales nor updates. Pods that are lost are still created again.
    pub paused: bool,
    /// How a Pod gets its new revision.
    pub policy: UpdatePolicy,
    /// Which Pods get it.
    pub scope: UpdateScope,
    /// How many of the wanted Pods an update may leave unavailable; `None` for no bound.
    pub max_unavailable: Option<usize>,
    /// How many replace pairs an update may open at once; `None` for no bound.
    pub max_surge: Option<usize>,
    /// Steps of a rollout; empty under [`UpdateScope::ByLabel`].
    pub steps: Vec<ResolvedStep>,
    /// Seconds for which a Pod must have been Ready before it is available.
    pub min_ready_seconds: i32,
    /// Nanoseconds without progress after which the set is stalled; `None` for no deadline.
    pub progress_deadline: Option<u64>,
    /// Label whose number orders the update of Pods.
    pub priority: Option<String>,
    /// Nanoseconds between the label `operate` and the update of a Pod.
    pub update_delay: u64,
    /// Nanoseconds between the label `operate` and the deletion of a Pod that is scaled in (contract Q31).
    pub scale_delay: u64,
    /// Whether Pod names are `<set>-<id>`.
    pub sequence: bool,
    /// Names of Pods to exclude.
    pub exclude: BTreeSet<String>,
    /// Names of Pods to include.
    pub include: BTreeSet<String>,
    /// Names of Pods to delete, or to scale in first.
    pub delete: BTreeSet<String>,
    /// Whether PVCs of Pods that are scaled in are retained.
    pub retain_scaled: bool,
    /// Whether PVCs are retained when the set is deleted.
    pub retain_deleted: bool,
}

impl ResolvedStrategy {
    /// Resolves a spec. A value that admission refuses may still be stored; this function then uses the nearest valid
    /// value.
    pub fn from_spec(spec: &CollaSetSpec) -> ResolvedStrategy {
        let update = spec.update_strategy.clone().unwrap_or_default();
        let scale = spec.scale_strategy.clone().unwrap_or_default();
        let retention = scale
            .persistent_volume_claim_retention_policy
            .unwrap_or_default();
        let retain = |policy: &Option<RetentionPolicy>| policy == &Some(RetentionPolicy::Retain);
        let naming = spec
            .naming_strategy
            .as_ref()
            .and_then(|n| n.pod_naming_suffix_policy.as_ref());
        let replicas = non_negative(spec.replicas);
        let share = |value: &Option<IntOrString>, of: fn(IntOrPercent, u32) -> u32| {
            let value = IntOrPercent::parse(value.as_ref()?).ok()?;
            let total = u32::try_from(replicas).unwrap_or(u32::MAX);
            usize::try_from(of(value, total)).ok().map(|n| n.max(1))
        };
        ResolvedStrategy {
            replicas,
            max_unavailable: share(&update.max_unavailable, IntOrPercent::resolve_rounded_down),
            max_surge: share(&update.max_surge, IntOrPercent::resolve_rounded_up),
            priority: update
                .rolling_update
                .as_ref()
                .map(|rolling| rolling.priority_label.clone())
                .filter(|key| !key.is_empty()),
            paused: spec.paused,
            policy: match update.pod_upgrade_policy {
                Some(PodUpgradePolicy::Recreate) => UpdatePolicy::Recreate,
                Some(PodUpgradePolicy::Replace) => UpdatePolicy::Replace,
                _ => UpdatePolicy::InPlace,
            },
            scope: update_scope(update.rolling_update.as_ref(), replicas),
            steps: rollout_steps(update.rolling_update.as_ref(), replicas),
            min_ready_seconds: spec.min_ready_seconds.unwrap_or(0).max(0),
            progress_deadline: spec
                .progress_deadline_seconds
                .map(|s| seconds_to_nanos(Some(s))),
            update_delay: seconds_to_nanos(update.operation_delay_seconds),
            scale_delay: seconds_to_nanos(scale.operation_delay_seconds),
            sequence: naming == Some(&PodNamingSuffixPolicy::PersistentSequence),
            exclude: scale.pod_to_exclude.into_iter().collect(),
            include: scale.pod_to_include.into_iter().collect(),
            delete: scale.pod_to_delete.into_iter().collect(),
            retain_scaled: retain(&retention.when_scaled),
            retain_deleted: retain(&retention.when_deleted),
        }
    }
}

/// `byLabel` wins if both fields are set (contract 1.1).
fn update_scope(rolling: Option<&RollingUpdate>, replicas: usize) -> UpdateScope {
    match rolling {
        Some(RollingUpdate {
            by_label: Some(_), ..
        }) => UpdateScope::ByLabel,
        Some(RollingUpdate {
            by_partition: Some(by),
            ..
        }) => UpdateScope::Partition(match by.partition_percent {
            Some(percent) => kept_by_percent(u32::try_from(percent).unwrap_or(0), replicas),
            None => non_negative(by.partition),
        }),
        _ => UpdateScope::Partition(0),
    }
}

/// A step that this function can't read becomes a pause until a promotion, so that nothing is rolled out by mistake.
fn rollout_steps(rolling: Option<&RollingUpdate>, replicas: usize) -> Vec<ResolvedStep> {
    let Some(rolling) = rolling.filter(|rolling| rolling.by_label.is_none()) else {
        return Vec::new();
    };
    let step = |step: &collaset::RolloutStep| match (&step.partition, &step.pause) {
        (Some(partition), None) => {
            let resolved = match IntOrPercent::parse(partition).ok()? {
                IntOrPercent::Int(count) => usize::try_from(count).ok()?,
                IntOrPercent::Percent(percent) => kept_by_percent(percent, replicas),
            };
            Some(ResolvedStep::Partition(resolved))
        }
        (None, Some(pause)) => {
            let lasts = pause.pause_duration().ok()??;
            let nanos = u64::try_from(lasts.as_nanos()).unwrap_or(u64::MAX);
            Some(ResolvedStep::Pause(Some(nanos)))
        }
        _ => None,
    };
    let steps = rolling.steps.iter();
    steps
        .map(|s| step(s).unwrap_or(ResolvedStep::Pause(None)))
        .collect()
}

/// Returns the share of the replicas that is kept, rounded up. A share below 100% keeps at least one Pod less than all,
/// so that the canary of a small set has a Pod.
fn kept_by_percent(percent: u32, replicas: usize) -> usize {
    let share = usize::try_from(percent.min(100)).unwrap_or(100);
    let rounded = (replicas * share).div_ceil(100);
    match percent {
        0..100 => rounded.min(replicas.saturating_sub(1)),
        _ => rounded,
    }
}

fn non_negative(n: Option<i32>) -> usize {
    usize::try_from(n.unwrap_or(0)).unwrap_or(0)
}

fn seconds_to_nanos(seconds: Option<i32>) -> u64 {
    u64::try_from(seconds.unwrap_or(0)).unwrap_or(0) * 1_000_000_000
}
