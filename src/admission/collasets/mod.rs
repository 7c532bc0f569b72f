//! Reviews CollaSets: sets defaults, and validates the spec with the help of the API server.

mod former_pvcs;
mod orphaning;
mod partition;
mod pool_limits;
mod probe;
mod unbounded_update;
mod warnings;

use std::sync::Arc;

use async_trait::async_trait;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, Patch, PatchOperation};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::context::AdmissionContext;
use super::dry_run::{self, DryRunReport};
use super::review::{Handler, Request, Verdict};
use super::spec_review::{ReviewedMetadata, SpecFindings, is_reviewed};
use super::{responses, size_limit};
use crate::api::collaset::CollaSetSpec;
use crate::api::{defaults, validation};
pub use orphaning::OrphanAnnotator;

const KIND: &str = "CollaSet";
/// The object that the message of a denial names when it could not be checked.
const CHECKED_SUBJECT: &str = "the CollaSet";

/// See [`Handler::bytes_per_value`]. A template is parsed into JSON values once, and the dry run takes these values
/// over. A value of `serde_json` has 72 bytes, and a map with one entry takes about 450 bytes more. The rest is
/// overhead of the allocator.
const BYTES_PER_VALUE: usize = 1_024;

/// Sets the defaults of a CollaSet, and reports errors before the API server checks the schema.
pub struct CollaSetMutator(pub Arc<AdmissionContext>);

/// Validates a CollaSet whose spec is new or changed.
pub struct CollaSetValidator(pub Arc<AdmissionContext>);

#[async_trait]
impl Handler for CollaSetMutator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        if let Some(verdict) =
            size_limit::check_review_size(KIND, request, self.0.settings.collaset_bytes)
        {
            return verdict;
        }
        let mut strategies =
            match responses::parse_object::<DefaultedStrategies>(request.object.as_deref(), KIND) {
                Ok(strategies) => strategies.to_defaulted_json(),
                Err(denial) => return denial,
            };
        let defaults = Patch(defaults::default_collaset(&strategies));
        if let Err(e) = json_patch::patch(&mut strategies, &defaults) {
            return responses::deny_unchecked(
                CHECKED_SUBJECT,
                &format!("defaults can't be added, {e}"),
            );
        }
        // The API server checks the CRD's schema after this webhook and before the validating webhook. For a wrong
        // value the message of the schema names no remedy, so this webhook already reports all errors. For a value of a
        // wrong type it reports nothing, because the message of the schema names the path.
        let new = responses::parse_object::<ReviewedCollaSet>(request.object.as_deref(), KIND).ok();
        let stored_replicas = new.as_ref().and_then(|new| omitted_replicas(request, new));
        let new = new.and_then(|new| new.with_strategies(strategies));
        if let Some(mut change) = new.and_then(|new| SpecChange::from_request(new, request)) {
            let errors = change.validation_errors();
            if !errors.is_empty() {
                let report = change.dry_run_templates(&self.0, request, deadline).await;
                return change.into_verdict(errors, report);
            }
        }
        let Some(replicas) = stored_replicas else {
            return Verdict::allow().with_patch(defaults);
        };
        let mut patch = defaults;
        patch.0.push(PatchOperation::Add(AddOperation {
            path: PointerBuf::from_tokens(["spec", "replicas"]),
            value: json!(replicas),
        }));
        Verdict::allow().with_patch(patch).with_warning(format!(
            "spec.replicas: is left out, so the stored value {replicas} is kept; set 0 to delete every Pod"
        ))
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
impl Handler for CollaSetValidator {
    async fn review(&self, request: &Request, deadline: Instant) -> Verdict {
        if let Some(verdict) =
            size_limit::check_review_size(KIND, request, self.0.settings.collaset_bytes)
        {
            return verdict;
        }
        let new: ReviewedCollaSet = match responses::parse_object(request.object.as_deref(), KIND) {
            Ok(new) => new,
            Err(denial) => return denial,
        };
        let Some(mut change) = SpecChange::from_request(new, request) else {
            return Verdict::allow();
        };
        let former = change.old.as_ref().map(|old| &old.spec);
        let unbounded = unbounded_update::unbounded_update_warning(
            &self.0.index,
            &request.namespace,
            former,
            &change.new.spec,
        );
        change.warnings.extend(unbounded);
        if change.old.is_none() {
            let name = change.new.metadata.name.as_deref().unwrap_or_default();
            let former_pvcs = former_pvcs::former_pvcs_warning(
                &self.0.objects,
                &request.namespace,
                name,
                &change.new.spec,
            );
            change.warnings.extend(former_pvcs);
        }
        let errors = change.validation_errors();
        let report = change.dry_run_templates(&self.0, request, deadline).await;
        change.into_verdict(errors, report)
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

/// The stored replicas, if an update would remove the field `spec.replicas`, for example to hand it over to an
/// autoscaler.
fn omitted_replicas(request: &Request, new: &ReviewedCollaSet) -> Option<i32> {
    let old =
        responses::parse_object::<ReviewedCollaSet>(request.old_object.as_deref(), KIND).ok()?;
    let is_omitted = !new.metadata.is_being_deleted() && new.spec.replicas.is_none();
    old.spec.replicas.filter(|_| is_omitted)
}

/// The parts of a CollaSet that are reviewed. The rest of its metadata and of its status can be as large as its spec.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewedCollaSet {
    metadata: ReviewedMetadata,
    spec: CollaSetSpec,
    status: Option<RolloutProgress>,
}

/// The progress of a rollout, from the status.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RolloutProgress {
    observed_generation: i64,
    replicas: usize,
    updated_replicas: usize,
    current_revision: String,
    updated_revision: String,
}

impl ReviewedCollaSet {
    /// The same CollaSet with these strategies; `None` if the schema refuses them.
    fn with_strategies(mut self, mut strategies: Value) -> Option<ReviewedCollaSet> {
        let mut part = |name| strategies["spec"][name].take();
        self.spec.update_strategy = Option::deserialize(part("updateStrategy")).ok()?;
        self.spec.naming_strategy = Option::deserialize(part("namingStrategy")).ok()?;
        Some(self)
    }
}

/// The parts of a spec that have defaults.
#[derive(Default, Deserialize)]
#[serde(default)]
struct DefaultedStrategies {
    spec: Option<Box<RawValue>>,
}

impl DefaultedStrategies {
    /// A CollaSet that has only these parts. Its spec is null if `spec` is not an object.
    fn to_defaulted_json(&self) -> Value {
        #[derive(Deserialize, Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Spec {
            #[serde(default)]
            update_strategy: Value,
            #[serde(default)]
            naming_strategy: Value,
        }
        let spec = self.spec.as_deref().map(RawValue::get);
        let spec = spec.filter(|text| text.starts_with('{'));
        let spec = spec.and_then(|text| serde_json::from_str::<Spec>(text).ok());
        json!({ "spec": spec })
    }
}

/// A CollaSet whose spec is new or changed.
struct SpecChange {
    old: Option<ReviewedCollaSet>,
    new: ReviewedCollaSet,
    /// Warnings about valid values that the user may not have meant.
    warnings: Vec<String>,
}

impl SpecChange {
    /// The change that a request makes. `None` if the spec is not to be validated.
    fn from_request(new: ReviewedCollaSet, request: &Request) -> Option<SpecChange> {
        let old = request.old_object.as_deref();
        let old =
            old.and_then(|raw| responses::parse_object::<ReviewedCollaSet>(Some(raw), KIND).ok());
        let old_spec = old.as_ref().map(|old| &old.spec);
        is_reviewed(&new.metadata, old_spec, &new.spec).then(|| {
            let former = old.as_ref().map(|old| &old.spec);
            let mut warnings = validation::collaset::warnings(former, &new.spec);
            warnings.extend(warnings::spec_warnings(former, &new.spec));
            warnings.extend(pool_limits::replace_warning(
                &new.metadata.known_name(),
                former,
                &new.spec,
            ));
            let partition = old
                .as_ref()
                .and_then(|old| partition::partition_warning(old, &new.spec));
            warnings.extend(partition);
            SpecChange { old, new, warnings }
        })
    }

    fn name(&self) -> &str {
        self.new.metadata.name.as_deref().unwrap_or_default()
    }

    /// The errors that the stored spec does not have. A user can still change other fields of an object that was stored
    /// with an error.
    fn validation_errors(&self) -> validation::FieldErrors {
        use validation::collaset::{check_collaset, validate_change, validate_pvc_change};
        let old = self.old.as_ref().map(|old| &old.spec);
        let mut errors = validation::FieldErrors::ignoring_existing(|errors| {
            old.into_iter()
                .for_each(|old| check_collaset(self.name(), old, errors));
        });
        errors.extend(validate_pvc_change(old, &self.new.spec));
        check_collaset(self.name(), &self.new.spec, &mut errors);
        if let Some(old) = old {
            errors.extend(validate_change(old, &self.new.spec));
        }
        let name = self.new.metadata.known_name();
        errors.extend(pool_limits::replicas_error(&name, old, &self.new.spec));
        errors
    }

    /// Asks the API server to judge the templates, if they are new or changed. This function takes the templates out of
    /// the specs, so that only the probes stay in memory while the API server is asked.
    async fn dry_run_templates(
        &mut self,
        context: &AdmissionContext,
        request: &Request,
        deadline: Instant,
    ) -> DryRunReport {
        let new = probe::SpecTemplates::take_from_spec(&mut self.new.spec);
        let old = self
            .old
            .as_mut()
            .map(|old| probe::SpecTemplates::take_from_spec(&mut old.spec));
        let is_unchanged = old.as_ref().is_some_and(|old| *old == new);
        let (probes, excess_error) = match is_unchanged {
            true => (Vec::new(), None),
            false => new.probes(old),
        };
        let mut report =
            dry_run::dry_run_probes(&context.client, &request.namespace, probes, deadline).await;
        report.errors.extend(excess_error);
        report
    }

    fn into_verdict(self, errors: validation::FieldErrors, report: DryRunReport) -> Verdict {
        let findings = SpecFindings {
            errors,
            report,
            warnings: self.warnings,
            is_new: self.old.is_none(),
        };
        findings.into_verdict(KIND, &self.new.metadata)
    }
}

#[cfg(test)]
mod tests;
