//! What a check has found, and what the findings mean together.

use serde::Serialize;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All is well.
    Ok,
    /// Worth a look; the guarantee does not depend on it.
    Warning,
    /// Something is wrong.
    Problem,
    /// The API server gave no usable answer. Another attempt may succeed.
    Unknown,
    /// The user may not read what the check needs.
    Forbidden,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check.
    pub check: &'static str,
    /// How it ended.
    pub state: State,
    /// What was found, a clause.
    pub message: String,
    /// What to do, a sentence without its full stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Finding {
    pub fn ok(check: &'static str, message: impl Into<String>) -> Finding {
        Finding::new(check, State::Ok, message, None)
    }

    pub fn warning(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(check, State::Warning, message, Some(remedy.into()))
    }

    pub fn problem(
        check: &'static str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Finding {
        Finding::new(check, State::Problem, message, Some(remedy.into()))
    }

    pub fn unknown(check: &'static str, message: impl Into<String>) -> Finding {
        Finding::new(check, State::Unknown, message, None)
    }

    pub fn forbidden(check: &'static str, message: impl Into<String>) -> Finding {
        let remedy = "Ask for this right, or let somebody check who has it";
        Finding::new(check, State::Forbidden, message, Some(remedy.to_owned()))
    }

    fn new(
        check: &'static str,
        state: State,
        message: impl Into<String>,
        remedy: Option<String>,
    ) -> Finding {
        Finding {
            check,
            state,
            message: message.into(),
            remedy,
        }
    }
}

/// What all findings mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// All is well.
    Ok,
    /// There are problems.
    Problems,
    /// There are no problems, but something could not be checked.
    Unknown,
}

impl Outcome {
    pub fn of(findings: &[Finding]) -> Outcome {
        let has = |state| findings.iter().any(|finding| finding.state == state);
        match (
            has(State::Problem),
            has(State::Unknown),
            has(State::Forbidden),
        ) {
            (true, _, _) => Outcome::Problems,
            (false, false, false) => Outcome::Ok,
            _ => Outcome::Unknown,
        }
    }

    /// The exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Outcome::Ok => 0,
            Outcome::Problems => 1,
            Outcome::Unknown => 2,
        }
    }
}

/// Whether a later check may find something better. A right that is missing is not given by waiting.
pub fn may_improve(findings: &[Finding]) -> bool {
    let passing = [State::Problem, State::Unknown];
    findings
        .iter()
        .any(|finding| passing.contains(&finding.state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_neither_well_nor_a_problem() {
        let ok = Finding::ok("a", "fine");
        let warning = Finding::warning("b", "slow", "Look");
        let problem = Finding::problem("c", "gone", "Install it");
        let unknown = Finding::unknown("d", "no answer");
        let forbidden = Finding::forbidden("e", "you may not get x");
        for (found, outcome, code, improves) in [
            (vec![&ok, &warning], Outcome::Ok, 0, false),
            (vec![&ok, &forbidden], Outcome::Unknown, 2, false),
            (vec![&unknown, &ok], Outcome::Unknown, 2, true),
            (
                vec![&unknown, &problem, &forbidden],
                Outcome::Problems,
                1,
                true,
            ),
        ] {
            let found: Vec<_> = found.into_iter().cloned().collect();
            assert_eq!(Outcome::of(&found), outcome, "{found:?}");
            assert_eq!(outcome.exit_code(), code);
            assert_eq!(may_improve(&found), improves, "{found:?}");
        }
    }
}
