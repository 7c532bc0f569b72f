//! The status of a PodDecoration: counts, details by CollaSet, and conditions.

mod conditions;
mod progress;
mod set_waits;

pub use conditions::HOLD_MESSAGE;
pub use set_waits::false_condition;

use std::collections::BTreeMap;

use super::members::{Instance, Member};
use super::observed::ObservedDecoration;
use super::revision::RevisionHistory;
use super::{Decoration, Reach};
use crate::api::poddecoration::{PodDecorationStatus, PodDetail, WorkloadDetail};
use crate::domain::pod::Pod;
use progress::{Progress, measure_progress, measure_removal};

/// With more selected Pods than this number, the status does not list them. Each entry takes about 100 bytes, and each
/// change of a Pod writes the whole list again.
const MAX_POD_DETAILS: usize = 500;

/// Builds the status. `publish` is the value that this plan publishes.
pub fn build_status(
    observed: &ObservedDecoration,
    publish: &Decoration,
    members: &[Member],
    history: &RevisionHistory,
) -> PodDecorationStatus {
    let object = &observed.object;
    let stored = object.status.clone().unwrap_or_default();
    let progress = match publish.deleting {
        true => measure_removal(observed, &publish.name),
        false => measure_progress(observed, publish, members),
    };
    // A status that claims the generation while the revision is not stored would say that the rollout has begun.
    let is_observed = publish.hold.is_none();
    let mut status = PodDecorationStatus {
        observed_generation: match is_observed {
            true => object.metadata.generation.unwrap_or(0),
            false => stored.observed_generation,
        },
        updated_revision: publish.updated.clone().unwrap_or(stored.updated_revision),
        current_revision: stored.current_revision,
        collision_count: history.collisions,
        conditions: stored.conditions,
        ..PodDecorationStatus::default()
    };
    if is_rolled_out(publish, &progress, &status.current_revision) {
        status.current_revision.clone_from(&status.updated_revision);
    }
    count_pods(&mut status, object.spec.disable_pod_detail, members);
    conditions::update_conditions(observed, publish, &progress, &history.problems, &mut status);
    status
}

/// Whether the updated revision becomes the current one: every selected member has it, those without a Pod included.
///
/// If no member is selected, the first revision becomes the current one at once. Therefore a PodDecoration that was created
/// before its sets decorates all their Pods from their creation, whatever its partition. A later revision does not: the
/// selector may match nobody only for a moment, and then the partition would keep nobody.
fn is_rolled_out(publish: &Decoration, progress: &Progress, current: &str) -> bool {
    let is_effective = !publish.deleting && publish.invalid.is_none() && publish.hold.is_none();
    let may_promote = progress.selected > 0 || current.is_empty() || publish.reach == Reach::All;
    is_effective && publish.updated.is_some() && progress.is_everywhere() && may_promote
}

/// Fills the counts and the details from the Pods that are selected, controlled by a set, and neither terminating nor
/// finished.
fn count_pods(status: &mut PodDecorationStatus, without_pods: bool, members: &[Member]) {
    let mut by_set: BTreeMap<&str, Vec<(&Pod, &Instance)>> = BTreeMap::new();
    for member in members {
        for instance in &member.instances {
            if let Some(pod) = &instance.pod {
                let pods = by_set.entry(&member.key.0).or_default();
                pods.push((pod, instance));
            }
        }
    }
    let pods = || by_set.values().flatten();
    let updated = status.updated_revision.as_str();
    let has_updated = |instance: &Instance| !updated.is_empty() && instance.has_revision(updated);
    let count = |test: &dyn Fn(&Pod, &Instance) -> bool| {
        count_to_i32(pods().filter(|(pod, instance)| test(pod, instance)).count())
    };
    let matched = pods().count();
    let counts = (
        count(&|_, instance| instance.held.is_some()),
        count(&|_, instance| has_updated(instance)),
        count(&|pod, instance| has_updated(instance) && pod.is_ready()),
        count(&|pod, instance| has_updated(instance) && pod.is_available()),
    );
    status.matched_pods = count_to_i32(matched);
    (
        status.injected_pods,
        status.updated_pods,
        status.updated_ready_pods,
        status.updated_available_pods,
    ) = counts;
    let lists_pods = !without_pods && matched <= MAX_POD_DETAILS;
    let details = by_set.into_iter().map(|(set, pods)| WorkloadDetail {
        colla_set: set.to_owned(),
        affected_replicas: count_to_i32(pods.len()),
        pods: match lists_pods {
            true => pod_details(&pods),
            false => Vec::new(),
        },
    });
    status.details = details.collect();
}

fn pod_details(pods: &[(&Pod, &Instance)]) -> Vec<PodDetail> {
    let details = pods.iter().map(|(pod, instance)| PodDetail {
        name: pod.metadata.name.clone(),
        revision: instance.held.clone().unwrap_or_default(),
        escaped: instance.held.is_none(),
    });
    let mut details: Vec<PodDetail> = details.collect();
    details.sort_by(|a, b| a.name.cmp(&b.name));
    details
}

fn count_to_i32(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}
