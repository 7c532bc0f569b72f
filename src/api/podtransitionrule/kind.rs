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
        [
            self.available_policy.as_ref().map(Kind::Availability),
            self.label_check.as_ref().map(Kind::LabelCheck),
            self.webhook.as_ref().map(Kind::Webhook),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
