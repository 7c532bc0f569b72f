//! The outcome of a request that admission allows, with what the audit event says about it.

use std::collections::{BTreeMap, BTreeSet};

use super::BypassCheck;
use crate::admission::review::Verdict;
use crate::ledger::protocol::ClaimGrant;
use crate::ledger::store::RuleKey;

/// The claims of a request that is admitted, and the rules that were bypassed or skipped for it.
#[derive(Debug, Default)]
pub struct Approval {
    /// The claims that were written, by rule object.
    pub claims: Vec<(RuleKey, ClaimGrant)>,
    /// Names of the rule objects whose budget was bypassed.
    pub bypassed_rules: BTreeSet<String>,
    /// Rules that would hold the Pod and that its annotation skips, by rule object.
    pub skipped: BTreeMap<String, Vec<String>>,
    /// Names of the rule objects that were bypassed for another reason than their budget: their label checks, their
    /// endpoints, or the lifecycle before a deletion.
    pub bypassed_checks: BTreeSet<String>,
    /// Whether a deletion was admitted without its lifecycle.
    pub without_lifecycle: bool,
}

impl Approval {
    /// Adds the rules that the Pod skips, the bypassed rules and the reason of the bypass to the audit event of an
    /// allowed request.
    pub fn audit_bypass(&self, mut verdict: Verdict, bypass: &BypassCheck<'_>) -> Verdict {
        if !self.skipped.is_empty() {
            let skipped = self.skipped.iter();
            let skipped = skipped.flat_map(|(object, rules)| {
                rules.iter().map(move |rule| format!("{object}/{rule}"))
            });
            let skipped: Vec<_> = skipped.collect();
            verdict = verdict.with_audit("skipped-rules", skipped.join(", "));
        }
        let mut rules: Vec<_> = (self.bypassed_rules.iter().chain(&self.bypassed_checks))
            .map(String::as_str)
            .collect();
        if self.without_lifecycle {
            rules.push("lifecycle");
        }
        if rules.is_empty() {
            return verdict;
        }
        let reason = bypass.bypass_reason().unwrap_or_default();
        verdict.with_audit("bypassed", format!("{}: {reason}", rules.join(", ")))
    }
}
