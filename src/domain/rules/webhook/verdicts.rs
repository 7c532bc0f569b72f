//! The answers that count, as any replica reads them off the rule's status.

use std::collections::{HashMap, HashSet};

use super::Candidate;
use crate::api::podtransitionrule::PodTransitionRule;

/// Operations that the endpoints of one rule object have let pass. What was answered under an earlier generation, or
/// about an earlier operation, is not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// By the ID of the rule.
    passed: HashMap<String, HashSet<Candidate>>,
}

impl Verdicts {
    /// The verdicts in the status of an object.
    pub fn of(object: &PodTransitionRule) -> Verdicts {
        let generation = object.metadata.generation.unwrap_or(0);
        let states = object.status.iter().flat_map(|s| &s.rule_states);
        let passed = states.filter_map(|state| {
            let webhook = state.webhook_status.as_ref()?;
            let counts = webhook.generation == generation && !webhook.passed.is_empty();
            counts.then(|| (state.name.clone(), webhook.passed.iter().cloned().collect()))
        });
        Verdicts {
            passed: passed.collect(),
        }
    }

    /// Whether a rule's endpoint has let this very operation pass.
    pub fn has_passed(&self, rule: &str, candidate: &Candidate) -> bool {
        self.passed
            .get(rule)
            .is_some_and(|passed| passed.contains(candidate))
    }
}
