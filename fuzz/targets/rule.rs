//! Specs of PodTransitionRules.

use std::collections::BTreeSet;

use operating::api::defaults;
use operating::api::podtransitionrule::{PodTransitionRule, PodTransitionRuleSpec};
use operating::api::validation::podtransitionrule::validate;
use operating::domain::rules::{RuleKind, RuleSet, conditions, enforcement::NamespaceEnforcement};
use serde_json::Value;

use super::collaset::defaulted;
use super::read;

/// A spec that passes validation compiles, and no two rules have the same ID. Defaults are added once, and a second run
/// adds nothing.
pub fn run(data: &[u8]) {
    if let Some(spec) = read::<PodTransitionRuleSpec>(data) {
        let errors = validate(&spec);
        let set = RuleSet::compile(&PodTransitionRule::new("fuzz", spec));
        let broken = set.rules.iter().find_map(|rule| match &rule.kind {
            RuleKind::Broken { reason, .. } => Some(reason),
            _ => None,
        });
        if errors.is_empty() {
            assert_eq!(broken, None, "it was accepted");
            assert_eq!(set.selector.as_ref().err(), None, "it was accepted");
        }
        let ids: BTreeSet<_> = set.rules.iter().map(|rule| &rule.id).collect();
        assert_eq!(ids.len(), set.rules.len(), "IDs of {:?}", set.rules);
        let _ = (
            NamespaceEnforcement::for_rules([&set]),
            conditions::rule_warnings(&set, None, false),
        );
    }
    if let Some(spec) = read::<Value>(data) {
        let mut object = serde_json::json!({ "metadata": { "name": "fuzz" }, "spec": spec });
        defaulted::<PodTransitionRule>(&mut object, defaults::default_podtransitionrule);
    }
}
