//! The output of `operating explain`.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::index_setup::RuleBudget;
use crate::admission::review::{Request, Verdict};
use crate::domain::messages;

/// The verdict on a review. `-o json` prints it. Fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct EvaluationOutcome {
    /// Whether the request passes.
    pub allowed: bool,
    /// HTTP status: 200 if the request is allowed.
    pub code: u16,
    /// `metav1.StatusReason` of a denial, or else empty.
    pub reason: String,
    /// Message of a denial, or else empty.
    pub message: String,
    /// The request: operation, resource and object.
    pub request: String,
    /// Paths of the handlers that were called, in this order.
    pub judged_by: Vec<&'static str>,
    /// Warnings that kubectl prints.
    pub warnings: Vec<String>,
    /// Audit annotations, which name the decision in one word.
    pub audit: BTreeMap<String, String>,
    /// RFC 6902 operations that change the object.
    pub patch: Vec<Value>,
    /// Budgets of the rule objects that cover the Pod, before the request.
    pub budgets: Vec<RuleBudget>,
    /// Notes for the user.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl EvaluationOutcome {
    /// Combines the verdicts of the handlers on a request, in their order.
    pub fn from_verdicts(
        request: &Request,
        verdicts: &[(&'static str, Verdict)],
        budgets: Vec<RuleBudget>,
        notes: Vec<String>,
    ) -> EvaluationOutcome {
        let denied = verdicts.iter().map(|(_, v)| v).find(|v| !v.is_allowed());
        let resource = &request.resource.resource;
        let sub = request
            .sub_resource
            .as_ref()
            .map_or_else(String::new, |sub| format!("/{sub}"));
        let all = || verdicts.iter().map(|(_, verdict)| verdict);
        EvaluationOutcome {
            allowed: denied.is_none(),
            code: denied.map_or(200, Verdict::code),
            reason: denied.map(Verdict::reason).unwrap_or_default().to_owned(),
            message: denied.map(Verdict::message).unwrap_or_default().to_owned(),
            request: format!(
                "{} {resource}{sub} {}",
                request.operation.as_str(),
                request.object_name()
            ),
            judged_by: verdicts.iter().map(|(path, _)| *path).collect(),
            warnings: all().flat_map(Verdict::warnings).cloned().collect(),
            audit: all()
                .flat_map(Verdict::annotations)
                .map(|(key, value)| ((*key).to_owned(), value.clone()))
                .collect(),
            patch: all()
                .filter_map(Verdict::patch)
                .flat_map(|patch| &patch.0)
                .filter_map(|operation| serde_json::to_value(operation).ok())
                .collect(),
            budgets,
            notes,
        }
    }

    /// The text for people.
    pub fn to_text(&self) -> String {
        let mut out = match self.allowed {
            true => format!("allowed: {}\n", self.request),
            false => format!(
                "denied ({} {}): {}\n{}\n",
                self.code, self.reason, self.request, self.message
            ),
        };
        let mut line = |text: String| {
            out.push_str(&text);
            out.push('\n');
        };
        for (key, value) in &self.audit {
            line(format!("{key}: {value}"));
        }
        for budget in &self.budgets {
            let figures =
                messages::budget_figures(budget.used, budget.expected, budget.limit, None);
            line(format!(
                "before, by {}: {figures}",
                messages::qualified_rule_name(&budget.object, "")
            ));
        }
        for warning in &self.warnings {
            line(format!("warning: {warning}"));
        }
        for operation in &self.patch {
            line(format!("changes: {operation}"));
        }
        out
    }
}
