//! Why a call of the API failed.

use std::time::Duration;

use traffic::{AdapterError, foreign_text};

/// Longest part of a message that is shown.
const SHOWN: usize = 200;

/// Why a call failed. Its text names the action, and never the parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The API answered with an error.
    Refused {
        action: &'static str,
        status: u16,
        code: String,
        message: String,
        retry_after: Option<Duration>,
    },
    /// The call was sent, but its answer is missing or can't be read. It may have taken effect.
    Lost {
        action: &'static str,
        reason: String,
    },
    /// The call was not sent.
    NotSent(AdapterError),
}

/// What a code of the API means for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Throttled,
    Transient,
    Permanent,
}

/// Codes of errors that pass by themselves. The codes of SLB come from its reference and from what clients are known
/// to repeat.
const PASSING: [&str; 15] = [
    "SystemBusy",
    "OperationBusy",
    "OperationConflict",
    "Operation.Conflict",
    "ServiceIsConfiguring",
    "ServiceIsStopping",
    "ServiceUnavailable",
    "BackendServer.configuring",
    "InternalError",
    "ProcessingSameRequest",
    "ResourceInOperating",
    "SignatureNonceUsed",
    "RequestTimeout",
    "OperationFailed.TokenIsProcessing",
    "InvalidTimeStamp.Expired",
];

/// Beginnings of the codes that concern the caller or the load balancer, and not a single server of a call.
const WHOLE_CALL: [&str; 9] = [
    "Forbidden",
    "NoPermission",
    "Unauthorized",
    "InvalidAccessKeyId",
    "InvalidSecurityToken",
    "MissingSecurityToken",
    "SignatureDoesNotMatch",
    "IncompleteSignature",
    "InvalidLoadBalancerId",
];

impl Failure {
    /// Whether the call may have taken effect although it failed.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Failure::Lost { .. })
    }

    /// The code of the API, if it answered.
    pub(crate) fn code(&self) -> &str {
        match self {
            Failure::Refused { code, .. } => code,
            _ => "",
        }
    }

    /// Whether the API says that there is no such load balancer.
    pub(crate) fn says_no_load_balancer(&self) -> bool {
        self.code() == "InvalidLoadBalancerId.NotFound"
    }

    /// Whether the API says that there is no such group. The code for VServer groups is general; the text tells.
    pub(crate) fn says_no_group(&self) -> bool {
        let Failure::Refused { code, message, .. } = self else {
            return false;
        };
        self.says_no_load_balancer()
            || code == "InvalidVServerGroupId.NotFound"
            || code.starts_with("InvalidParameter")
                && message.contains("VServerGroupId does not exist")
    }

    /// Whether other credentials may help.
    pub(crate) fn is_about_credentials(&self) -> bool {
        let code = self.code();
        code.starts_with("InvalidSecurityToken")
            || code.starts_with("InvalidAccessKeyId")
            || code == "MissingSecurityToken"
            || code == "SignatureDoesNotMatch"
    }

    /// Whether the call may succeed for some of its servers.
    pub(crate) fn may_concern_one_server(&self) -> bool {
        self.meaning() == Meaning::Permanent
            && !self.says_no_group()
            && !WHOLE_CALL.iter().any(|code| self.code().starts_with(code))
    }

    /// Whether the API says that a server is in the group already. The code is not documented.
    pub(crate) fn says_exists(&self) -> bool {
        let code = self.code().to_ascii_lowercase();
        code.contains("exist") && !code.contains("notexist") || code.contains("duplicat")
    }

    fn meaning(&self) -> Meaning {
        let Failure::Refused { status, code, .. } = self else {
            return Meaning::Transient;
        };
        if code.starts_with("Throttling") || *status == 429 {
            return Meaning::Throttled;
        }
        // A token that has expired is replaced by its source, and a new key by its file.
        let is_expired =
            code.starts_with("InvalidSecurityToken") || code.starts_with("InvalidAccessKeyId");
        match *status >= 500 || is_expired || PASSING.contains(&code.as_str()) {
            true => Meaning::Transient,
            false => Meaning::Permanent,
        }
    }

    /// The error for the framework.
    pub(crate) fn into_error(self) -> AdapterError {
        let meaning = self.meaning();
        match self {
            Failure::NotSent(error) => error,
            Failure::Lost { action, reason } => {
                AdapterError::Transient(format!("{action}: no usable answer: {reason}"))
            }
            Failure::Refused {
                action,
                status,
                code,
                message,
                retry_after,
            } => {
                let text = format!("{action} was refused with {status} {code}: {message}");
                match meaning {
                    Meaning::Throttled => AdapterError::Throttled {
                        text,
                        wait: retry_after,
                    },
                    Meaning::Transient => AdapterError::Transient(text),
                    Meaning::Permanent => AdapterError::Permanent(text),
                }
            }
        }
    }
}

/// The beginning of a text from outside, in one line.
pub(crate) fn cut(text: &str) -> String {
    cut_and_hide(text, str::to_owned)
}

/// The beginning of a text from outside, in one line and without secrets. `hide` replaces them.
pub(crate) fn cut_and_hide(text: &str, hide: impl Fn(&str) -> String) -> String {
    foreign_text(text, SHOWN, hide)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, code: &str) -> Failure {
        Failure::Refused {
            action: "SetBackendServers",
            status,
            code: code.to_owned(),
            message: "no".to_owned(),
            retry_after: None,
        }
    }

    #[test]
    fn codes_are_classified() {
        for (status, code, expected) in [
            (400, "Throttling", "throttled"),
            (400, "Throttling.User", "throttled"),
            (503, "Throttling.Api", "throttled"),
            (429, "", "throttled"),
            (500, "InternalError", "transient"),
            (503, "", "transient"),
            (400, "SystemBusy", "transient"),
            (400, "BackendServer.configuring", "transient"),
            (403, "InvalidSecurityToken.Expired", "transient"),
            (403, "Forbidden.RAM", "permanent"),
            (404, "InvalidLoadBalancerId.NotFound", "permanent"),
            (400, "SignatureDoesNotMatch", "permanent"),
        ] {
            let actual = match refused(status, code).into_error() {
                AdapterError::Throttled { .. } => "throttled",
                AdapterError::Unavailable { .. } => "unavailable",
                AdapterError::Transient(_) => "transient",
                AdapterError::Permanent(_) => "permanent",
            };
            assert_eq!(actual, expected, "{status} {code}");
        }
    }

    #[test]
    fn only_errors_of_servers_split_a_call() {
        assert!(refused(400, "InvalidParameter.ServerId").may_concern_one_server());
        assert!(!refused(403, "Forbidden.RAM").may_concern_one_server());
        assert!(!refused(400, "SystemBusy").may_concern_one_server());
        assert!(!refused(400, "Throttling.User").may_concern_one_server());
    }

    #[test]
    fn long_messages_are_cut_to_one_line() {
        let text = cut(&"a\n".repeat(300));
        assert!(text.chars().count() <= SHOWN + 1 && !text.contains('\n'));
        assert_eq!(cut("short"), "short");
    }
}
