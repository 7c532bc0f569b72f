//! Reviews PodDecorations: sets defaults, and validates the spec with the help of the API server.

mod probe;
mod probe_paths;

use std::sync::Arc;

use async_trait::async_trait;
use json_patch::Patch;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::AdmissionContext;
use super::dry_run::{self, DryRunReport};
use super::review::{Handler, Request, RequestOperation, Verdict};
use super::spec_review::{ReviewedMetadata, SpecFindings, is_reviewed};
use super::{responses, size_limit};
use crate::api::defaults;
use crate::api::poddecoration::PodDecorationSpec;
use crate::api::validation::FieldErrors;
use crate::api::validation::poddecoration::{check_creation, check_poddecoration, warnings};

const KIND: &str = "PodDecoration";
/// The object that the message of a denial names when it could not be checked.
const CHECKED_SUBJECT: &str = "the PodDecoration";

/// See [`Handler::bytes_per_value`]. As for CollaSets, the containers are parsed into JSON values, and the probe has a
/// copy of them.
const BYTES_PER_VALUE: usize = 2_048;

/// Sets the defaults of a PodDecoration, and reports errors before the API server checks the schema.
pub struct PodDecorationMutator(pub Arc<AdmissionContext>);

/// Validates a PodDecoration whose spec is new or changed.
pub struct PodDecorationValidator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for PodDecorationMutator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        if let Some(verdict) =
            size_limit::check_review_size(KIND, request, self.0.settings.collaset_bytes)
        {
            return verdict;
        }
        let new = match responses::parse_object::<RawPodDecoration>(request.object.as_deref(), KIND)
        {
            Ok(new) => new,
            Err(denial) => return denial,
        };
        let mut object = json!({ "spec": new.spec });
        let defaults = Patch(defaults::default_poddecoration(&object));
        if let Err(e) = json_patch::patch(&mut object, &defaults) {
            let why = format!("defaults can't be added, {e}");
            return responses::deny_unchecked(CHECKED_SUBJECT, &why);
        }
        // The API server checks the CRD's schema after this webhook and before the validating webhook. For a value of a
        // wrong type this webhook reports nothing, because the message of the schema names the path.
        let spec = Option::<PodDecorationSpec>::deserialize(object["spec"].take());
        if let Ok(spec) = spec {
            let new = ReviewedPodDecoration {
                metadata: new.metadata,
                spec: spec.unwrap_or_default(),
            };
            if let Some(change) = SpecChange::from_request(new, request) {
                let errors = change.validation_errors();
                if !errors.is_empty() {
                    return change.judge(errors, &self.0, request, deadline).await;
                }
            }
        }
        Verdict::allow().with_patch(defaults)
    }

    fn fallback(&self, _request: &Request, _why: &str) -> Verdict {
        Verdict::allow() // readers use the defaults of absent fields; the validating webhook decides
    }

    fn deny_excessive(&self, request: &Request, why: &str) -> Verdict {
        size_limit::deny_excessive(KIND, request, why)
    }

    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

#[async_trait]
impl Handler for PodDecorationValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        if let Some(verdict) =
            size_limit::check_review_size(KIND, request, self.0.settings.collaset_bytes)
        {
            return verdict;
        }
        let new = match responses::parse_object(request.object.as_deref(), KIND) {
            Ok(new) => new,
            Err(denial) => return denial,
        };
        match SpecChange::from_request(new, request) {
            Some(change) => {
                let errors = change.validation_errors();
                change.judge(errors, &self.0, request, deadline).await
            }
            None => Verdict::allow(),
        }
    }

    fn fallback(&self, _request: &Request, why: &str) -> Verdict {
        responses::deny_unchecked(CHECKED_SUBJECT, why)
    }

    fn deny_excessive(&self, request: &Request, why: &str) -> Verdict {
        size_limit::deny_excessive(KIND, request, why)
    }

    fn bytes_per_value(&self) -> usize {
        BYTES_PER_VALUE
    }
}

/// A PodDecoration whose spec may have fields that this program does not know.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawPodDecoration {
    metadata: ReviewedMetadata,
    spec: Value,
}

/// The parts of a PodDecoration that are reviewed. The status can be as large as the spec.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedPodDecoration {
    metadata: ReviewedMetadata,
    spec: PodDecorationSpec,
}

/// A PodDecoration whose spec is new or changed.
struct SpecChange {
    old: Option<PodDecorationSpec>,
    new: ReviewedPodDecoration,
    is_new: bool,
}

impl SpecChange {
    /// The change that a request makes. `None` if the spec is not to be validated.
    fn from_request(new: ReviewedPodDecoration, request: &Request) -> Option<SpecChange> {
        let old = request.old_object.as_deref();
        let old = old
            .and_then(|raw| responses::parse_object::<ReviewedPodDecoration>(Some(raw), KIND).ok());
        let old = old.map(|old| old.spec);
        is_reviewed(&new.metadata, old.as_ref(), &new.spec).then(|| SpecChange {
            old,
            new,
            is_new: request.operation == RequestOperation::Create,
        })
    }

    /// The errors that the stored spec does not have. A user can still change other fields of an object that was stored
    /// with an error.
    fn validation_errors(&self) -> FieldErrors {
        let mut errors = FieldErrors::ignoring_existing(|errors| {
            let old = self.old.iter();
            old.for_each(|old| check_poddecoration(old, errors));
        });
        if self.is_new {
            let name = self.new.metadata.known_name();
            check_creation(&name, &self.new.spec, &mut errors);
        }
        check_poddecoration(&self.new.spec, &mut errors);
        errors
    }

    /// The verdict, after the API server has judged the template if it is new or changed. `errors` are the errors that
    /// are known already.
    async fn judge(
        mut self,
        errors: FieldErrors,
        context: &AdmissionContext,
        request: &Request,
        deadline: Instant,
    ) -> Verdict {
        let warnings = warnings(self.old.as_ref(), &self.new.spec);
        let mut report = self.dry_run_template(context, request, deadline).await;
        // The API server finds many of the same errors, and says less about them.
        let found = std::mem::take(&mut report.errors).into_iter();
        let is_known = |path: &str| errors.iter().any(|error| error.path == path);
        let others = found.filter(|error| !is_known(&error.path));
        report.errors.extend(others);
        let findings = SpecFindings {
            errors,
            report,
            warnings,
            is_new: self.is_new,
        };
        findings.into_verdict(KIND, &self.new.metadata)
    }

    /// Creates a Pod with the decoration in dry-run mode, if the template is new or changed. This function takes the
    /// template out of the spec, so that only the probe stays in memory while the API server is asked.
    async fn dry_run_template(
        &mut self,
        context: &AdmissionContext,
        request: &Request,
        deadline: Instant,
    ) -> DryRunReport {
        let new = self.new.spec.template.take();
        let old = self.old.take().and_then(|old| old.template);
        let Some(template) = new.filter(|new| old.as_ref() != Some(new)) else {
            return DryRunReport::default();
        };
        drop(old);
        let name = self.new.metadata.known_name();
        let probe = match probe::decorated_pod(&name, template) {
            Ok(probe) => probe,
            Err(error) => {
                return DryRunReport {
                    errors: error.into(),
                    ..DryRunReport::default()
                };
            }
        };
        dry_run::dry_run_probes(&context.client, &request.namespace, vec![probe], deadline).await
    }
}

#[cfg(test)]
mod tests;
