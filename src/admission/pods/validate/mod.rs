//! Validates writes of Pods: denies deletions and other disruptions that would violate a rule, and label changes that
//! would evade a rule.

mod deletion;
mod taken_claims;
mod update;

use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

use super::entering_rules::{self, UNKNOWN_RULE};
use super::{parse_pod, pod_updates};
use crate::admission::bypass::BypassCheck;
use crate::admission::context::AdmissionContext;
use crate::admission::review::{Handler, Request, RequestOperation, Verdict};
use crate::admission::{denial, exempt, graceful_deletion, own_requests};
use crate::api::keys::Family;
use crate::domain::grace_delete::is_operation_allowed;
use crate::domain::lifecycle::{are_user_labels_changed, is_held_offline, restarts, validate};
use crate::domain::pod::Pod;
use crate::ledger::commit::Denied;

/// Denies writes that would violate a rule.
pub struct PodValidator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for PodValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        match request.operation {
            RequestOperation::Delete => self.review_delete(request, deadline).await,
            RequestOperation::Update => self.review_update(request, deadline).await,
            RequestOperation::Create | RequestOperation::Connect => Verdict::allow(),
        }
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        let old = match parse_pod(request, request.old_object.as_deref()) {
            Ok(old) => old,
            Err(verdict) => return verdict,
        };
        let exemption = match request.operation {
            RequestOperation::Update => match parse_pod(request, request.object.as_deref()) {
                Ok(new) => self.update_exemption(request, &old, &new),
                Err(verdict) => return verdict,
            },
            _ => exempt::exemption_by_request(request, &old)
                .or_else(|| self.deletion_exemption(&old)),
        };
        if let Some(reason) = exemption {
            return Verdict::allow().with_audit("free", reason);
        }
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(
            code,
            reason,
            format!(
                "Pod {} is held: {why}; try again in a moment",
                old.metadata.name
            ),
        )
    }
}

impl PodValidator {
    /// Whether a Pod has become Ready a moment ago and only lacks the label that the leader adds afterwards. Many Pods
    /// may become Ready at the same time, and without this check all of them could be deleted before the first is
    /// labelled.
    fn is_about_to_serve(&self, pod: &Pod) -> bool {
        let is_starting = pod.is_starting((self.0.now)());
        let is_new = || is_starting || self.0.index.read_state().is_briefly_down(pod);
        pod.is_ready() && !is_held_offline(pod) && is_new()
    }

    fn bypass_check<'a>(
        &'a self,
        request: &'a Request,
        carrier: &'a Pod,
        deadline: Instant,
    ) -> BypassCheck<'a> {
        BypassCheck {
            context: &self.0,
            request,
            carrier,
            dry_run: request.dry_run,
            is_asked_for: !own_requests::is_own_write(request),
            deadline,
        }
    }

    fn deny_held(&self, pod: &Pod, denied: &Denied) -> Verdict {
        denial::denied_to_verdict(&pod.metadata.name, denied, (self.0.now)())
    }

    /// Why no budget holds a deletion, by the review alone. A rule that is missing in the caches may exist: it may be
    /// new, or a restore of etcd may have brought it back.
    fn deletion_exemption(&self, old: &Pod) -> Option<&'static str> {
        if graceful_deletion::is_lifecycle_due(self.0.settings.grace_delete, old) {
            return None;
        }
        (!old.is_available() && is_operation_allowed(old)).then_some("unavailable")
    }

    /// The same as [`PodValidator::deletion_exemption`] for an UPDATE. Every write that rules could deny, or for which
    /// they could need a claim, is held, because it is unknown which rules the Pod enters or leaves.
    fn update_exemption(&self, request: &Request, old: &Pod, new: &Pod) -> Option<&'static str> {
        let may_be_held = exempt::exemption_by_request(request, new).is_none();
        if may_be_held
            && are_user_labels_changed(old, new)
            && entering_rules::refuse_entry(&self.0, request, old, new, UNKNOWN_RULE).is_some()
        {
            return None;
        }
        if let Some(reason) = exempt::exemption_by_request(request, old) {
            return Some(reason);
        }
        if new.is_managed() && !validate(Some(old), new).is_empty() {
            return None;
        }
        if pod_updates::may_disrupt_by_itself(&self.0, old, new) {
            return None;
        }
        if !are_user_labels_changed(old, new) {
            // At most labels of the lifecycle differ.
            let is_begun_or_ended = old.metadata.labels != new.metadata.labels;
            return (!is_begun_or_ended || !old.is_available()).then_some("no-disruption");
        }
        let may_leave = !old.is_available()
            && operation_in_flight(old).is_none()
            && restarts::pending_restarts(old).is_none();
        may_leave.then_some("unavailable")
    }
}

/// The ID of an operation in flight on the Pod, if there is one.
fn operation_in_flight(pod: &Pod) -> Option<&str> {
    pod.metadata
        .labels
        .keys()
        .find_map(|key| match Family::parse(key) {
            Some((Family::OperationPermission, _)) | None => None,
            Some((_, id)) => Some(id),
        })
}

#[cfg(test)]
mod tests;
