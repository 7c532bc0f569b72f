//! The kinds of rules. Most code that distinguishes kinds matches on [`Kind`], so that a new kind does not compile
//! until that code handles it. CONTRIBUTING.md lists the places that the compiler does not find.

use super::{AvailablePolicy, LabelCheck, Rule, WebhookRule};

/// The kind of a rule, which is the field that is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind<'a> {
    /// `availablePolicy`.
    Availability(&'a AvailablePolicy),
    /// `labelCheck`.
    LabelCheck(&'a LabelCheck),
    /// `webhook`.
    Webhook(&'a WebhookRule),
}

impl Kind<'_> {
    /// The fields of all kinds. If a rule has several, the first of them takes effect (contract 1.3).
    pub const FIELDS: [&'static str; 3] = ["availablePolicy", "labelCheck", "webhook"];

    /// The name of the field in a rule.
    pub const fn field(self) -> &'static str {
        match self {
            Kind::Availability(_) => "availablePolicy",
            Kind::LabelCheck(_) => "labelCheck",
            Kind::Webhook(_) => "webhook",
        }
    }

    /// Whether rules of the kind limit how many Pods are unavailable. Rules of the other kinds hold
    /// operations only.
    pub const fn limits_unavailable(self) -> bool {
        match self {
            Kind::Availability(_) => true,
            Kind::LabelCheck(_) | Kind::Webhook(_) => false,
        }
    }
}

impl Rule {
    /// The kinds whose fields are set, in the order of [`Kind::FIELDS`]. A valid rule has exactly one.
    pub fn kinds(&self) -> impl Iterator<Item = Kind<'_>> {
        // The pattern names every field, so that a new field does not compile until this function handles it.
        let Rule {
            name: _,
            disabled: _,
            stage: _,
            conditions: _,
            filter: _,
            available_policy,
            label_check,
            webhook,
        } = self;
        [
            available_policy.as_ref().map(Kind::Availability),
            label_check.as_ref().map(Kind::LabelCheck),
            webhook.as_ref().map(Kind::Webhook),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;

    /// The fields that a rule of any kind may have.
    const COMMON_FIELDS: [&str; 5] = ["name", "disabled", "stage", "conditions", "filter"];

    #[test]
    fn every_field_of_a_rule_is_common_or_a_kind() {
        let schema = serde_json::to_value(schemars::schema_for!(Rule)).unwrap();
        let fields = schema["properties"].as_object().unwrap();
        let fields: BTreeSet<&str> = fields.keys().map(String::as_str).collect();
        let known = COMMON_FIELDS.into_iter().chain(Kind::FIELDS);
        assert_eq!(fields, known.collect());
    }

    #[test]
    fn kinds_stand_in_the_order_of_their_fields() {
        let rule = Rule {
            available_policy: Some(AvailablePolicy::default()),
            label_check: Some(LabelCheck::default()),
            webhook: Some(WebhookRule::default()),
            ..Rule::default()
        };
        assert!(rule.kinds().map(Kind::field).eq(Kind::FIELDS));
        assert_eq!(Rule::default().kinds().count(), 0);
    }

    #[test]
    fn schema_knows_every_kind() {
        let (expression, _) = super::super::RULE_RULES[1];
        let fields = Kind::FIELDS.map(|field| format!("has(self.{field})"));
        assert!(expression.starts_with(&format!("[{}]", fields.join(", "))));
    }
}
