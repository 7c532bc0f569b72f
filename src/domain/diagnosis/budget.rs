//! The gauges of rule objects, for `kubectl operating budget`.

use serde::Serialize;

use super::RuleObject;

/// A rule object with the gauges of its status. `-o json` prints it. Fields are only ever added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetRow {
    pub namespace: String,
    pub name: String,
    /// Whether the object limits how many Pods are unavailable: it has a rule with an `availablePolicy`.
    pub limited: bool,
    /// Whether every disruption is denied, whatever the numbers are. Absent if false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub denies_all: bool,
    /// Whether the numbers describe the present spec.
    pub observed: bool,
    /// How many more Pods may go now, by the tightest rule. Absent if no rule limits them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<u32>,
    /// Expected Pods that are missing, not available, or have a claim.
    pub unavailable: u32,
    /// How many Pods may be unavailable, by the tightest rule. Absent if no rule limits them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The limits as they are written, such as `max 30%`, those of an object with several separated by commas. Empty if no
    /// rule limits them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub written: String,
    /// How many Pods are expected.
    pub expected: u32,
    /// Pods that wait in PreCheck.
    pub waiting: u32,
    /// Claims: disruptions that were admitted and whose effect is not seen yet.
    pub claims: u32,
    /// Whether the object is enforced, by its condition `Enforced`. An unreadable object counts as enforced.
    pub enforced: bool,
    /// A problem of the object, from its conditions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Rows of rule objects, the tightest first: objects with problems, then by the remaining budget, then by the number of
/// waiting Pods.
pub fn budget_rows(objects: &[RuleObject]) -> Vec<BudgetRow> {
    let mut rows: Vec<BudgetRow> = objects.iter().map(budget_row).collect();
    rows.sort_by(|a, b| row_order(a).cmp(&row_order(b)));
    rows
}

fn row_order(row: &BudgetRow) -> impl Ord + '_ {
    (
        row.problem.is_none(),
        row.observed && !row.limited,
        row.allowed.unwrap_or(u32::MAX),
        std::cmp::Reverse(row.waiting),
        std::cmp::Reverse(row.unavailable),
        &row.namespace,
        &row.name,
    )
}

fn budget_row(object: &RuleObject) -> BudgetRow {
    let status = object.object.status.clone().unwrap_or_default();
    let count = |n: i32| u32::try_from(n).unwrap_or(0);
    let claims = status
        .ledger
        .as_ref()
        .map_or(0, |ledger| ledger.claims.len());
    let failed_condition = |type_: &str| {
        let mut conditions = status.conditions.iter();
        conditions.find(|c| c.type_ == type_ && c.status == "False")
    };
    let problem = failed_condition("Enforced")
        .or_else(|| object.denies_all_condition())
        .or_else(|| failed_condition("Matched"))
        .or_else(|| {
            let mut conditions = status.conditions.iter();
            conditions.find(|c| {
                c.status == "True"
                    && (c.type_ == "RolloutsHeld" || c.reason == "TemplateNotMatched")
            })
        });
    BudgetRow {
        namespace: object.set.namespace.clone(),
        name: object.set.name.clone(),
        limited: object.set.availability_limits().next().is_some(),
        denies_all: object.denies_all_condition().is_some()
            || failed_condition("Enforced").is_some_and(|c| c.reason == "Invalid"),
        observed: status.observed_generation > 0
            && status.observed_generation == object.set.generation,
        allowed: status.disruptions_allowed.map(count),
        unavailable: count(status.unavailable_pods),
        limit: status.unavailable_limit.map(count),
        written: written_limits(object),
        expected: count(status.expected_pods),
        waiting: count(status.waiting_pods),
        claims: u32::try_from(claims).unwrap_or(u32::MAX),
        enforced: failed_condition("Enforced").is_none_or(|c| c.reason == "Invalid"),
        problem: problem.map(|c| format!("{}: {}", c.reason, c.message)),
    }
}

fn written_limits(object: &RuleObject) -> String {
    let each = object.set.availability_limits().flat_map(|limits| {
        let max = limits.max_unavailable.map(|most| format!("max {most}"));
        let min = limits.min_available.map(|fewest| format!("min {fewest}"));
        max.into_iter().chain(min)
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, generation: i64, status: Value) -> RuleObject {
        RuleObject::compile(
            serde_json::from_value(json!({
                "metadata": { "namespace": "n", "name": name, "generation": generation },
                "spec": { "selector": {}, "rules": [{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }] },
                "status": status,
            }))
            .unwrap(),
        )
    }

    fn counted(name: &str, allowed: i32, waiting: i32) -> RuleObject {
        let status = json!({ "observedGeneration": 1, "disruptionsAllowed": allowed, "waitingPods": waiting });
        object(name, 1, status)
    }

    #[test]
    fn limits_are_shown_as_written() {
        let object: RuleObject = RuleObject::compile(
            serde_json::from_value(json!({
                "metadata": { "namespace": "n", "name": "a", "generation": 1 },
                "spec": { "selector": {}, "rules": [
                    { "name": "a", "availablePolicy": { "maxUnavailableValue": "30%", "minAvailableValue": 2 } },
                    { "name": "b", "disabled": true, "availablePolicy": { "maxUnavailableValue": 1 } },
                    { "name": "c", "availablePolicy": { "maxUnavailableValue": 0 } },
                ] },
            }))
            .unwrap(),
        );
        let rows = budget_rows(&[object]);
        assert_eq!(rows[0].written, "max 30%, min 2, max 0");
    }

    #[test]
    fn tightest_budget_row_comes_first() {
        let invalid = json!([{
            "type": "Enforced", "status": "False", "reason": "Invalid", "message": "mend it",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]);
        let objects = [
            counted("roomy", 5, 0),
            counted("full", 0, 0),
            counted("busy", 0, 3),
            object(
                "odd",
                1,
                json!({ "observedGeneration": 1, "disruptionsAllowed": 9, "conditions": invalid }),
            ),
            counted("also-full", 0, 0),
        ];
        let rows = budget_rows(&objects);
        let names: Vec<_> = rows.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["odd", "busy", "also-full", "full", "roomy"]);
        assert_eq!(rows[0].problem.as_deref(), Some("Invalid: mend it"));
        assert!(rows[0].denies_all && !rows[1].denies_all);
    }

    #[test]
    fn unreadable_owner_is_problem_of_row() {
        let condition = |type_: &str, reason: &str| {
            json!({
                "type": type_, "status": "False", "reason": reason, "message": "mend it",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        };
        for (reason, first) in [
            ("OwnerUnreadable", "OwnerUnreadable: mend it"),
            ("ReplicasNotSet", "ReplicasNotSet: mend it"),
            ("ExpectedUnknown", "NoPodsMatched: mend it"),
        ] {
            let conditions = [
                condition("Matched", "NoPodsMatched"),
                condition("ExpectedKnown", reason),
            ];
            let status = json!({ "observedGeneration": 1, "conditions": conditions });
            let rows = budget_rows(&[object("a", 1, status)]);
            assert_eq!(rows[0].problem.as_deref(), Some(first));
        }
    }

    #[test]
    fn outdated_or_missing_status_gives_no_figures() {
        let older = object("a", 2, json!({ "observedGeneration": 1 }));
        let none = object("b", 1, Value::Null);
        assert!(budget_rows(&[older, none]).iter().all(|row| !row.observed));
    }
}
