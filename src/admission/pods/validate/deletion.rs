//! Decides a DELETE of a Pod.

use std::sync::Arc;

use tokio::time::Instant;

use super::PodValidator;
use crate::admission::bypass::BypassCheck;
use crate::admission::pods::parse_pod;
use crate::admission::review::{Request, Verdict};
use crate::admission::{exempt, graceful_deletion, own_requests};
use crate::domain::deletion::DeletionOptions;
use crate::ledger::commit::Disruption;
use crate::ledger::protocol::ClaimOperation;

impl PodValidator {
    pub(super) async fn review_delete(&self, request: &Request, deadline: Instant) -> Verdict {
        let old = match parse_pod(request, request.old_object.as_deref()) {
            Ok(old) => Arc::new(old),
            Err(verdict) => return verdict,
        };
        let context = &self.0;
        let is_due = graceful_deletion::is_lifecycle_due(context.settings.grace_delete, &old);
        let exemption =
            exempt::find_deletion_exemption(context, request, &old, is_due, deadline).await;
        if let Some(reason) = exemption {
            return Verdict::allow().with_audit("free", reason);
        }
        let mut bypass = self.bypass_check(request, &old, deadline);
        if bypass.is_requested() {
            bypass.is_asked_for = !own_requests::is_own_deletion(request)
                && !own_requests::is_own_dry_run(context, request, deadline).await;
        }
        if is_due {
            if own_requests::is_own_dry_run(context, request, deadline).await {
                return Verdict::allow().with_audit("free", "own-dry-run");
            }
            let options =
                DeletionOptions::from_delete(&request.options_json(), &request.old_object_json());
            let operation = ClaimOperation::Delete;
            return graceful_deletion::decide_deletion(&bypass, &old, operation, options).await;
        }
        let disruption = self.0.new_disruption(&old, ClaimOperation::Delete);
        if old.is_available() {
            return self.claim_disruption(&bypass, disruption).await;
        }
        let approval = match bypass.admit_unavailable(&old).await {
            Ok(approval) => approval,
            Err(refused) => return refused.to_verdict(&old.metadata.name, (self.0.now)()),
        };
        if self.is_about_to_serve(&old) {
            let verdict = self.claim_disruption(&bypass, disruption).await;
            return approval.audit_bypass(verdict, &bypass);
        }
        approval.audit_bypass(Verdict::allow().with_audit("free", "unavailable"), &bypass)
    }

    async fn claim_disruption(&self, bypass: &BypassCheck<'_>, disruption: Disruption) -> Verdict {
        let (pod, operation) = (Arc::clone(&disruption.pod), disruption.operation);
        match bypass.claim_or_bypass(disruption).await {
            Ok(approval) if approval.claims.is_empty() => {
                approval.audit_bypass(Verdict::allow(), bypass)
            }
            Ok(approval) => {
                let verdict = Verdict::allow().with_audit("claimed", operation.as_str());
                approval.audit_bypass(verdict, bypass)
            }
            Err(refused) => refused.to_verdict(&pod.metadata.name, (self.0.now)()),
        }
    }
}
