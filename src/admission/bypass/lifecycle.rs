//! Bypasses the lifecycle that comes before a deletion (contract 4.4).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Approval, BypassCheck, ExplainedDenial};
use crate::admission::rule_check;
use crate::domain::pod::Pod;
use crate::ledger::protocol::ClaimOperation;

/// Why a deletion may not bypass its lifecycle.
pub enum LifecycleBypassError {
    /// The user may not bypass the rules. The text is for the user; `None` if the user did not ask.
    NotPermitted(Option<String>),
    /// The user may, but the claim for the deletion was denied.
    Denied(ExplainedDenial),
}

impl BypassCheck<'_> {
    /// Admits a deletion or an eviction without the lifecycle, if the user has the verb `bypass` on every rule object
    /// that covers the Pod, or on all rule objects of the namespace if none covers it.
    pub async fn bypass_lifecycle(
        &self,
        pod: &Arc<Pod>,
        operation: ClaimOperation,
    ) -> Result<Approval, LifecycleBypassError> {
        // The user needs the right on every rule object, including objects that the cache does not have yet.
        let rules = rule_check::covering_rules(self.context, pod, self.deadline).await;
        let rules = rules.map_err(|denied| {
            let note = None;
            LifecycleBypassError::Denied(ExplainedDenial { denied, note })
        })?;
        let rules = rules.into_iter().map(|rule| rule.name).collect();
        let permitted = self.may_bypass_all(&rules).await;
        permitted.map_err(LifecycleBypassError::NotPermitted)?;
        let mut approval = match pod.is_available() {
            true => {
                let disruption = self.context.new_disruption(pod, operation);
                let claimed = self.claim_or_bypass(disruption).await;
                claimed.map_err(LifecycleBypassError::Denied)?
            }
            false => Approval::default(),
        };
        approval.without_lifecycle = true;
        approval.bypassed_checks = &rules - &approval.bypassed_rules;
        self.announce_lifecycle_bypass(pod, &rules, &approval.bypassed_checks);
        Ok(approval)
    }

    fn announce_lifecycle_bypass(
        &self,
        pod: &Pod,
        covering: &BTreeSet<String>,
        bypassed_checks: &BTreeSet<String>,
    ) {
        const HOW: &str = "without its lifecycle";
        self.announce_bypass(pod, bypassed_checks, &format!("{HOW}, under"));
        if covering.is_empty() {
            self.announce_pod_bypass(pod, HOW);
        }
    }
}
