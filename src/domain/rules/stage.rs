//! What the rules of a stage say of a Pod, apart from the budgets (which the ledger decides).

use super::{RuleKind, RuleSet, Stage};
use crate::domain::pod::Pod;

/// Why a Pod waits in a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// Name of the rule object.
    pub object: String,
    /// Name of the rule; empty for the object as a whole.
    pub rule: String,
    /// The reason, for people.
    pub reason: String,
}

/// Rules of this object and stage that keep the Pod waiting whatever the budget. Empty: only the ledger is left to ask.
pub fn rejections(set: &RuleSet, stage: Stage, pod: &Pod) -> Vec<Rejection> {
    let reject = |rule: &str, reason: String| Rejection {
        object: set.name.clone(),
        rule: rule.to_owned(),
        reason,
    };
    if !set.selects(pod) {
        return Vec::new();
    }
    if let Err(why) = &set.selector {
        return vec![reject("", why.clone())];
    }
    set.applying(stage, pod)
        .filter_map(|rule| match &rule.kind {
            RuleKind::Availability(_) => None,
            RuleKind::LabelCheck => Some(reject(&rule.name, unsupported("labelCheck"))),
            RuleKind::Webhook => Some(reject(&rule.name, unsupported("webhook"))),
            RuleKind::Broken(why) => Some(reject(&rule.name, why.clone())),
        })
        .collect()
}

fn unsupported(kind: &str) -> String {
    format!(
        "{kind} rules are not evaluated by this version and keep their Pods waiting; disable the rule, or name it in the \
         annotation {} of the Pod",
        crate::api::keys::SKIP_RULE_CONDITIONS
    )
}
