//! Reviews `pods/eviction`. The server must take the claim here, because the delete behind an eviction passes no
//! admission webhook.

mod eviction_object;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, timeout_at};

use super::bypass::{BypassCheck, ExplainedDenial};
use super::context::AdmissionContext;
use super::review::{Handler, Request, Verdict};
use super::{denial, exempt, graceful_deletion, own_requests, rule_check};
use crate::api_request;
use crate::cluster::{disruption_budgets, pod_requests};
use crate::domain::deletion::DeletionOptions;
use crate::domain::disruption_budget::EvictionRefusal;
use crate::domain::lifecycle::is_held_offline;
use crate::domain::pod::Pod;
use crate::ledger::commit::{DenyReason, Disruption};
use crate::ledger::protocol::ClaimOperation;
use eviction_object::{DeleteBinding, Eviction};

/// Time limit of a live read. It is short, so that a denial is still in time when the API server does not answer.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

pub struct EvictionHandler(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for EvictionHandler {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        let context = &self.0;
        let eviction: Eviction = match request
            .object
            .as_ref()
            .map(|raw| serde_json::from_str(raw.get()))
        {
            Some(Ok(eviction)) => eviction,
            Some(Err(e)) => {
                return Verdict::deny(422, "Invalid", format!("the Eviction can't be read: {e}"));
            }
            None => return Verdict::deny(400, "BadRequest", "the review carries no Eviction"),
        };
        let pod = match self.read_live_pod(request, deadline).await {
            Ok(Some(pod)) => Arc::new(pod),
            Ok(None) => return Verdict::allow().with_audit("free", "pod-not-found"), // the API server answers 404
            Err(why) => return self.deny_unreadable_pod(request, &why),
        };
        if eviction.is_for_another_pod(&request.name) {
            let message = "name in URL does not match name in Eviction object";
            return Verdict::deny(400, "BadRequest", message);
        }
        if let Some(why) = eviction.precondition_mismatch(&pod) {
            let message = format!("Pod {} can't be evicted: {why}", pod.metadata.name);
            return Verdict::deny(409, "Conflict", message);
        }
        let bypass = BypassCheck {
            context,
            request,
            carrier: &pod,
            dry_run: request.dry_run || eviction.is_dry_run(),
            is_asked_for: !own_requests::is_own_write(request),
            deadline,
        };
        let (verdict, bound) = self.decide_eviction(&bypass, &pod).await;
        // The API server deletes the Pod by name and retries for up to 10 s. Without this precondition it could delete
        // another Pod of the same name, for which no rule was asked.
        verdict.with_patch(eviction.binding_patch(&pod, bound))
    }

    fn fallback(&self, request: &Request, why: &str) -> Verdict {
        // The review does not contain the Pod, and a Pod that is missing in the cache may still exist.
        let (code, reason) = denial::TOO_MANY_REQUESTS;
        Verdict::deny(
            code,
            reason,
            format!(
                "the eviction of Pod {} is held: {why}; try again in a moment",
                request.name
            ),
        )
    }
}

impl EvictionHandler {
    /// The verdict on the eviction of a Pod, and the precondition for the delete behind an allowed eviction.
    async fn decide_eviction(
        &self,
        bypass: &BypassCheck<'_>,
        pod: &Arc<Pod>,
    ) -> (Verdict, DeleteBinding) {
        let context = &self.0;
        if let Some(reason) =
            exempt::find_exemption(context, bypass.request, pod, bypass.deadline).await
        {
            return (
                Verdict::allow().with_audit("free", reason),
                DeleteBinding::Uid,
            );
        }
        if let Some(refused) = self.refuse_by_disruption_budget(bypass, pod).await {
            return (refused, DeleteBinding::Uid);
        }
        if graceful_deletion::is_lifecycle_due(context.settings.grace_delete, pod) {
            if own_requests::is_own_dry_run(context, bypass.request, bypass.deadline).await {
                return (
                    Verdict::allow().with_audit("free", "own-dry-run"),
                    DeleteBinding::Uid,
                );
            }
            let wishes =
                DeletionOptions::from_eviction(&bypass.request.object_json()["deleteOptions"]);
            let verdict =
                graceful_deletion::decide_deletion(bypass, pod, ClaimOperation::Evict, wishes)
                    .await;
            return (verdict, DeleteBinding::Uid);
        }
        if exempt::is_deleted_with_collaset(context, pod, bypass.deadline).await {
            let verdict = Verdict::allow().with_audit("free", exempt::COLLASET_DELETED);
            return (verdict, DeleteBinding::Uid);
        }
        let disruption = context.new_disruption(pod, ClaimOperation::Evict);
        if pod.is_available() {
            return (
                self.claim_eviction(bypass, disruption).await,
                DeleteBinding::Uid,
            );
        }
        let approval = match bypass.admit_unavailable(pod).await {
            Ok(approval) => approval,
            Err(denied) => return (self.deny_eviction(pod, &denied), DeleteBinding::Uid),
        };
        // Such a Pod would become available by itself, so the eviction is a disruption. The delete gets no precondition
        // on the resourceVersion: the kubelet writes the status at this time, and the eviction would fail with a
        // conflict, which ends a drain.
        let is_starting = pod.is_starting((context.now)()) && !is_held_offline(pod);
        if is_starting || context.index.read_state().is_briefly_down(pod) {
            let verdict = self.claim_eviction(bypass, disruption).await;
            return (approval.audit_bypass(verdict, bypass), DeleteBinding::Uid);
        }
        let (dry_run, deadline) = (bypass.dry_run, bypass.deadline);
        let (verdict, bound) =
            match rule_check::claim_for_disruption(context, &disruption, dry_run, deadline).await {
                Ok(claims) => (allow_with_claim(claims.is_empty()), DeleteBinding::Uid),
                // Also if the watch failed during the wait: then nothing tells how long the Pod has been down.
                Err(denied)
                    if matches!(denied.why, DenyReason::Broken(_) | DenyReason::Unusable(_))
                        || context.index.read_state().is_briefly_down(pod) =>
                {
                    (
                        self.claim_eviction(bypass, disruption).await,
                        DeleteBinding::Uid,
                    )
                }
                // The eviction of a Pod that is down takes nothing from the budget. But the Pod may recover before the
                // delete, which no webhook sees. So the delete may only happen at the version that was judged.
                Err(_) => {
                    let verdict =
                        Verdict::allow().with_audit("free", "unavailable-at-this-version");
                    (verdict, DeleteBinding::Version)
                }
            };
        (approval.audit_bypass(verdict, bypass), bound)
    }

    /// The denial of an eviction that a PodDisruptionBudget will refuse. A claim for such an eviction would use
    /// the budget of the rules for nothing, and each retry of the caller would renew it.
    ///
    /// The text is the same as that of the API server. The answer has no `Retry-After`, because client-go would wait
    /// silently within the call. `kubectl drain` retries after 5 s on any 429.
    async fn refuse_by_disruption_budget(
        &self,
        bypass: &BypassCheck<'_>,
        pod: &Pod,
    ) -> Option<Verdict> {
        let context = &self.0;
        let begun = graceful_deletion::is_lifecycle_running(context.settings.grace_delete, pod);
        if begun || context.index.rules_covering_pod(pod).is_empty() {
            return None; // PodDisruptionBudgets no longer decide this deletion, or there is no claim to save
        }
        match context.disruption_budgets.find_refusal(pod)? {
            EvictionRefusal::Disallowed { cause } => {
                let text = format!(
                    "Cannot evict pod as it would violate the pod's disruption budget. {cause}"
                );
                let (code, reason) = denial::TOO_MANY_REQUESTS;
                let denied =
                    Verdict::deny(code, reason, text).with_cause("DisruptionBudget", cause);
                Some(denied.with_audit("held", "disruption-budget"))
            }
            // This denial ends a drain, so a live read must confirm the cache.
            EvictionRefusal::Several => {
                let live = disruption_budgets::read_live_refusal(&context.client, pod);
                let limit = bypass.deadline.min(Instant::now() + READ_TIMEOUT);
                let Ok(Ok(Some(EvictionRefusal::Several))) = timeout_at(limit, live).await else {
                    return None;
                };
                let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
                let denied = Verdict::deny(500, "InternalError", text);
                Some(denied.with_audit("held", "disruption-budgets"))
            }
        }
    }

    /// Allows the eviction with a claim from every rule that holds the Pod.
    async fn claim_eviction(&self, bypass: &BypassCheck<'_>, disruption: Disruption) -> Verdict {
        let pod = Arc::clone(&disruption.pod);
        match bypass.claim_or_bypass(disruption).await {
            Ok(approval) => {
                approval.audit_bypass(allow_with_claim(approval.claims.is_empty()), bypass)
            }
            Err(denied) => self.deny_eviction(&pod, &denied),
        }
    }

    fn deny_eviction(&self, pod: &Pod, refused: &ExplainedDenial) -> Verdict {
        refused.to_verdict(&pod.metadata.name, (self.0.now)())
    }

    async fn read_live_pod(
        &self,
        request: &Request,
        deadline: Instant,
    ) -> Result<Option<Pod>, String> {
        let limit = deadline.min(Instant::now() + READ_TIMEOUT);
        let read = pod_requests::get_pod(&self.0.client, &request.namespace, &request.name);
        let live = api_request::by(limit, read).await;
        live.map_err(|failure| failure.text())
    }

    fn deny_unreadable_pod(&self, request: &Request, why: &str) -> Verdict {
        self.fallback(request, &format!("the Pod can't be read ({why})"))
    }
}

/// Allows the eviction. If a claim was taken, the audit annotation `claimed` says so.
fn allow_with_claim(without: bool) -> Verdict {
    match without {
        true => Verdict::allow(),
        false => Verdict::allow().with_audit("claimed", "eviction"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;
    use testbed::api::FakeApi;

    use super::*;

    #[tokio::test]
    async fn fallback_denies_eviction_of_uncached_pod() {
        let context = AdmissionContext::at_epoch(FakeApi::default().client());
        context.index.mark_all_listed();
        let review = json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "CREATE", "namespace": "shop", "name": "web-1", "subResource": "eviction",
            "kind": { "group": "policy", "version": "v1", "kind": "Eviction" },
            "resource": { "group": "", "version": "v1", "resource": "pods" },
            "userInfo": { "username": "ann" },
            "object": { "metadata": { "name": "web-1", "namespace": "shop" } },
        } });
        let request = Request::parse(review.to_string().as_bytes()).unwrap();
        let verdict = EvictionHandler(Arc::new(context)).fallback(&request, "nobody can look");
        assert_eq!(verdict.code(), 429);
        assert!(verdict.message().contains("nobody can look"));
    }
}
