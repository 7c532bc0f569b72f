//! What the label of a namespace says of the rules in it: the webhooks select by it.

use std::collections::BTreeMap;

use super::RuleSet;
use crate::api::keys;

/// The label [`keys::NAMESPACE_HAS_RULES`], the larger the more is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Mark {
    /// Absent: no rule.
    #[default]
    Unruled,
    /// There are rules.
    Ruled,
    /// One of them holds unavailable Pods too.
    Strict,
}

impl Mark {
    /// Read off the labels of a namespace. A value of another version marks rules.
    pub fn of(labels: &BTreeMap<String, String>) -> Mark {
        match labels.get(keys::NAMESPACE_HAS_RULES).map(String::as_str) {
            None => Mark::Unruled,
            Some(keys::NAMESPACE_HAS_STRICT_RULES) => Mark::Strict,
            Some(_) => Mark::Ruled,
        }
    }

    /// What these rules need.
    pub fn for_rules<'a>(rules: impl IntoIterator<Item = &'a RuleSet>) -> Mark {
        let one = |set: &RuleSet| {
            if set.holds_unavailable() {
                Mark::Strict
            } else {
                Mark::Ruled
            }
        };
        rules.into_iter().map(one).max().unwrap_or_default()
    }

    /// Value of the label; `None` without one.
    pub const fn value(self) -> Option<&'static str> {
        match self {
            Mark::Unruled => None,
            Mark::Ruled => Some("true"),
            Mark::Strict => Some(keys::NAMESPACE_HAS_STRICT_RULES),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    fn rules(policy: Option<&str>, disabled: bool) -> RuleSet {
        let object = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule", "metadata": { "name": "web" },
            "spec": { "selector": {}, "rules": [{
                "name": "a", "disabled": disabled,
                "availablePolicy": { "maxUnavailableValue": 1, "unhealthyPodPolicy": policy },
            }] },
        });
        RuleSet::compile(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_strictest_rule_decides() {
        let always = || rules(Some("AlwaysAllow"), false);
        let healthy = || rules(Some("IfHealthyBudget"), false);
        assert_eq!(Mark::for_rules(&[]), Mark::Unruled);
        assert_eq!(
            Mark::for_rules(&[rules(None, false), always()]),
            Mark::Ruled
        );
        assert_eq!(Mark::for_rules(&[healthy(), always()]), Mark::Strict);
        let disabled = rules(Some("IfHealthyBudget"), true);
        assert_eq!(Mark::for_rules(&[disabled]), Mark::Ruled);
    }

    #[test]
    fn a_mark_reads_as_it_is_written() {
        for mark in [Mark::Unruled, Mark::Ruled, Mark::Strict] {
            let label = mark.value().map(|v| (keys::NAMESPACE_HAS_RULES, v));
            let labels = label.map(|(k, v)| (k.to_owned(), v.to_owned()));
            assert_eq!(Mark::of(&labels.into_iter().collect()), mark);
        }
        let newer = [(keys::NAMESPACE_HAS_RULES.to_owned(), "newer".to_owned())];
        assert_eq!(Mark::of(&newer.into()), Mark::Ruled);
    }
}
