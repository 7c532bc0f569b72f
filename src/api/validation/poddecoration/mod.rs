//! Validation of PodDecoration (contract 1.4). The API server checks containers, volumes, tolerations and affinity;
//! admission asks it by a dry run.

mod metadata;
mod named_entries;
mod primary_containers;
mod selectors;

use super::values::{allowed_values, check_non_negative};
use super::{FieldError, FieldErrors};
use crate::api::labels;
use crate::api::poddecoration::{InjectPolicy, PodDecorationSpec, TargetPolicy, Template};

/// Maximum length of a name. Pods carry the name in the label key `poddecoration.kusionstack.io/pd-<name>`. The part of
/// a label key after the slash has at most 63 characters.
pub const MAX_NAME_LENGTH: usize = 60;

/// Most entries in the lists of a template, all lists together. The lists are compared with each other at each review and in
/// each plan.
const MAX_ENTRIES: usize = 2_000;

/// The errors of a PodDecoration on its own, as far as a stored one may not have them either.
pub fn validate(spec: &PodDecorationSpec) -> FieldErrors {
    let mut errors = FieldErrors::default();
    check_poddecoration(spec, &mut errors);
    errors
}

/// Adds the errors of a PodDecoration on its own to `errors`, see [`validate`].
pub fn check_poddecoration(spec: &PodDecorationSpec, errors: &mut FieldErrors) {
    check_non_negative(spec.history_limit, "spec.historyLimit", errors);
    selectors::check_selectors(spec, errors);
    if let Some(template) = &spec.template {
        match count_entries(template) {
            ..=MAX_ENTRIES => check_template(template, spec, errors),
            // Without the other checks, whose effort grows with the number of entries.
            count => errors.push(FieldError::new(
                "spec.template",
                &count.to_string(),
                format!(
                    "is the number of entries of its lists; at most {MAX_ENTRIES} are allowed: use several PodDecorations"
                ),
            )),
        }
    }
}

/// Number of entries in the lists of a template that are merged into Pods.
fn count_entries(template: &Template) -> usize {
    let of_patches = template.primary_containers.iter();
    let of_patches = of_patches.map(|patch| 1 + patch.env.len() + patch.volume_mounts.len());
    let terms = template.affinity.as_ref();
    let metadata = template.metadata.iter();
    let metadata = metadata.map(|patch| patch.labels.len() + patch.annotations.len());
    template.init_containers.len()
        + template.containers.len()
        + template.volumes.len()
        + template.tolerations.len()
        + terms.map_or(0, |affinity| affinity.node_selector_terms.len())
        + of_patches.sum::<usize>()
        + metadata.sum::<usize>()
}

/// Adds the errors that only a new PodDecoration must not have. `name` is its name, or a text as long as the name that
/// will be generated.
pub fn check_creation(name: &str, spec: &PodDecorationSpec, errors: &mut FieldErrors) {
    if name.len() > MAX_NAME_LENGTH {
        let problem = format!(
            "must have at most {MAX_NAME_LENGTH} characters: Pods carry it in the label key \
             poddecoration.kusionstack.io/pd-<name>; shorten it"
        );
        errors.push(FieldError::new("metadata.name", name, problem));
    }
    if spec.selector.is_none() {
        let problem = "is required: set it to labels of the Pods to decorate, or to {} for all Pods of CollaSets";
        errors.push(FieldError::missing_field("spec.selector", problem));
    }
}

/// Warnings about valid specs that probably have an unintended effect; `old` is the stored spec of an update.
pub fn warnings(old: Option<&PodDecorationSpec>, new: &PodDecorationSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if old.is_some_and(|old| old.selector.is_some()) && new.selector.is_none() {
        let text = "spec.selector: is left out, so no Pod is selected and all Pods lose this decoration; set it to {} to \
                    select all Pods of CollaSets";
        warnings.push(text.to_owned());
    }
    let strategy = new.update_strategy.as_ref();
    if let Some(rolling) = strategy.and_then(|strategy| strategy.rolling_update.as_ref())
        && rolling.selector.is_some()
        && rolling.partition.is_some_and(|partition| partition > 0)
    {
        let text = "spec.updateStrategy.rollingUpdate.partition: has no effect, because selector is set, too; remove one of \
                    them";
        warnings.push(text.to_owned());
    }
    let patches = new.template.iter().flat_map(|t| &t.primary_containers);
    for (index, patch) in patches.enumerate() {
        let policy = patch.effective_target_policy();
        if let Some(name) = patch.name.as_deref().filter(|name| !name.is_empty())
            && policy != TargetPolicy::ByName
        {
            warnings.push(format!(
                "spec.template.primaryContainers[{index}].name: {name:?} has no effect with targetPolicy {policy}; set \
                 ByName to change only this container"
            ));
        }
    }
    warnings
}

fn check_template(template: &Template, spec: &PodDecorationSpec, errors: &mut FieldErrors) {
    metadata::check_metadata(&template.metadata, spec, errors);
    for (list, entries) in [
        ("initContainers", &template.init_containers),
        ("containers", &template.containers),
        ("volumes", &template.volumes),
    ] {
        named_entries::check_names(&format!("spec.template.{list}"), entries, errors);
    }
    for (index, container) in template.containers.iter().enumerate() {
        let policy = container["injectPolicy"].as_str();
        let unknown = policy.filter(|p| !p.is_empty() && !InjectPolicy::KNOWN.contains(p));
        errors.extend(unknown.map(|text| {
            let path = format!("spec.template.containers[{index}].injectPolicy");
            FieldError::new(path, text, allowed_values(InjectPolicy::KNOWN))
        }));
    }
    primary_containers::check_primary_containers(&template.primary_containers, errors);
    if let Some(name) = &template.runtime_class_name
        && let Some(problem) = labels::dns_name_problem(name)
    {
        let problem = format!("{problem}: set it to the name of a RuntimeClass, or leave it out");
        let path = "spec.template.runtimeClassName";
        errors.push(FieldError::new(path, name, problem));
    }
}

#[cfg(test)]
mod tests;
