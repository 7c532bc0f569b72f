//! The findings as text and as JSON.

use serde::Serialize;

use super::finding::{Finding, Outcome, State};
use crate::cli::args::Output;

#[derive(Serialize)]
struct Report<'a> {
    outcome: Outcome,
    checks: &'a [Finding],
}

/// The output of the command.
pub fn render(findings: &[Finding], form: Output) -> serde_json::Result<String> {
    match form {
        Output::Text => Ok(to_text(findings)),
        Output::Json => {
            let report = Report {
                outcome: Outcome::of(findings),
                checks: findings,
            };
            serde_json::to_string_pretty(&report).map(|text| text + "\n")
        }
    }
}

fn to_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let Finding { check, message, .. } = finding;
        text += &format!("{:<8} {check}: {message}", word(finding.state));
        if let Some(remedy) = &finding.remedy {
            text += &format!(". {remedy}");
        }
        text += "\n";
    }
    text + &summary(findings)
}

const fn word(state: State) -> &'static str {
    match state {
        State::Ok => "OK",
        State::Warning => "WARNING",
        State::Problem => "PROBLEM",
        State::Unknown | State::Forbidden => "UNKNOWN",
    }
}

fn summary(findings: &[Finding]) -> String {
    let count = |states: &[State]| {
        findings
            .iter()
            .filter(|f| states.contains(&f.state))
            .count()
    };
    let problems = count(&[State::Problem]);
    let unknown = count(&[State::Unknown, State::Forbidden]);
    match (problems, unknown) {
        (0, 0) => "all is well\n".to_owned(),
        (0, unknown) => format!("no problems found; not checked: {unknown}\n"),
        (problems, 0) => format!("problems: {problems}\n"),
        (problems, unknown) => format!("problems: {problems}; not checked: {unknown}\n"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_finding_is_one_line_with_its_remedy() {
        let found = [
            Finding::ok("crds", "5 CRDs"),
            Finding::problem("lease", "nobody holds it", "Start the server"),
            Finding::forbidden("rights", "you may not create x"),
        ];
        let text = render(&found, Output::Text).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "OK       crds: 5 CRDs");
        assert_eq!(
            lines[1],
            "PROBLEM  lease: nobody holds it. Start the server"
        );
        assert!(lines[2].starts_with("UNKNOWN  rights: you may not create x. Ask"));
        assert_eq!(lines[3], "problems: 1; not checked: 1");
        assert_eq!(lines.len(), 4);
        let json: serde_json::Value =
            serde_json::from_str(&render(&found, Output::Json).unwrap()).unwrap();
        assert_eq!(json["outcome"], "problems");
        assert_eq!(json["checks"][1]["remedy"], "Start the server");
        assert_eq!(json["checks"][2]["state"], "forbidden");
    }
}
