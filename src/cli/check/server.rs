//! Checks who answers for rules: a server of this version, of another one, Kuperator, or nobody.

use super::finding::Finding;
use crate::admission::routes::WEBHOOKS;
use crate::admission::version_answer::AnsweringVersion;
use crate::cli::answering_server::Answering;

const CHECK: &str = "server";

/// Judges the answer to an invalid rule.
pub fn judge(answering: &Answering, own: &AnsweringVersion) -> Finding {
    match answering {
        Answering::Server(denial) => judge_denial(denial, own),
        Answering::Nobody(error) => Finding::problem(
            CHECK,
            format!("the API server gets no answer from the webhook: {error}"),
            match error.contains("x509") || error.contains("certificate") {
                true => {
                    "The caBundle of the webhook configurations is not the authority of the server's certificate: \
                     restart the server, which publishes its own, or pass the right --ca-file to operating install"
                }
                false => {
                    "Start the server, and see whether the API server reaches its Service or --webhook-url"
                }
            },
        ),
        Answering::NotAsked => Finding::problem(
            CHECK,
            "the API server did not refuse an invalid rule: no webhook of Operating is called",
            "Apply the CRDs and the webhook configurations (operating install), and see the lines about them",
        ),
        Answering::Forbidden(text) => Finding::forbidden(CHECK, text),
        Answering::Unknown(text) => Finding::unknown(CHECK, text),
    }
}

fn judge_denial(denial: &str, own: &AnsweringVersion) -> Finding {
    let webhook = denial.split('"').nth(1).unwrap_or_default();
    match AnsweringVersion::parse(denial) {
        Some(found) if found == *own => Finding::ok(CHECK, found.to_string()),
        Some(found) => Finding::problem(
            CHECK,
            format!(
                "{found}; this program is another one: {}",
                own.version_only()
            ),
            "Check with the program of the server's version, or update the server",
        ),
        None if WEBHOOKS.iter().any(|ours| ours.name == webhook) => Finding::problem(
            CHECK,
            format!("the answer does not name its version: {denial}"),
            "If the server is busy or starting, check again; otherwise an earlier version answers: update it",
        ),
        None => Finding::problem(
            CHECK,
            format!("the webhook {webhook} answers, which is Kuperator's or another program's"),
            "Take that program away as the page Coming from Kuperator says, and apply the webhook configurations",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::finding::State;

    fn denied(webhook: &str, message: &str) -> Answering {
        Answering::Server(format!(
            "admission webhook \"{webhook}.kusionstack.io\" denied the request: {message}"
        ))
    }

    #[test]
    fn own_version_other_version_kuperator_and_nobody_differ() {
        let own = AnsweringVersion::own();
        let other = AnsweringVersion {
            version: "0.0.9".to_owned(),
            ..own.clone()
        };
        let ours = "podtransitionrule.apps";
        for (answering, state, part) in [
            (denied(ours, &format!("no ({own})")), State::Ok, "Operating"),
            (
                denied(ours, &format!("no ({other})")),
                State::Problem,
                "0.0.9",
            ),
            (
                denied(ours, "invalid"),
                State::Problem,
                "does not name its version",
            ),
            (
                denied("validating-generic.apps", "no"),
                State::Problem,
                "Kuperator",
            ),
            (
                Answering::NotAsked,
                State::Problem,
                "no webhook of Operating",
            ),
            (
                Answering::Forbidden("User a".to_owned()),
                State::Forbidden,
                "User a",
            ),
            (Answering::Unknown("x".to_owned()), State::Unknown, "x"),
        ] {
            let finding = judge(&answering, &own);
            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.message.contains(part), "{finding:?}");
        }
    }

    #[test]
    fn wrong_authority_has_its_own_remedy() {
        let remedy = |error: &str| {
            let finding = judge(
                &Answering::Nobody(error.to_owned()),
                &AnsweringVersion::own(),
            );
            finding.remedy.unwrap_or_default()
        };
        assert!(remedy("x509: certificate signed by unknown authority").contains("caBundle"));
        assert!(remedy("connection refused").contains("Start the server"));
    }
}
