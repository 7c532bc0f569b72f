//! Chooses the members that a partition lets the rollout of a decoration reach.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::members::{Instance, Member};
use super::{Decoration, MemberKey, Reach};
use crate::domain::collaset::SetOperation;
use crate::domain::pod::Pod;

/// Returns the members that get the revision `updated`: all but the last `partition`. Members that have the revision
/// already are always among them, so that no change of the partition takes the revision back.
///
/// Members that their set removes are not counted. They keep what they have, and they are among the returned members if
/// that is the updated revision.
pub fn choose_members(
    members: &[Member],
    updated: &str,
    partition: usize,
    last: &BTreeSet<MemberKey>,
) -> BTreeSet<MemberKey> {
    let (leaving, staying): (Vec<&Member>, Vec<&Member>) =
        members.iter().partition(|member| member.is_leaving());
    let mut staying = staying;
    staying.sort_by_cached_key(|member| rollout_order(member, updated, last));
    let has_updated = |member: &&Member| member.has_revision(updated);
    let done = staying.iter().copied().filter(has_updated).count();
    let reached = staying.len().saturating_sub(partition).max(done);
    let kept = leaving.into_iter().filter(has_updated);
    let chosen = staying.into_iter().take(reached).chain(kept);
    chosen.map(|member| member.key.clone()).collect()
}

/// The members of the last choice, if that choice was made for the same revision. Therefore the progress of some members
/// does not exchange the others, and a lower partition only adds members.
pub fn last_choice(last: Option<&Decoration>, updated: &str) -> BTreeSet<MemberKey> {
    let last = last.filter(|last| last.updated.as_deref() == Some(updated));
    match last.map(|last| &last.reach) {
        Some(Reach::Members(members)) => members.clone(),
        _ => BTreeSet::new(),
    }
}

/// Whether the rollout reaches an instance of a member.
pub fn is_reached(reach: &Reach, member: &Member, instance: &Instance) -> bool {
    match reach {
        Reach::All => true,
        Reach::Selector(selector) => selector.matches(&instance.labels),
        Reach::Members(members) => instance.is_new || members.contains(&member.key),
    }
}

/// Sort key of members; those that the rollout reaches first come first. Members that have the updated revision precede
/// those that are on their way to it. Among the others, the members whose update costs least precede.
fn rollout_order(member: &Member, updated: &str, last: &BTreeSet<MemberKey>) -> impl Ord + use<> {
    let pod = || member.pods().next();
    let is_updating = member
        .pods()
        .any(|pod| SetOperation::Update.is_in_progress(pod));
    let has_updated_template = member.instances.iter().any(|i| i.has_updated_template);
    let ready = pod().and_then(|pod| pod.status.conditions.iter().find(|c| c.type_ == "Ready"));
    let on_way = (
        !member.has_revision(updated),
        !member.is_recorded_with(updated),
        !last.contains(&member.key),
        !is_updating,
        !has_updated_template,
        !member.is_decorated(),
    );
    (
        on_way,
        pod().map(service_rank),
        Reverse(ready.and_then(|ready| ready.last_transition_time.clone())),
        Reverse(pod().and_then(|pod| pod.metadata.creation_timestamp.clone())),
        member.key.clone(),
    )
}

/// How much a Pod serves: unscheduled, Pending, not Ready, not available, and available Pods in this order.
fn service_rank(pod: &Arc<Pod>) -> (bool, bool, bool, bool) {
    (
        pod.condition("PodScheduled") == Some(true),
        pod.status.phase != "Pending",
        pod.is_ready(),
        pod.is_available(),
    )
}
