//! The claims that one request takes.

use crate::admission::context::AdmissionContext;
use crate::domain::pod::Pod;
use crate::ledger::protocol::{ClaimGrant, ClaimOperation};
use crate::ledger::store::RuleKey;

/// The claims that one request has taken so far, by operation.
#[derive(Debug, Default)]
pub struct TakenClaims(Vec<(ClaimOperation, Vec<(RuleKey, ClaimGrant)>)>);

impl TakenClaims {
    pub fn add(&mut self, operation: ClaimOperation, claims: Vec<(RuleKey, ClaimGrant)>) {
        if !claims.is_empty() {
            self.0.push((operation, claims));
        }
    }

    /// Withdraws all of these claims, because the request is denied.
    pub fn withdraw(self, context: &AdmissionContext, pod: &Pod) {
        for (operation, claims) in self.0 {
            let uid = &pod.metadata.uid;
            context.ledgers.withdraw_claims(uid, operation, claims);
        }
    }

    /// The operations for the audit annotation `claimed`; `None` without claims.
    pub fn audit_operations(&self) -> Option<String> {
        let operations = self.0.iter().map(|(operation, _)| operation.as_str());
        let operations: Vec<_> = operations.collect();
        (!operations.is_empty()).then(|| operations.join(", "))
    }
}
