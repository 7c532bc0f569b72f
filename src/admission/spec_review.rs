//! The steps that the reviews of CollaSets, PodDecorations and OperationJobs share.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::dry_run::DryRunReport;
use super::responses;
use super::review::Verdict;
use crate::api::validation::FieldErrors;

/// A stand-in of the same length for the suffix that the API server adds to a `generateName`.
const GENERATED_SUFFIX: &str = "xxxxx";

/// The parts of the metadata that are reviewed.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct ReviewedMetadata {
    pub(super) name: Option<String>,
    pub(super) generation: i64,
    generate_name: Option<String>,
    deletion_timestamp: Option<IgnoredAny>,
}

impl ReviewedMetadata {
    /// The name, or a text as long as the name that the API server will generate.
    pub(super) fn known_name(&self) -> String {
        let name = self.name.clone().filter(|name| !name.is_empty());
        let prefix = self.generate_name.as_deref().unwrap_or_default();
        name.unwrap_or_else(|| format!("{prefix}{GENERATED_SUFFIX}"))
    }

    /// The name for messages.
    fn shown_name(&self) -> &str {
        let name = self.name.as_deref().filter(|name| !name.is_empty());
        name.or(self.generate_name.as_deref()).unwrap_or_default()
    }

    /// Whether the deletion of the object has begun.
    pub(super) fn is_being_deleted(&self) -> bool {
        self.deletion_timestamp.is_some()
    }
}

/// Whether a spec is to be validated. Requests that do not change the spec must always be possible, and so must every
/// change of an object that is being deleted.
pub(super) fn is_reviewed<S: PartialEq>(
    metadata: &ReviewedMetadata,
    old: Option<&S>,
    new: &S,
) -> bool {
    old != Some(new) && !metadata.is_being_deleted()
}

/// The findings about a spec that is new or changed.
pub(super) struct SpecFindings {
    pub(super) errors: FieldErrors,
    pub(super) report: DryRunReport,
    pub(super) warnings: Vec<String>,
    /// Whether the object is created.
    pub(super) is_new: bool,
}

impl SpecFindings {
    /// The verdict on the object with this metadata.
    pub(super) fn into_verdict(mut self, kind: &str, metadata: &ReviewedMetadata) -> Verdict {
        self.errors.extend(self.report.errors);
        if !self.errors.is_empty() {
            return responses::deny_invalid(kind, metadata.shown_name(), &self.errors);
        }
        // An update is allowed although the templates could not be tried. Otherwise a failing dry run would block a
        // rollback.
        let untried = match self.report.unknown {
            Some(reason) if self.is_new => {
                return responses::deny_unchecked(&format!("the {kind}"), &reason);
            }
            reason => reason.map(|reason| format!("the templates were not tried: {reason}")),
        };
        let warnings = self.warnings.into_iter().chain(self.report.warnings);
        warnings
            .chain(untried)
            .fold(Verdict::allow(), Verdict::with_warning)
    }
}
