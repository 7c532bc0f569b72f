//! Sends a write of a controller with a deadline, and classifies its failure.

use kube::Error;
use kube::core::Status;
use tracing::{debug, warn};

use super::api_calls::API_CALL_TIMEOUT;
use crate::api_request::{self, ApiFailure};
use crate::cluster::pod_requests;

/// Why a request had no effect, or may have had no effect.
#[derive(Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The object is gone, or has another version than the plan. The cache will show the new state.
    Moved,
    /// An object with this name exists already.
    Exists,
    /// The API server answered 429: too many requests, or this server's admission denied the request. Contains the
    /// reason.
    Held(String),
    /// The request failed and may be repeated. Contains the object and the message of the API server.
    Failed(String),
    /// As [`RequestError::Failed`], but a webhook, a policy, a quota or another admission plugin denied the request
    /// because of its content. A denial by the authorizer is [`RequestError::Failed`].
    Denied(String),
    /// The API server rejects the request itself as invalid, does not know the operation, or the node of the Pod does
    /// not support the operation.
    Refused(String),
}

impl RequestError {
    /// The error for an object that differs from what was written. Without an error, the controller would repeat the
    /// write forever.
    pub fn not_as_written(description: &str) -> RequestError {
        RequestError::Refused(format!(
            "{description}: the API server stored another object than the one that was written; find the mutating \
             webhook or MutatingAdmissionPolicy that changes its labels, annotations, owners or finalizers"
        ))
    }

    /// The error for a new object that differs from what was created. The controller neither writes nor deletes the
    /// object: it may belong to somebody else by now.
    pub fn not_as_created(description: &str) -> RequestError {
        match RequestError::not_as_written(description) {
            RequestError::Refused(message) => RequestError::Refused(format!(
                "{message}; then delete the object, and the controller recreates it"
            )),
            other => other,
        }
    }
}

/// Awaits a request, with a deadline. `description` names the request or its object in messages.
pub async fn request_with_deadline<T>(
    description: &str,
    request: impl Future<Output = Result<T, Error>>,
) -> Result<T, RequestError> {
    let failure = match api_request::within(API_CALL_TIMEOUT, request).await {
        Ok(done) => return Ok(done),
        Err(failure) => failure,
    };
    let error = match &failure {
        ApiFailure::Answered(status)
            if is_admission_denied(status) && !pod_requests::is_own_denial(status) =>
        {
            RequestError::Denied(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status) if status.reason == "AlreadyExists" => RequestError::Exists,
        ApiFailure::Answered(status) if status.code == 409 => RequestError::Moved,
        ApiFailure::Answered(status) if status.code == 404 && has_object_name(status) => {
            RequestError::Moved
        }
        ApiFailure::Answered(status)
            if status.code == 429 && pod_requests::is_own_denial(status) =>
        {
            RequestError::Held(status.message.clone())
        }
        ApiFailure::Answered(status) if status.code == 429 => {
            RequestError::Held(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status)
            if matches!(status.code, 400 | 404 | 405 | 413 | 422) || is_node_incapable(status) =>
        {
            RequestError::Refused(format!("{description}: {}", failure.text()))
        }
        ApiFailure::Answered(status) if status.code == 403 && !is_authorization_denied(status) => {
            RequestError::Denied(format!("{description}: {}", status.message))
        }
        ApiFailure::Answered(status) => {
            RequestError::Failed(format!("{description}: {}", status.message))
        }
        ApiFailure::NoAnswer(limit) => RequestError::Failed(format!(
            "{description}: the API server did not answer within {} s; it is tried again",
            limit.as_secs()
        )),
        ApiFailure::Broken(error) => RequestError::Failed(format!("{description}: {error}")),
    };
    if let RequestError::Failed(message)
    | RequestError::Denied(message)
    | RequestError::Refused(message) = &error
    {
        match is_namespace_terminating(&failure) {
            true => debug!(message, "a write came too late for its namespace"),
            false => warn!(message, "a write failed; it will be tried again"),
        }
    } else {
        debug!(
            description,
            ?error,
            failure = failure.text(),
            "a write did nothing"
        );
    }
    Err(error)
}

/// Whether a 403 comes from the authorizer (`responsewriters.Forbidden` of kube-apiserver), and not from a quota, a
/// limit range, the capacity of a node, a policy or a webhook.
fn is_authorization_denied(status: &Status) -> bool {
    let message = &status.message;
    message.contains(" is forbidden: User ") && message.contains(" cannot ")
}

/// Whether a webhook or a ValidatingAdmissionPolicy denied the request. The status code does not tell: a denial without
/// a reason has the code 400 or 422 (`ToStatusErr` and the plugin `ValidatingAdmissionPolicy` of kube-apiserver).
fn is_admission_denied(status: &Status) -> bool {
    let message = &status.message;
    message.starts_with("admission webhook \"") && message.contains(" denied the request")
        || message.contains("ValidatingAdmissionPolicy '") && message.contains(" denied request")
}

/// Whether a 403 says that the node of the Pod can't do what the request asks for: plugins `PodResizeValidator` and
/// `NodeDeclaredFeatureValidator` of kube-apiserver. Another node may be able to do it.
fn is_node_incapable(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut reasons = causes.map(|cause| &*cause.reason);
    status.code == 403
        && (reasons.any(|reason| ["NodeCapacity", "UnsupportedPlatform"].contains(&reason))
            || status.message.contains(" not available on node "))
}

/// Whether the plugin `NamespaceLifecycle` of kube-apiserver denied a creation because the namespace is being deleted.
/// Many objects can be told so at once, and nothing is wrong.
fn is_namespace_terminating(failure: &ApiFailure) -> bool {
    let ApiFailure::Answered(status) = failure else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    causes.any(|cause| cause.reason == "NamespaceTerminating")
}

/// Whether a 404 names an object, which is then gone. A 404 without a name means an unknown operation, such as
/// `pods/resize` in an older Kubernetes.
fn has_object_name(status: &Status) -> bool {
    let details = status.details.as_ref();
    details.is_some_and(|details| !details.name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorization_denial_differs_from_admission_denial() {
        let is_authorization = |message: &str| {
            is_authorization_denied(&Status {
                message: message.to_owned(),
                ..Status::default()
            })
        };
        let missing_right = "pods \"web-a\" is forbidden: User \"system:serviceaccount:a:b\" cannot patch resource \"pods/resize\" in API group \"\"";
        assert!(is_authorization(missing_right));
        for message in [
            "pods \"web-a\" is forbidden: node didn't have enough allocatable resources: memory, requested: 1",
            "pods \"web-a\" is forbidden: exceeded quota: q, requested: requests.cpu=300m",
            "admission webhook \"a.test\" denied the request: no",
        ] {
            assert!(!is_authorization(message), "{message}");
        }
    }
}
