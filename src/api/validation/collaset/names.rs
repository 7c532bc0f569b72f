//! Validates the name of the CollaSet and the names that are derived from it.

use super::{FieldError, FieldErrors};
use crate::api::collaset::PodNamingSuffixPolicy;
use crate::api::labels;

/// Revisions and Pods carry the name of the CollaSet in labels and hostnames, which have at most 63
/// characters.
const MAX_NAME_LENGTH: usize = 63;
/// With persistent names, the hostname of a Pod is `<CollaSet>-<instance ID>`. A cluster has fewer Pods than
/// six digits can number.
const MAX_LENGTH_BEFORE_ID: usize = MAX_NAME_LENGTH - "-999999".len();

pub(super) fn check_collaset_name(
    name: &str,
    naming: &PodNamingSuffixPolicy,
    errors: &mut FieldErrors,
) {
    let path = "metadata.name";
    if name.is_empty() {
        return;
    }
    if *naming != PodNamingSuffixPolicy::PersistentSequence {
        if name.len() > MAX_NAME_LENGTH {
            let problem = format!(
                "must have at most {MAX_NAME_LENGTH} characters: the names of revisions and Pods begin with it; shorten it"
            );
            errors.push(FieldError::new(path, name, problem));
        }
        return;
    }
    let reason = "with podNamingSuffixPolicy PersistentSequence: Pods have <name>-<instance ID> as their name and hostname; \
               choose another name, or Random";
    if name.len() > MAX_LENGTH_BEFORE_ID {
        let problem = format!("must have at most {MAX_LENGTH_BEFORE_ID} characters {reason}");
        errors.push(FieldError::new(path, name, problem));
    } else if labels::dns_label_problem(name).is_some() {
        let problem = format!("must have only lower-case letters, digits and '-' {reason}");
        errors.push(FieldError::new(path, name, problem));
    }
}
