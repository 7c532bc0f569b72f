//! The valid answers of endpoints, as each replica reads them from the status of the rule object.

use std::collections::{HashMap, HashSet};

use super::Candidate;
use crate::api::podtransitionrule::PodTransitionRule;
use crate::domain::rules::{RuleKind, RuleSet};

/// Operations that the endpoints of one rule object have let pass. Answers from before the last change of the rule, or
/// about an earlier operation, are not included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointVerdicts {
    /// The operations that passed, by the ID of the rule.
    passed: HashMap<String, HashSet<Candidate>>,
}

impl EndpointVerdicts {
    /// The verdicts in the status of an object. `rules` is the compiled spec of the object.
    pub fn from_status(object: &PodTransitionRule, rules: &RuleSet) -> EndpointVerdicts {
        let states = object.status.iter().flat_map(|s| &s.rule_states);
        let passed = states.filter_map(|state| {
            let webhook = state.webhook_status.as_ref()?;
            let rule = rules.rules.iter().find(|rule| rule.id == state.name)?;
            let RuleKind::Webhook(compiled) = &rule.kind else {
                return None;
            };
            let is_valid = webhook.is_current_for(&compiled.fingerprint, rules.generation)
                && !webhook.passed.is_empty();
            is_valid.then(|| (state.name.clone(), webhook.passed.iter().cloned().collect()))
        });
        EndpointVerdicts {
            passed: passed.collect(),
        }
    }

    /// Whether a rule's endpoint has let this operation pass.
    pub fn has_passed(&self, rule: &str, candidate: &Candidate) -> bool {
        self.passed
            .get(rule)
            .is_some_and(|passed| passed.contains(candidate))
    }
}
