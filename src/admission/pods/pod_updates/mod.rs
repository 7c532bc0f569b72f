//! Finds the disruptions of an UPDATE of a Pod beyond its labels: changes that restart containers or end the Pod. Each
//! needs a claim. docs/pod-writes.md lists every write, whether it is held, and the reason.

use std::sync::Arc;

use tokio::time::{Instant, timeout_at};

use crate::admission::context::{AdmissionContext, MAX_OWNER_LOOKUPS};
use crate::cluster::presence::Presence;
use crate::domain::inplace::{self, InPlaceRestart};
use crate::domain::lifecycle::is_held_offline;
use crate::domain::lifecycle::restarts::PendingRestarts;
use crate::domain::ownership;
use crate::domain::pod::Pod;
use crate::ledger::commit::Disruption;
use crate::ledger::protocol::ClaimOperation;

/// The disruptions that an UPDATE brings; each needs a claim. Owners that are not in the cache are looked up until
/// `deadline`. A new owner that cannot be read counts as absent, an old owner as present.
pub async fn update_disruptions(
    context: &AdmissionContext,
    old: &Arc<Pod>,
    new: &Pod,
    deadline: Instant,
) -> Vec<Disruption> {
    let mut found = Vec::new();
    if let Some(change) = in_place_restart(context, old, new) {
        let mut disruption = context.new_disruption(old, ClaimOperation::InPlace);
        disruption.detail.target = Some(change.target);
        disruption.detail.containers = change.containers;
        let is_off = is_offline_throughout(old, new) && !old.is_available();
        if is_off || inplace::withdraws_deferred_resize(old, new) {
            // No budget holds this change. Either the rules have let the operation begin, and the claim only
            // lasts until the restart. Or the change withdraws a deferred resize for which the Pod already has a claim.
            let rules = context.index.rules_covering_pod(old);
            disruption.bypassed_rules = rules.into_iter().map(|rule| rule.name).collect();
        }
        found.push(disruption);
    }
    if let Some(seconds) = lowered_deadline(old, new) {
        let mut disruption = context.new_disruption(old, ClaimOperation::Deadline);
        disruption.detail.target = Some(seconds.to_string());
        found.push(disruption);
    }
    if let Some(reowned) = ownership::owner_change(old, new) {
        let mut remaining_lookups = MAX_OWNER_LOOKUPS;
        // An unknown owner makes the write take a claim: as a new owner it counts as absent and does not keep the Pod.
        let lives = look_up_owners(context, new, deadline, &mut remaining_lookups).await
            == OwnerLookup::Exists;
        // A claim does not save a Pod from the Kubernetes garbage collector, but an owner that exists does.
        let saves = lives
            && look_up_owners(context, old, deadline, &mut remaining_lookups).await
                == OwnerLookup::NoneExists;
        if !saves && (reowned.other_controller || !lives) {
            let mut disruption = context.new_disruption(old, ClaimOperation::Reown);
            // The claim is held as long as the Pod carries the target. With an owner that exists, nothing more happens
            // to the Pod, so the claim ends with the next version of the Pod.
            disruption.detail.target =
                (!lives).then(|| reowned.new_controller_token().into_owned());
            found.push(disruption);
        }
    }
    found
}

/// Whether [`update_disruptions`] may find a disruption. This function reads nothing from the API server.
pub fn may_disrupt(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    may_end_pod(context, old, new) || ownership::owner_change(old, new).is_some()
}

/// Whether an UPDATE restarts a container or ends the Pod in a way that needs a claim.
fn may_end_pod(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    in_place_restart(context, old, new).is_some() || lowered_deadline(old, new).is_some()
}

/// The same as [`may_end_pod`], for a write by which the Pod comes under a budget. The restart record of a Pod that was
/// not managed does not count, because anybody could write it.
pub fn may_end_on_entry(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    may_end_pod(context, old, new)
        || !old.is_managed() && inplace::in_place_restart(old, new).is_some()
}

/// Whether an UPDATE may need a claim, by the review alone. It does not trust what the caches say of a Pod that is
/// down.
pub fn may_disrupt_by_itself(context: &AdmissionContext, old: &Pod, new: &Pod) -> bool {
    let restarts = inplace::in_place_restart(old, new)
        .is_some_and(|change| !old.is_broken() && !is_offline_until_restart(&change, old, new));
    restarts || may_disrupt(context, old, new)
}

/// The restart that an in-place change causes and that needs a claim.
///
/// The change needs no claim if a lifecycle keeps the Pod off traffic before and after the write, and the restart is
/// recorded on the Pod: the rules were asked when the lifecycle began, and the Pod does not come back before the
/// restart. (The claim for an earlier resize may end only by a restart, and the restart of this change would end that
/// claim too early. So this change waits for the restart of the resize.) The absence of the label `service-available`
/// is not enough, because a short outage, or anybody by hand, can remove it.
///
/// A [lost](is_lost) Pod needs no claim either. If it can come back by itself, the restart must be recorded, too.
fn in_place_restart(context: &AdmissionContext, old: &Pod, new: &Pod) -> Option<InPlaceRestart> {
    let change = inplace::in_place_restart(old, new)?;
    let recorded = PendingRestarts::from_pod(new).unwrap_or_default();
    let is_lost =
        || (old.is_broken() || recorded.covers_image_restarts(&change)) && is_lost(context, old);
    (!is_offline_until_restart(&change, old, new) && !is_lost()).then_some(change)
}

/// Whether a lifecycle keeps the Pod off traffic before and after a change, and until the restart that the change
/// causes.
fn is_offline_until_restart(change: &InPlaceRestart, old: &Pod, new: &Pod) -> bool {
    is_offline_throughout(old, new)
        && PendingRestarts::from_pod(new)
            .unwrap_or_default()
            .covers_restarts(change)
        && !inplace::is_resize_unobservable(old)
}

/// Whether a Pod is down and is not expected to come back by itself, except by the end of an operation.
pub fn is_lost(context: &AdmissionContext, pod: &Pod) -> bool {
    let may_end_with_the_write = is_held_offline(pod) && !pod.is_broken();
    !pod.is_available()
        && !may_end_with_the_write
        && !context.index.read_state().is_briefly_down(pod)
}

/// Whether a lifecycle keeps the Pod off traffic before and after the write.
fn is_offline_throughout(old: &Pod, new: &Pod) -> bool {
    is_held_offline(old) && is_held_offline(new)
}

/// The deadline that an UPDATE sets or lowers, in seconds after the start of the Pod. The API server lets nobody raise
/// or remove it. It needs a claim whatever the state of the Pod, because the Pod may be available when the deadline
/// passes.
fn lowered_deadline(old: &Pod, new: &Pod) -> Option<i64> {
    let seconds = new.spec.active_deadline_seconds?;
    let earlier = old.spec.active_deadline_seconds;
    earlier
        .is_none_or(|earlier| seconds < earlier)
        .then_some(seconds)
}

/// The result of looking up the owners of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerLookup {
    /// At least one owner exists.
    Exists,
    /// No owner exists, or the Pod names no owner.
    NoneExists,
    /// No owner is known to exist, and at least one owner could not be read or was not looked up.
    Unknown,
}

/// Looks up the owners of a Pod. At most `remaining_lookups` owners are read, and `remaining_lookups` is reduced by
/// their number.
async fn look_up_owners(
    context: &AdmissionContext,
    pod: &Pod,
    deadline: Instant,
    remaining_lookups: &mut usize,
) -> OwnerLookup {
    let namespace = &pod.metadata.namespace;
    let owners = &pod.metadata.owner_references;
    {
        let state = context.index.read_state();
        let namespace_index = state.namespace(namespace);
        if namespace_index
            .is_some_and(|namespace_index| owners.iter().any(|o| namespace_index.has_owner(o)))
        {
            return OwnerLookup::Exists;
        }
    }
    let may = (*remaining_lookups).min(owners.len());
    *remaining_lookups -= may;
    let look_up = async {
        let mut all_are_gone = may == owners.len();
        for owner in &owners[..may] {
            match context.object_lookup.look_up_owner(namespace, owner).await {
                Presence::Exists => return OwnerLookup::Exists,
                Presence::Gone | Presence::Leaving => {}
                Presence::Unknown(_) => {
                    all_are_gone &= !context.object_lookup.may_owner_exist(owner).await;
                }
            }
        }
        match all_are_gone {
            true => OwnerLookup::NoneExists,
            false => OwnerLookup::Unknown,
        }
    };
    timeout_at(deadline, look_up)
        .await
        .unwrap_or(OwnerLookup::Unknown)
}

#[cfg(test)]
mod tests;
