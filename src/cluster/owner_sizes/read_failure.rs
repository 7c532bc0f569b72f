//! Explains why an owner cannot be read, and what to do. The texts do not change from try to try, so that a condition
//! with such a text is not written again.

use kube::Error;

/// What to do after a failed read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// The API server, or the server of an API group, may answer later.
    Retry,
    /// The role of the server lacks the right to read the owner.
    Role,
    /// Pods refer to owners that do not exist.
    References,
    /// The API server refuses the read, and would refuse it again.
    Refusal,
}

impl Remedy {
    /// The remedy as an imperative sentence without a full stop.
    pub const fn remedy_text(self) -> &'static str {
        match self {
            Remedy::Retry => {
                "try again in a moment; if it stays like this, see whether the API server and the APIService of the group \
                 answer"
            }
            Remedy::Role => {
                "the server's role lacks the right to read it: apply the current manifests/rbac.yaml (ClusterRole operating)"
            }
            Remedy::References => {
                "take the owner reference off the Pods that name an owner that does not exist"
            }
            Remedy::Refusal => "see why the API server refuses to read it",
        }
    }
}

/// A read that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReadFailure {
    /// The cause as a clause.
    pub cause: String,
    pub remedy: Remedy,
}

impl ReadFailure {
    /// A failure that may end by waiting.
    pub fn transient_failure(cause: impl Into<String>) -> ReadFailure {
        let (cause, remedy) = (cause.into(), Remedy::Retry);
        ReadFailure { cause, remedy }
    }

    /// The failure if the API server did not answer in time.
    pub fn timed_out() -> ReadFailure {
        ReadFailure::transient_failure("the API server gave no answer in time")
    }

    /// The failure if the request cannot be built.
    pub fn invalid_request(error: &impl ToString) -> ReadFailure {
        let (cause, remedy) = (error.to_string(), Remedy::Refusal);
        ReadFailure { cause, remedy }
    }

    /// The failure of a GET of `path`. Only the code of the response is used: an error of a connection contains ports
    /// and addresses, and the response of a proxy is a whole page.
    pub fn from_error(error: &Error, path: &str) -> ReadFailure {
        let (cause, remedy) = match error {
            Error::Api(status) => {
                let remedy = match status.code {
                    401 | 403 => Remedy::Role,
                    404 | 408 | 409 | 429 | 500.. => Remedy::Retry,
                    _ => Remedy::Refusal,
                };
                (format!("HTTP {} at {path}", status.code), remedy)
            }
            Error::SerdeError(_) => (
                format!("the answer at {path} can't be parsed"),
                Remedy::Refusal,
            ),
            _ => (
                format!("the API server can't be reached at {path}"),
                Remedy::Retry,
            ),
        };
        ReadFailure { cause, remedy }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn answer_of_the_api_server_becomes_code_path_and_remedy() {
        for (code, remedy) in [
            (403, Remedy::Role),
            (503, Remedy::Retry),
            (429, Remedy::Retry),
            (405, Remedy::Refusal),
        ] {
            let status =
                Status::failure("<html>dial tcp 10.0.0.1:4711", "Failed to parse error data");
            let error = Error::Api(Box::new(status.with_code(code)));
            let found = ReadFailure::from_error(&error, "/apis/a.example/v1");
            let cause = format!("HTTP {code} at /apis/a.example/v1");
            assert_eq!(found, ReadFailure { cause, remedy });
        }
    }

    #[test]
    fn retry_is_advised_only_if_it_may_help() {
        let all = [
            Remedy::Retry,
            Remedy::Role,
            Remedy::References,
            Remedy::Refusal,
        ];
        let said = all.map(|remedy| remedy.remedy_text().contains("try again"));
        assert_eq!(said, [true, false, false, false]);
        assert!(Remedy::Role.remedy_text().contains("manifests/rbac.yaml"));
    }
}
