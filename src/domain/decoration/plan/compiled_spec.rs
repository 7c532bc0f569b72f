//! The spec of a PodDecoration in the form that plans use.

use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::api::selector::Selector;
use crate::api::validation::FieldError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

/// Longest name of a PodDecoration. `pd-<name>` is the name part of a label key, which has at most 63 characters.
const NAME_LIMIT: usize = 60;

/// The compiled spec.
#[derive(Clone, Debug, Default)]
pub struct CompiledSpec {
    /// The members to decorate. `None` selects nobody.
    pub selector: Option<Selector>,
    /// How far the rollout goes.
    pub strategy: Strategy,
    /// Why the spec can't be used, with the field.
    pub invalid: Option<String>,
}

/// How far the rollout of the updated revision goes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Strategy {
    /// To all selected members.
    #[default]
    All,
    /// To the selected members that this selector matches.
    Selector(Selector),
    /// To all selected members but this number.
    Partition(usize),
}

impl CompiledSpec {
    /// Compiles the spec. The API server stores a spec that can't be used if it does not call the webhook. A negative
    /// partition counts as 0.
    pub fn from_object(object: &PodDecoration) -> CompiledSpec {
        match compile_selectors(object) {
            Ok(compiled) => compiled,
            Err(problem) => CompiledSpec {
                invalid: Some(problem.to_string()),
                ..CompiledSpec::default()
            },
        }
    }
}

fn compile_selectors(object: &PodDecoration) -> Result<CompiledSpec, FieldError> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    if name.len() > NAME_LIMIT {
        let problem = format!(
            "must have at most {NAME_LIMIT} characters, because Pods have the label {}<name>: create the PodDecoration \
             again under a shorter name",
            keys::DECORATION_PREFIX
        );
        return Err(FieldError::new("metadata.name", name, problem));
    }
    let spec = &object.spec;
    let strategy = spec.update_strategy.as_ref();
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
    let selector = rolling.and_then(|rolling| rolling.selector.as_ref());
    let partition = rolling.and_then(|rolling| rolling.partition).unwrap_or(0);
    let path = "spec.updateStrategy.rollingUpdate.selector";
    let strategy = match (
        compile_selector(selector, path)?,
        usize::try_from(partition),
    ) {
        (Some(selector), _) => Strategy::Selector(selector),
        (None, Ok(partition @ 1..)) => Strategy::Partition(partition),
        (None, _) => Strategy::All,
    };
    Ok(CompiledSpec {
        selector: compile_selector(spec.selector.as_ref(), "spec.selector")?,
        strategy,
        invalid: None,
    })
}

fn compile_selector(
    selector: Option<&LabelSelector>,
    path: &str,
) -> Result<Option<Selector>, FieldError> {
    let compiled = selector.map(Selector::compile).transpose();
    compiled.map_err(|errors| {
        let first = errors.into_iter().next();
        let first = first.unwrap_or_else(|| FieldError::missing_field("", "can't be compiled"));
        first.under_parent(path)
    })
}
