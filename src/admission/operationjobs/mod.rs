//! Reviews OperationJobs: sets defaults, and validates a new or changed spec. Neither sends a request to the API server.

use std::collections::BTreeMap;

use async_trait::async_trait;
use json_patch::Patch;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::dry_run::DryRunReport;
use super::review::{Handler, Request, RequestOperation, Verdict};
use super::spec_review::{ReviewedMetadata, SpecFindings, is_reviewed};
use super::{responses, size_limit};
use crate::api::operationjob::OperationJobSpec;
use crate::api::validation::FieldErrors;
use crate::api::validation::operationjob::{check_operationjob, validate_change, warnings};
use crate::api::{defaults, keys};

const KIND: &str = "OperationJob";

/// See [`Handler::bytes_per_value`]. Defaults are computed from JSON values, and a target with a name is two of them.
/// There is no limit of bytes as for templates, because the status of a job grows with its targets.
const BYTES_PER_VALUE: usize = 512;

/// Sets the defaults of an OperationJob, and reports errors before the API server checks the schema.
pub struct OperationJobMutator;

/// Validates an OperationJob whose spec is new or changed.
pub struct OperationJobValidator;

#[async_trait]
impl Handler for OperationJobMutator {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        let new = match responses::parse_object::<RawJob>(request.object.as_deref(), KIND) {
            Ok(new) => new,
            Err(denial) => return denial,
        };
        let mut object = Value::Object(Map::from_iter([("spec".to_owned(), new.spec)]));
        let defaults = Patch(defaults::default_operationjob(&object));
        // For a value of the wrong type this webhook reports nothing: the schema is checked next, and names the path.
        let spec = Option::<OperationJobSpec>::deserialize(object["spec"].take());
        if let Ok(spec) = spec {
            let new = ReviewedJob {
                metadata: new.metadata,
                spec: spec.unwrap_or_default(),
            };
            let verdict = judge(&new, request);
            if !verdict.is_allowed() {
                return verdict;
            }
        }
        Verdict::allow().with_patch(defaults)
    }

    fn fallback(&self, _request: &Request, _why: &str) -> Verdict {
        Verdict::allow() // the controller uses the defaults of absent fields; the validating webhook decides
    }

    fn deny_excessive(&self, request: &Request, why: &str) -> Verdict {
        deny_excessive(request, why)
    }

    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

#[async_trait]
impl Handler for OperationJobValidator {
    async fn review(&self, request: &Request, _deadline: Instant) -> Verdict {
        match responses::parse_object(request.object.as_deref(), KIND) {
            Ok(new) => judge(&new, request),
            Err(denial) => denial,
        }
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked("the OperationJob", why)
    }

    fn deny_excessive(&self, request: &Request, why: &str) -> Verdict {
        deny_excessive(request, why)
    }

    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

fn deny_excessive(request: &Request, why: &str) -> Verdict {
    size_limit::deny_spec_change(KIND, request, &format!("{why}; list fewer targets"))
}

/// An OperationJob whose spec may have fields that this program does not know.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawJob {
    metadata: ReviewedMetadata,
    spec: Value,
}

/// The parts of an OperationJob that are reviewed. The status can be larger than the spec.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedJob {
    metadata: ReviewedMetadata,
    spec: OperationJobSpec,
}

/// The verdict on an OperationJob. Errors that the stored object has already are left out, so that a user can still
/// change its other fields.
fn judge(new: &ReviewedJob, request: &Request) -> Verdict {
    let stored = request.old_object.as_deref();
    let old = stored.map(|raw| responses::parse_object::<ReviewedJob>(Some(raw), KIND));
    let old = old.and_then(Result::ok).map(|old| old.spec);
    if !is_reviewed(&new.metadata, old.as_ref(), &new.spec) {
        return Verdict::allow();
    }
    let mut errors = FieldErrors::ignoring_existing(|errors| {
        if let Some(old) = &old {
            check_operationjob(old, restart_by(stored).as_deref(), errors);
        }
    });
    let method = restart_by(request.object.as_deref());
    check_operationjob(&new.spec, method.as_deref(), &mut errors);
    if let Some(old) = &old {
        errors.extend(validate_change(old, &new.spec));
    }
    let findings = SpecFindings {
        errors,
        report: DryRunReport::default(),
        warnings: warnings(old.as_ref(), &new.spec),
        is_new: request.operation == RequestOperation::Create,
    };
    findings.into_verdict(KIND, &new.metadata)
}

/// The annotations of an object.
#[derive(Deserialize)]
struct Annotated {
    metadata: AnnotatedMetadata,
}

#[derive(Deserialize)]
struct AnnotatedMetadata {
    annotations: BTreeMap<String, String>,
}

/// The value of the annotation [`keys::RESTART_BY`]. `None` without annotations.
fn restart_by(object: Option<&RawValue>) -> Option<String> {
    let object: Annotated = serde_json::from_str(object?.get()).ok()?;
    let mut annotations = object.metadata.annotations;
    annotations.remove(keys::RESTART_BY)
}

#[cfg(test)]
mod tests;
