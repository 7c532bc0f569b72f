//! The answer to a review.

use std::collections::BTreeMap;

use json_patch::Patch;
use k8s_openapi::ByteString;
use serde::Serialize;

use super::{API_VERSION, KIND};

/// The answer to a review: allowed, perhaps with a patch, or denied with a message.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Verdict {
    denial: Option<Box<Denial>>,
    patch: Option<Patch>,
    warnings: Vec<String>,
    audit: BTreeMap<&'static str, String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Denial {
    code: u16,
    reason: &'static str,
    message: String,
    cause: Option<DenialCause>,
}

/// An entry of `status.details.causes`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct DenialCause {
    reason: &'static str,
    message: String,
}

impl Verdict {
    /// Allows the request without a change.
    pub fn allow() -> Verdict {
        Verdict {
            denial: None,
            patch: None,
            warnings: Vec::new(),
            audit: BTreeMap::new(),
        }
    }

    /// Denies the request. `code` is an HTTP status, because without a code the API server would answer 400. `reason`
    /// is the `metav1.StatusReason` for it, such as `TooManyRequests`. `message` is the text for the user.
    pub fn deny(code: u16, reason: &'static str, message: impl Into<String>) -> Verdict {
        Verdict {
            denial: Some(Box::new(Denial {
                code,
                reason,
                message: message.into(),
                cause: None,
            })),
            ..Verdict::allow()
        }
    }

    /// Adds a cause to a denial. The API server passes it on to clients that read `status.details.causes`. `reason` is
    /// a `metav1.CauseType` such as `DisruptionBudget`.
    pub fn with_cause(mut self, reason: &'static str, message: impl Into<String>) -> Verdict {
        if let Some(denial) = &mut self.denial {
            let message = message.into();
            denial.cause = Some(DenialCause { reason, message });
        }
        self
    }

    /// Changes the object by an RFC 6902 patch. An empty patch, or the patch of a denial, is not sent.
    pub fn with_patch(self, patch: Patch) -> Verdict {
        Verdict {
            patch: Some(patch),
            ..self
        }
    }

    /// Adds a warning that `kubectl` prints. Control characters become spaces: the API server sends the warning as an
    /// HTTP header, and drops a warning with control characters.
    pub fn with_warning(mut self, warning: impl Into<String>) -> Verdict {
        self.warnings
            .push(warning.into().replace(char::is_control, " "));
        self
    }

    /// Adds an annotation to the audit event of the request. The API server puts the name of the webhook before `key`.
    pub fn with_audit(mut self, key: &'static str, value: impl Into<String>) -> Verdict {
        self.audit.insert(key, value.into());
        self
    }

    /// Whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.denial.is_none()
    }

    /// HTTP status of the denial; 200 if allowed.
    pub fn code(&self) -> u16 {
        self.denial.as_ref().map_or(200, |d| d.code)
    }

    /// Reason of the denial; empty if allowed.
    pub fn reason(&self) -> &'static str {
        self.denial.as_ref().map_or("", |d| d.reason)
    }

    /// Message of the denial; empty if allowed.
    pub fn message(&self) -> &str {
        self.denial.as_ref().map_or("", |d| d.message.as_str())
    }

    /// The patch, if there is one to send.
    pub fn patch(&self) -> Option<&Patch> {
        self.patch
            .as_ref()
            .filter(|patch| self.is_allowed() && !patch.0.is_empty())
    }

    /// The warnings, in the order in which they were added.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Audit annotations by key.
    pub fn annotations(&self) -> &BTreeMap<&'static str, String> {
        &self.audit
    }

    /// The AdmissionReview that answers the review with this `uid`.
    ///
    /// # Errors
    /// If the JSON cannot be written, which does not happen for a verdict.
    pub fn to_json(&self, uid: &str) -> serde_json::Result<Vec<u8>> {
        let patch = self
            .patch()
            .map(serde_json::to_vec)
            .transpose()?
            .map(ByteString);
        serde_json::to_vec(&ReviewBody {
            api_version: API_VERSION,
            kind: KIND,
            response: ReviewResponse {
                uid,
                allowed: self.is_allowed(),
                patch_type: patch.is_some().then_some("JSONPatch"),
                patch,
                status: self.denial.as_ref().map(|denial| DenialStatus {
                    metadata: EmptyObject {},
                    status: "Failure",
                    code: denial.code,
                    reason: denial.reason,
                    message: &denial.message,
                    details: denial
                        .cause
                        .as_ref()
                        .map(|cause| DenialDetails { causes: [cause] }),
                }),
                warnings: &self.warnings,
                audit_annotations: &self.audit,
            },
        })
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewBody<'a> {
    api_version: &'a str,
    kind: &'a str,
    response: ReviewResponse<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReviewResponse<'a> {
    uid: &'a str,
    allowed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch_type: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    patch: Option<ByteString>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<DenialStatus<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    audit_annotations: &'a BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct DenialStatus<'a> {
    metadata: EmptyObject,
    status: &'a str,
    code: u16,
    reason: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<DenialDetails<'a>>,
}

#[derive(Serialize)]
struct DenialDetails<'a> {
    causes: [&'a DenialCause; 1],
}

#[derive(Serialize)]
struct EmptyObject {}
