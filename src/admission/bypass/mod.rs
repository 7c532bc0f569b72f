//! Asks for the claims of a disruption, and admits a disruption beyond the budget if a rule denies it (break-glass).
//!
//! [`BypassCheck::claim_or_bypass`] first asks for the claims as usual, by `rule_check`. For break-glass, the Pod must
//! name a reason in an annotation, and the user of the request must have the RBAC verb `bypass` on the rule. The server
//! checks the right only when a rule would deny the request. The claim is written all the same, so that later decisions
//! count the Pod as going.

mod approval;
mod explained_denial;
mod lifecycle;
mod permission;
mod reports;

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::Instant;

pub use approval::Approval;
pub use explained_denial::ExplainedDenial;
pub use lifecycle::LifecycleBypassError;
pub use reports::AGAINST_RULE;
use reports::BEYOND_BUDGET;

use super::context::AdmissionContext;
use super::review::Request;
use super::{overlap, rule_check};
use crate::domain::pod::Pod;
use crate::domain::rules::{SkipAnnotation, unreadable_skips_message};
use crate::ledger::commit::{Denied, DenyReason, Disruption};

pub struct BypassCheck<'a> {
    /// The state that all handlers share.
    pub context: &'a AdmissionContext,
    /// The request. Its user needs the right.
    pub request: &'a Request,
    /// The Pod whose annotation names the reason: the new Pod of an update, the stored Pod of a deletion or an
    /// eviction.
    pub carrier: &'a Pod,
    /// Whether nothing may be written.
    pub dry_run: bool,
    /// Whether the reason in the annotation of `carrier` applies to this request.
    pub is_asked_for: bool,
    /// When the API server stops waiting for the verdict.
    pub deadline: Instant,
}

impl BypassCheck<'_> {
    /// Takes a claim for the disruption from every rule object that covers the Pod. Rules that deny are bypassed, if
    /// the user may bypass them.
    pub async fn claim_or_bypass(
        &self,
        mut disruption: Disruption,
    ) -> Result<Approval, ExplainedDenial> {
        loop {
            let claimed = rule_check::claim_for_disruption(
                self.context,
                &disruption,
                self.dry_run,
                self.deadline,
            )
            .await;
            let denied = match claimed {
                Ok(claims) => {
                    let bypassed_rules = disruption.bypassed_rules;
                    self.announce_bypass(&disruption.pod, &bypassed_rules, BEYOND_BUDGET);
                    let skipped = self.announce_skipped_rules(&disruption.pod, false);
                    return Ok(Approval {
                        claims,
                        bypassed_rules,
                        skipped,
                        ..Approval::default()
                    });
                }
                Err(denied) => denied,
            };
            self.bypass_denied_rule(denied, &disruption.pod, &mut disruption.bypassed_rules)
                .await?;
        }
    }

    /// Asks the rules that hold Pods which are not available. The result has the names of the bypassed rules.
    pub async fn admit_unavailable(&self, pod: &Arc<Pod>) -> Result<Approval, ExplainedDenial> {
        let mut bypassed_rules = BTreeSet::new();
        while let Err(denied) =
            rule_check::admit_unavailable(self.context, pod, &bypassed_rules, self.deadline).await
        {
            self.bypass_denied_rule(denied, pod, &mut bypassed_rules)
                .await?;
        }
        self.announce_bypass(pod, &bypassed_rules, BEYOND_BUDGET);
        Ok(Approval {
            bypassed_rules,
            skipped: self.announce_skipped_rules(pod, true),
            ..Approval::default()
        })
    }

    /// Adds the rule of a denial to `bypassed_rules`, if the user may bypass it.
    async fn bypass_denied_rule(
        &self,
        denied: Denied,
        pod: &Pod,
        bypassed_rules: &mut BTreeSet<String>,
    ) -> Result<(), ExplainedDenial> {
        let by_rule = matches!(
            denied.why,
            DenyReason::Full { .. }
                | DenyReason::Unhealthy { .. }
                | DenyReason::Broken(_)
                | DenyReason::UnknownOwner(_)
                | DenyReason::Unset { .. }
        );
        let by_number =
            matches!(denied.why, DenyReason::Overlapping { .. }) && bypassed_rules.is_empty();
        if !by_number && (!by_rule || bypassed_rules.contains(&denied.object)) {
            return Err(ExplainedDenial { denied, note: None });
        }
        let rule = by_rule.then_some(denied.object.as_str());
        let note = match self.may_bypass(rule).await {
            Ok(()) if by_number => {
                let (index, rules) = (
                    &self.context.index,
                    self.context.index.rules_covering_pod(pod),
                );
                let names = overlap::availability_rule_names(index, &rules).into_iter();
                bypassed_rules.extend(names.map(str::to_owned));
                return Ok(());
            }
            Ok(()) => {
                bypassed_rules.insert(denied.object);
                return Ok(());
            }
            Err(note) => note,
        };
        let skips = match self.context.index.skips() {
            SkipAnnotation::Honoured => unreadable_skips_message(pod),
            SkipAnnotation::Ignored => None,
        };
        let notes: Vec<_> = skips.into_iter().chain(note).collect();
        let note = (!notes.is_empty()).then(|| notes.join("; "));
        Err(ExplainedDenial { denied, note })
    }
}

#[cfg(test)]
mod tests;
