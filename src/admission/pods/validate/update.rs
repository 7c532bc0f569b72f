//! Decides an UPDATE of a Pod: the Pod may come under a rule, leave a rule, or be disrupted by the write itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::taken_claims::TakenClaims;
use super::{PodValidator, operation_in_flight};
use crate::admission::bypass::ExplainedDenial;
use crate::admission::pods::{deny_invalid_pod, entering_rules, parse_pod, pod_updates};
use crate::admission::review::{Request, Verdict};
use crate::admission::{cache_freshness, exempt, rule_check};
use crate::domain::lifecycle::{are_user_labels_changed, restarts, validate};
use crate::domain::pod::Pod;
use crate::ledger::commit::Disruption;
use crate::ledger::protocol::ClaimOperation;
use crate::ledger::store::RuleKey;

/// An UPDATE of a Pod under review, after all mutating webhooks.
struct FinalPodUpdate<'a> {
    request: &'a Request,
    /// The stored Pod.
    old: Arc<Pod>,
    /// The Pod that the request would store.
    new: Pod,
    deadline: Instant,
}

impl PodValidator {
    pub(super) async fn review_update(&self, request: &Request, deadline: Instant) -> Verdict {
        let (old, new) = match (
            parse_pod(request, request.old_object.as_deref()),
            parse_pod(request, request.object.as_deref()),
        ) {
            (Ok(old), Ok(new)) => (Arc::new(old), new),
            (Err(verdict), _) | (_, Err(verdict)) => return verdict,
        };
        let update = FinalPodUpdate {
            request,
            old,
            new,
            deadline,
        };
        match self.decide_update(&update).await {
            Ok(verdict) | Err(verdict) => verdict,
        }
    }

    /// The verdict on an UPDATE. A verdict that denies the request is the error.
    async fn decide_update(&self, update: &FinalPodUpdate<'_>) -> Result<Verdict, Verdict> {
        let (request, old, new) = (update.request, &update.old, &update.new);
        self.check_entry(update).await?;
        if let Some(reason) = exempt::find_exemption(&self.0, request, old, update.deadline).await {
            return Ok(Verdict::allow().with_audit("free", reason));
        }
        if new.is_managed() {
            let errors = validate(Some(old), new);
            if !errors.is_empty() {
                return Err(deny_invalid_pod(new, &errors));
            }
        }
        let mut taken = TakenClaims::default();
        self.claim_leaving(update, &mut taken).await?;
        self.claim_disruptions(update, taken).await
    }

    /// Denies an UPDATE that may bring a Pod under a rule while the cache of rules is not current, or while a change of
    /// the Pod is outstanding.
    async fn check_entry(&self, update: &FinalPodUpdate<'_>) -> Result<(), Verdict> {
        let (request, old, new) = (update.request, &update.old, &update.new);
        let exemption = || exempt::find_exemption(&self.0, request, new, update.deadline);
        let namespace = &old.metadata.namespace;
        if new.is_managed()
            && are_user_labels_changed(old, new)
            && let Err(denied) =
                cache_freshness::ensure_rules_current(&self.0, namespace, update.deadline).await
            && exemption().await.is_none()
        {
            return Err(self.deny_held(old, &denied)); // the Pod may come under a rule that the cache does not have yet
        }
        if let Some(rule) = entering_rules::entered_rule(&self.0, old, new)
            && let Some(refused) = entering_rules::refuse_entry(&self.0, request, old, new, &rule)
            && exemption().await.is_none()
        {
            return Err(refused);
        }
        Ok(())
    }

    /// Takes a claim from every rule object that holds the Pod now and would not hold it after the UPDATE.
    async fn claim_leaving(
        &self,
        update: &FinalPodUpdate<'_>,
        taken: &mut TakenClaims,
    ) -> Result<(), Verdict> {
        let (old, new) = (&update.old, &update.new);
        // Read the generations before the rules: a rule that changes in between then has another generation.
        let generations = match are_user_labels_changed(old, new) {
            true => cache_freshness::rule_generations(&self.0, &old.metadata.namespace),
            false => BTreeMap::new(),
        };
        let rules = rule_check::rules_losing_pod(&self.0, old, new, update.deadline)
            .await
            .map_err(|denied| self.deny_held(old, &denied))?;
        let Some(rule) = rules.first() else {
            return Ok(());
        };
        if let Some(refused) = refuse_leaving(old, rule) {
            return Err(refused);
        }
        if !old.is_available() && !self.is_about_to_serve(old) {
            return Ok(());
        }
        let operation = ClaimOperation::Leave;
        let disruption = Disruption {
            generations,
            ..self.0.new_disruption(old, operation)
        };
        let dry_run = update.request.dry_run;
        let claimed =
            rule_check::claim_by_rules(&self.0, rules, &disruption, dry_run, update.deadline);
        let claims = claimed.await.map_err(|denied| {
            let note = None;
            let refused = ExplainedDenial { denied, note }.with_held_write_reason(operation);
            refused.to_verdict(&old.metadata.name, (self.0.now)())
        })?;
        taken.add(operation, claims);
        Ok(())
    }

    /// Takes the claims for what the UPDATE itself does to the Pod, such as the restart of a container. If a claim is
    /// denied, all claims of the request are withdrawn.
    async fn claim_disruptions(
        &self,
        update: &FinalPodUpdate<'_>,
        mut taken: TakenClaims,
    ) -> Result<Verdict, Verdict> {
        let (request, deadline) = (update.request, update.deadline);
        let (old, new) = (&update.old, &update.new);
        let bypass = self.bypass_check(request, new, deadline);
        let mut verdict = Verdict::allow();
        for disruption in pod_updates::update_disruptions(&self.0, old, new, deadline).await {
            let operation = disruption.operation;
            if !disruption.bypassed_rules.is_empty() {
                let dry_run = request.dry_run;
                let claimed =
                    rule_check::claim_for_disruption(&self.0, &disruption, dry_run, deadline);
                match claimed.await {
                    Ok(claims) => taken.add(operation, claims),
                    Err(denied) => {
                        taken.withdraw(&self.0, old);
                        return Err(self.deny_held(old, &denied));
                    }
                }
                continue;
            }
            match bypass.claim_or_bypass(disruption).await {
                Ok(approval) => {
                    verdict = approval.audit_bypass(verdict, &bypass);
                    taken.add(operation, approval.claims);
                }
                Err(refused) => {
                    taken.withdraw(&self.0, old);
                    let refused = refused.with_held_write_reason(operation);
                    return Err(refused.to_verdict(&old.metadata.name, (self.0.now)()));
                }
            }
        }
        Ok(match taken.audit_operations() {
            Some(operations) => verdict.with_audit("claimed", operations),
            None => verdict,
        })
    }
}

/// Denies a write by which a Pod leaves a rule, if the Pod waits for a restart or an operation is in flight on it.
fn refuse_leaving(old: &Pod, rule: &RuleKey) -> Option<Verdict> {
    let (pod, rule) = (&old.metadata.name, &rule.name);
    let (why, audit) = if let Some(restarts) = restarts::pending_restarts(old) {
        // Once the Pod is outside of the management, anybody could remove the record of its restarts.
        (format!("it waits for {restarts}"), "awaits-restart")
    } else {
        let id = operation_in_flight(old)?;
        let why = format!("operation {id} is in flight on it: finish or undo the operation first");
        (why, "leaves-in-flight")
    };
    let message = format!("Pod {pod} can't leave PodTransitionRule {rule} while {why}");
    Some(Verdict::deny(403, "Forbidden", message).with_audit("held", audit))
}
