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

impl EvictionAnswer {
    /// The meaning of an error of the API server. `message` and `causes` are those of the `Status` object.
    pub fn from_api_refusal(code: u16, message: &str, causes: &[String]) -> EvictionAnswer {
        if let Some((_, text)) = message.split_once("denied the request: ") {
            return match code {
                429 if text.contains(grace_delete::UNDERWAY_MESSAGE) => EvictionAnswer::Lifecycle {
                    message: text.to_owned(),
                },
                _ => EvictionAnswer::Refused {
                    code,
                    message: text.to_owned(),
                },
            };
        }
        let not_checked = |reason: String| EvictionAnswer::NotChecked { reason };
        match code {
            404 => EvictionAnswer::Gone,
            401 => not_checked("the API server does not accept these credentials".to_owned()),
            403 if message.contains("cannot create resource \"pods/eviction\"") => {
                not_checked("you may not evict this Pod, not even by a dry run".to_owned())
            }
            500.. if is_own_webhook_failure(message) => EvictionAnswer::Unanswered {
                message: message.to_owned(),
            },
            // The refusal of a PodDisruptionBudget has a cause, and an overloaded API server gives none.
            429 if causes.is_empty() => not_checked(message.to_owned()),
            502..=504 => not_checked(message.to_owned()),
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
    fn missing_right_is_told_from_refusal_of_policy() {
        let rights = "pods \"web-0\" is forbidden: User \"ann\" cannot create resource \"pods/eviction\" in API group \"\"";
        assert!(matches!(of(403, rights), EvictionAnswer::NotChecked { .. }));
        let policy =
            "pods \"web-0\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no";
        assert_eq!(of(403, policy), refused(403, policy));
        assert_eq!(of(404, "gone"), EvictionAnswer::Gone);
    }
}
