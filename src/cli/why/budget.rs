//! The table of `operating budget`.

use serde::Serialize;

use crate::cli::args::Output;
use crate::domain::diagnosis::RuleObject;
use crate::domain::diagnosis::budget::{BudgetRow, budget_rows};

/// Width of a bar in characters.
const BAR_CELLS: u32 = 10;

/// The output of `budget -o json`.
#[derive(Debug, Serialize)]
struct BudgetOutput<'a> {
    /// Rows of rule objects, the tightest first.
    rules: &'a [BudgetRow],
}

/// Formats the budgets of rule objects. `namespace` is the namespace that was read, `None` for all.
pub fn format_budgets(
    rules: &[RuleObject],
    namespace: Option<&str>,
    form: Output,
    line: bool,
) -> anyhow::Result<String> {
    let rows = budget_rows(rules);
    match form {
        Output::Json => super::to_json_text(&BudgetOutput { rules: &rows }, line),
        Output::Text if rows.is_empty() => Ok(match namespace {
            Some(namespace) => {
                format!(
                    "There is no PodTransitionRule in namespace {namespace}; -A looks at all namespaces.\n"
                )
            }
            None => "There is no PodTransitionRule in this cluster.\n".to_owned(),
        }),
        Output::Text => Ok(format_table(&rows, namespace.is_none())),
    }
}

/// What a percentage means. A PodDisruptionBudget rounds both up.
const ROUNDING: &str = "A percentage is one of the expected Pods that have owners, if any have: max is rounded up, min is rounded down.\n";

/// Rows as a table for people.
pub fn format_table(rows: &[BudgetRow], namespaces: bool) -> String {
    let header = [
        "NAMESPACE",
        "NAME",
        "BUDGET",
        "ALLOWED",
        "UNAVAILABLE",
        "LIMIT",
        "RULE",
        "PODS",
        "WAITING",
        "CLAIMS",
    ];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(rows.iter().map(row_cells));
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for (index, line) in lines.iter().enumerate() {
        let skip = usize::from(!namespaces);
        let padded = line.iter().zip(&widths).skip(skip);
        let padded: Vec<_> = padded
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        out += padded.join("  ").trim_end();
        out.push('\n');
        let problem = index
            .checked_sub(1)
            .and_then(|row| rows.get(row)?.problem.as_ref());
        if let Some(problem) = problem {
            out += &format!("  └─ {problem}\n");
        }
    }
    if rows.iter().any(|row| row.written.contains('%')) {
        out += ROUNDING;
    }
    out
}

fn row_cells(row: &BudgetRow) -> [String; 10] {
    let figure = |n: u32| match row.observed {
        true => n.to_string(),
        false => "?".to_owned(),
    };
    let limited = |n: Option<u32>| match n {
        Some(n) => figure(n),
        None if row.limited && !row.observed => figure(0),
        None => "-".to_owned(),
    };
    [
        row.namespace.clone(),
        row.name.clone(),
        match row.limit {
            _ if !row.enforced => "not enforced".to_owned(),
            _ if row.denies_all => "denies all".to_owned(),
            _ if !row.limited => "no limit".to_owned(),
            _ if !row.observed => "not counted".to_owned(),
            None if row.expected > 0 => "holds no Pod".to_owned(),
            None => "no Pods".to_owned(),
            Some(limit) => usage_bar(row.unavailable, limit),
        },
        limited(row.allowed),
        figure(row.unavailable),
        limited(row.limit),
        match row.written.is_empty() {
            true => "-".to_owned(),
            false => row.written.clone(),
        },
        figure(row.expected),
        figure(row.waiting),
        row.claims.to_string(),
    ]
}

/// The used part of a limit: `#` for each tenth, rounded up. If Pods were lost without an admission and more than the
/// limit is used, the bar consists of `!`.
fn usage_bar(used: u32, limit: u32) -> String {
    let cells = match (used, limit) {
        (used, limit) if used > limit => return format!("[{}]", "!".repeat(BAR_CELLS as usize)),
        (_, 0) => BAR_CELLS,
        (used, limit) => (used * BAR_CELLS).div_ceil(limit),
    };
    format!(
        "[{}{}]",
        "#".repeat(cells as usize),
        ".".repeat((BAR_CELLS - cells) as usize)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_full_if_budget_is_used_up() {
        for (used, limit, text) in [
            (0, 10, "[..........]"),
            (1, 100, "[#.........]"),
            (5, 10, "[#####.....]"),
            (3, 3, "[##########]"),
            (4, 3, "[!!!!!!!!!!]"),
            (0, 0, "[##########]"),
            (1, 0, "[!!!!!!!!!!]"),
        ] {
            assert_eq!(usage_bar(used, limit), text, "{used} of {limit}");
        }
    }

    #[test]
    fn limit_without_matching_pods_is_reported() {
        let row = BudgetRow {
            namespace: "shop".into(),
            name: "web".into(),
            limited: true,
            denies_all: false,
            observed: true,
            allowed: None,
            unavailable: 0,
            limit: None,
            written: "max 1".into(),
            expected: 3,
            waiting: 0,
            claims: 0,
            enforced: true,
            problem: Some("FilterMatchesNothing: correct it".into()),
        };
        let shown = format_table(&[row], false);
        assert!(
            shown.contains("holds no Pod") && shown.contains("FilterMatchesNothing"),
            "{shown}"
        );
    }

    #[test]
    fn table_is_aligned_and_contains_problems() {
        let row = BudgetRow {
            namespace: "shop".into(),
            name: "web".into(),
            limited: true,
            denies_all: false,
            observed: true,
            allowed: Some(0),
            unavailable: 3,
            limit: Some(3),
            written: "max 30%".into(),
            expected: 10,
            waiting: 2,
            claims: 1,
            enforced: true,
            problem: None,
        };
        let fresh = BudgetRow {
            name: "a-longer-name".into(),
            denies_all: false,
            observed: false,
            problem: Some("Invalid: mend it".into()),
            written: String::new(),
            ..row.clone()
        };
        assert_eq!(
            format_table(&[row, fresh], false),
            "NAME           BUDGET        ALLOWED  UNAVAILABLE  LIMIT  RULE     PODS  WAITING  CLAIMS\n\
             web            [##########]  0        3            3      max 30%  10    2        1\n\
             a-longer-name  not counted   ?        ?            ?      -        ?     ?        1\n  └─ Invalid: mend it\n\
             A percentage is one of the expected Pods that have owners, if any have: max is rounded up, min is rounded down.\n"
        );
    }
}
