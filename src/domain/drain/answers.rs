//! What the API server answers to a dry-run eviction.

use crate::domain::diagnosis::facts::is_own_webhook_failure;
use crate::domain::grace_delete;

/// The API server's answer to a dry-run eviction of one Pod. A dry run goes through admission and writes nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EvictionAnswer {
    /// The API server would evict the Pod.
    Allowed,
    /// The eviction begins the lifecycle of the Pod, which deletes the Pod at its end.
    Lifecycle {
        /// The message of the server.
        message: String,
    },
    /// The API server refuses the eviction.
    Refused {
        /// HTTP status. `kubectl drain` repeats the request after 429 only.
        code: u16,
        /// The message of the API server, without the name of the webhook.
        message: String,
    },
    /// The API server refuses the eviction because a webhook of Operating does not answer.
    Unanswered {
        /// The message of the API server.
        message: String,
    },
    /// The Pod does not exist any more.
    Gone,
    /// The answer is not known.
    NotChecked {
        /// The cause, in a clause.
        reason: String,
    },
}

/// How the server ends a denial that says nothing about the Pod: the request has to be sent again.
const ASK_AGAIN: &str = "; try again in a moment";

impl EvictionAnswer {
    /// The meaning of an error of the API server. `message` and `causes` are those of the `Status` object.
    pub fn from_api_refusal(code: u16, message: &str, causes: &[String]) -> EvictionAnswer {
        let not_checked = |reason: String| EvictionAnswer::NotChecked { reason };
        if let Some((_, text)) = message.split_once("denied the request: ") {
            return match code {
                _ if text.ends_with(ASK_AGAIN) => not_checked(text.to_owned()),
                409 => not_checked(text.to_owned()),
                429 if text.contains(grace_delete::UNDERWAY_MESSAGE) => EvictionAnswer::Lifecycle {
                    message: text.to_owned(),
                },
                _ => EvictionAnswer::Refused {
                    code,
                    message: text.to_owned(),
                },
            };
        }
        match code {
            404 => EvictionAnswer::Gone,
            409 => not_checked(message.to_owned()),
            401 => not_checked("the API server does not accept these credentials".to_owned()),
            403 if message.contains("cannot create resource \"pods/eviction\"") => {
                not_checked("you may not evict this Pod, not even by a dry run".to_owned())
            }
            403 if causes.iter().any(|cause| cause.ends_with(NAMESPACE_ENDS)) => not_checked(
                "its namespace is being terminated, which deletes it; kubectl drain waits for this"
                    .to_owned(),
            ),
            400 if message.contains("does not support dry run") => not_checked(message.to_owned()),
            500.. if message.contains(TIMEOUT) => not_checked(message.to_owned()),
            500.. if is_own_webhook_failure(message) => EvictionAnswer::Unanswered {
                message: message.to_owned(),
            },
            500.. if !is_lasting_error(message) => not_checked(message.to_owned()),
            // The refusal of a PodDisruptionBudget has a cause, and an overloaded API server gives none.
            429 if causes.is_empty() => not_checked(message.to_owned()),
            429 if causes.iter().any(|cause| cause.contains(NEW_BUDGET)) => {
                not_checked(causes.join(" "))
            }
            _ => {
                let unnamed = causes.iter().filter(|cause| !message.contains(*cause));
                let parts: Vec<&str> = std::iter::once(message)
                    .chain(unnamed.map(String::as_str))
                    .collect();
                EvictionAnswer::Refused {
                    code,
                    message: parts.join(" "),
                }
            }
        }
    }
}

/// End of the cause that the API server gives in a terminating namespace.
const NAMESPACE_ENDS: &str = " is being terminated";
/// How the API server says that the disruption controller has not counted a PodDisruptionBudget yet.
const NEW_BUDGET: &str = "is still being processed";
/// How the API server says that a webhook has not answered in time.
const TIMEOUT: &str = "context deadline exceeded";

/// Whether an error 5xx stays until somebody changes an object: a webhook of others does not answer, or several
/// PodDisruptionBudgets select the Pod.
fn is_lasting_error(message: &str) -> bool {
    message.contains("failed calling webhook")
        || message.contains("more than one PodDisruptionBudget")
}

/// Whether a refusal is about the count of a rule or of a PodDisruptionBudget, in the words of the server or of the API
/// server.
pub fn is_about_budget(message: &str) -> bool {
    let figures = [
        "Pods are unavailable, the limit is",
        "must be available (minAvailableValue",
    ];
    let mut phrases = figures
        .into_iter()
        .chain(["unhealthyPodPolicy IfHealthyBudget", "disruption budget "]);
    phrases.any(|phrase| message.contains(phrase))
}

/// Whether the server says that the refusal ends without a change of the rule.
pub fn ends_by_itself(message: &str) -> bool {
    [
        "; try again",
        "the rest of the budget is left to other Pods for about",
    ]
    .iter()
    .any(|phrase| message.contains(phrase))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: u16, message: &str) -> EvictionAnswer {
        EvictionAnswer::Refused {
            code,
            message: message.to_owned(),
        }
    }

    fn of(code: u16, message: &str) -> EvictionAnswer {
        EvictionAnswer::from_api_refusal(code, message, &[])
    }

    #[test]
    fn refusals_of_webhooks_lose_the_name_of_the_webhook() {
        let denied = "admission webhook \"pod-eviction.apps.kusionstack.io\" denied the request: Pod web-0 is held";
        assert_eq!(of(429, denied), refused(429, "Pod web-0 is held"));
        let lifecycle = format!(
            "admission webhook \"x\" denied the request: Pod web-0 is being drained: {}; more",
            grace_delete::UNDERWAY_MESSAGE
        );
        assert!(matches!(
            of(429, &lifecycle),
            EvictionAnswer::Lifecycle { message } if message.starts_with("Pod web-0 is being drained")
        ));
    }

    #[test]
    fn dead_server_is_told_from_dead_webhook_of_others() {
        let dead = "Internal error occurred: failed calling webhook \"pod-eviction.apps.kusionstack.io\": refused";
        assert!(matches!(of(500, dead), EvictionAnswer::Unanswered { .. }));
        let foreign = dead.replace("apps.kusionstack.io", "example.com");
        assert_eq!(of(500, &foreign), refused(500, &foreign));
    }

    #[test]
    fn disruption_budget_is_told_from_overload() {
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = "The disruption budget web needs 3 healthy pods and has 3 currently".to_owned();
        let both = format!("{text} {cause}");
        let answer = EvictionAnswer::from_api_refusal(429, text, std::slice::from_ref(&cause));
        assert_eq!(answer, refused(429, &both));
        let answer = EvictionAnswer::from_api_refusal(429, &both, &[cause]);
        assert_eq!(answer, refused(429, &both));
        for code in [429, 503, 504] {
            let answer = of(code, "too many requests");
            assert!(
                matches!(answer, EvictionAnswer::NotChecked { .. }),
                "{code}"
            );
        }
    }

    #[test]
    fn disruption_budget_that_is_not_counted_yet_is_not_checked() {
        let text = "Cannot evict pod as it would violate the pod's disruption budget.";
        let cause = "The disruption budget web is still being processed by the server.".to_owned();
        let answer = EvictionAnswer::from_api_refusal(429, text, &[cause]);
        assert!(
            matches!(&answer, EvictionAnswer::NotChecked { reason } if reason.contains("web")),
            "{answer:?}"
        );
    }

    #[test]
    fn missing_right_is_told_from_refusal_of_policy() {
        let rights = "pods \"web-0\" is forbidden: User \"ann\" cannot create resource \"pods/eviction\" in API group \"\"";
        assert!(matches!(of(403, rights), EvictionAnswer::NotChecked { .. }));
        let policy =
            "pods \"web-0\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no";
        assert_eq!(of(403, policy), refused(403, policy));
        assert_eq!(of(404, "gone"), EvictionAnswer::Gone);
    }

    #[test]
    fn answers_that_change_by_themselves_are_not_checked() {
        let denied = "admission webhook \"pod-eviction.apps.kusionstack.io\" denied the request: ";
        let own = "Internal error occurred: failed calling webhook \"pod-eviction.apps.kusionstack.io\": failed to call \
                   webhook: Post \"https://x\": context deadline exceeded";
        let transient = [
            (
                429,
                format!("{denied}Pod web-0 is held: it is not known; try again in a moment"),
            ),
            (
                503,
                format!("{denied}Pod web-0 can't be checked: no; try again in a moment"),
            ),
            (500, own.to_owned()),
            (500, own.replace("apps.kusionstack.io", "example.com")),
            (
                500,
                "Internal error occurred: etcdserver: leader changed".to_owned(),
            ),
            (
                409,
                format!("{denied}Pod web-0 can't be evicted: its UID differs"),
            ),
            (
                409,
                "Operation cannot be fulfilled on pods \"web-0\"".to_owned(),
            ),
            (
                400,
                "admission webhook \"x.example.com\" does not support dry run".to_owned(),
            ),
        ];
        for (code, message) in transient {
            let answer = of(code, &message);
            assert!(
                matches!(&answer, EvictionAnswer::NotChecked { reason } if !reason.is_empty()),
                "{answer:?}"
            );
        }
        let several = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        assert_eq!(of(500, several), refused(500, several));
    }

    #[test]
    fn namespace_that_ends_deletes_the_pod() {
        let forbidden = "pods \"web-0\" is forbidden: unable to create new content in namespace shop because it is being terminated";
        let causes = ["namespace shop is being terminated".to_owned()];
        let answer = EvictionAnswer::from_api_refusal(403, forbidden, &causes);
        assert!(
            matches!(answer, EvictionAnswer::NotChecked { reason } if reason.contains("namespace"))
        );
    }
}
