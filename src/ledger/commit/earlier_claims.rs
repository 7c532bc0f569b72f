//! Decides what happens to an existing claim for the same operation on the Pod, such as an earlier in-place change.

use std::borrow::Cow;

use super::answer::Disruption;
use crate::domain::inplace::{self, RestartProgress};
use crate::domain::pod::Pod;
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::{ClaimDetail, Claims};

/// The existing claim for the same operation on the Pod, if there is one.
#[derive(Default)]
pub struct EarlierClaims<'a> {
    /// The detail of the claim, without the containers whose change the kubelet has finished. `None` if there is no
    /// claim.
    pub detail: Option<Cow<'a, ClaimDetail>>,
    /// Whether another resize may replace this one, see [`ClaimDetail::merge_earlier_detail`].
    pub gives_way: bool,
    /// Whether the next resize gets a new claim instead of a renewal. A renewed claim is closed after a while. Here it
    /// could end only after the next resize, because until then a lifecycle keeps the Pod off traffic, or the node has
    /// no room for the earlier resize.
    pub is_served: bool,
}

impl<'a> EarlierClaims<'a> {
    /// Looks up the claim for the Pod as the request shows it. `is_bypassed` says that the budget does not hold the
    /// disruption.
    pub fn from_claims(claims: &'a Claims, disruption: &Disruption, is_bypassed: bool) -> Self {
        let (pod, operation) = (&disruption.pod, disruption.operation);
        let uid = pod.metadata.uid.as_str().into();
        let Some(claim) = claims.claims.get(&(uid, operation)) else {
            return EarlierClaims {
                gives_way: operation == ClaimOperation::InPlace
                    && inplace::may_restart_for_resize(pod),
                ..EarlierClaims::default()
            };
        };
        // A claim at a later version is for a change that this version of the Pod does not show.
        let is_of_now =
            operation == ClaimOperation::InPlace && claim.at <= pod.metadata.resource_version;
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

/// Whether the change is a resize, and the kubelet has deferred a resize of the Pod that restarts containers. The
/// deferred resize uses the budget with or without this claim.
fn is_due(pod: &Pod, change: &ClaimDetail) -> bool {
    let is_resize = change.containers.iter().all(|c| c.image.is_none());
    is_resize && inplace::is_resize_deferred(pod) && inplace::may_restart_for_resize(pod)
}

/// Whether the kubelet has finished the change, or all resizes of the Pod.
fn is_done(pod: &Pod, change: &ClaimDetail) -> bool {
    inplace::is_resize_settled(pod)
        || inplace::restart_progress_of(pod, &change.containers) >= RestartProgress::Nothing
}

/// The change without the containers that, by the status of the Pod, already run their new image.
fn without_done(pod: &Pod, change: &ClaimDetail) -> ClaimDetail {
    let mut remaining = change.clone();
    remaining.containers.retain(|container| {
        let restart = inplace::restart_progress_of(pod, std::slice::from_ref(container));
        container.image.is_none() || restart < RestartProgress::Nothing
    });
    remaining
}
