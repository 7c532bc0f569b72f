//! What becomes of the claim for an earlier change in place of the same Pod.

use std::borrow::Cow;

use super::answer::Disruption;
use crate::domain::inplace::{self, RestartProgress};
use crate::domain::pod::Pod;
use crate::ledger::protocol::Operation;
use crate::ledger::store::{ClaimDetail, Claims};

/// The claim that there is for the same operation on the Pod.
#[derive(Default)]
pub struct EarlierClaims<'a> {
    /// What it was given for, without what the kubelet is known to have done; `None` if there is none.
    pub detail: Option<Cow<'a, ClaimDetail>>,
    /// Whether another resize may take its place, see [`Detail::after`].
    pub gives_way: bool,
    /// Whether the next resize is to have a claim of its own. A claim that is renewed is closed after a while, and here it would end
    /// only after the next resize: a lifecycle keeps the Pod off traffic until then, or the node has no room for this one.
    pub is_served: bool,
}

impl<'a> EarlierClaims<'a> {
    /// That of the Pod as the request has it. `beyond`: the budget does not hold the disruption.
    pub fn from_claims(claims: &'a Claims, disruption: &Disruption, is_bypassed: bool) -> Self {
        let (pod, operation) = (&disruption.pod, disruption.operation);
        let uid = pod.metadata.uid.as_str().into();
        let Some(claim) = claims.claims.get(&(uid, operation)) else {
            return EarlierClaims {
                gives_way: operation == Operation::InPlace && inplace::may_restart_for_resize(pod),
                ..EarlierClaims::default()
            };
        };
        // A claim of a later version is of a change that this Pod does not show.
        let is_of_now =
            operation == Operation::InPlace && claim.at <= pod.metadata.resource_version;
        let is_off = is_of_now && is_bypassed && !pod.is_available();
        let detail = match is_off {
            true => Cow::Owned(without_done(pod, &claim.detail)),
            false => Cow::Borrowed(&claim.detail),
        };
        let is_over = is_off && is_done(pod, &detail);
        EarlierClaims {
            gives_way: inplace::is_resize_pending(pod) || is_over,
            is_served: is_over || (is_of_now && is_due(pod, &detail)),
            detail: Some(detail),
        }
    }
}

/// Whether the change is one of resizes that the kubelet has deferred. They take the place that the claim takes, whether there is one or not.
fn is_due(pod: &Pod, change: &ClaimDetail) -> bool {
    let is_resize = change.containers.iter().all(|c| c.image.is_none());
    is_resize && inplace::is_resize_deferred(pod) && inplace::may_restart_for_resize(pod)
}

/// Whether the kubelet is done with the change, or with all resizes.
fn is_done(pod: &Pod, change: &ClaimDetail) -> bool {
    inplace::is_resize_settled(pod)
        || inplace::restart_progress_of(pod, &change.containers) >= RestartProgress::Nothing
}

/// A change without the containers that run their new images by what the Pod shows.
fn without_done(pod: &Pod, change: &ClaimDetail) -> ClaimDetail {
    let mut left = change.clone();
    left.containers.retain(|container| {
        let restart = inplace::restart_progress_of(pod, std::slice::from_ref(container));
        container.image.is_none() || restart < RestartProgress::Nothing
    });
    left
}
