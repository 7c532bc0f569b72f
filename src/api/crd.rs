//! CustomResourceDefinitions of all kinds, generated from the types.
//!
//! Three rules preserve compatibility with stored objects. First, no field is `required` that the former
//! schemas left optional. Second, bounds, patterns and enums rely on CRD validation ratcheting (Kubernetes
//! 1.33): a value that breaks one of them is accepted while the value, or the atomic list that contains it,
//! is unchanged. Third, CEL rules on nodes that change for other reasons compare with `oldSelf` themselves,
//! because ratcheting ignores a violation only on an unchanged node.

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use kube::CustomResourceExt;
use serde_json::json;

use super::collaset::CollaSet;
use super::keys;
use super::operationjob::OperationJob;
use super::poddecoration::PodDecoration;
use super::podtransitionrule::PodTransitionRule;
use super::resourcecontext::ResourceContext;

/// Revision of the definitions in this build. Raise it with every change of a definition: a build does not
/// replace definitions of a higher revision with its own.
pub const CRD_REVISION: u32 = 23;

/// The revision of a stored definition; 0 for a definition without one.
pub fn crd_revision(annotations: Option<&BTreeMap<String, String>>) -> u32 {
    let revision = annotations.and_then(|all| all.get(keys::CRD_REVISION));
    revision.and_then(|r| r.parse().ok()).unwrap_or(0)
}

/// The definitions, sorted by plural name.
pub fn all_crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![
        finish_crd(CollaSet::crd(), &[SPEC_REQUIRED]),
        finish_crd(OperationJob::crd(), &[SPEC_REQUIRED]),
        finish_crd(PodDecoration::crd(), &[DECORATION_NAME]),
        finish_crd(PodTransitionRule::crd(), &[SPEC_REQUIRED]),
        finish_crd(ResourceContext::crd(), &[]),
    ];
    all.sort_by(|a, b| a.spec.names.plural.cmp(&b.spec.names.plural));
    all
}

/// A CEL rule on a whole object, and its message. The root differs in every update, so ratcheting never
/// applies to it.
type RootRule = (&'static str, &'static str);

const SPEC_REQUIRED: RootRule = (
    "has(self.spec) || (oldSelf.hasValue() && !has(oldSelf.value().spec))",
    "spec is required: without it the object does nothing",
);

const DECORATION_NAME: RootRule = (
    "oldSelf.hasValue() || size(self.metadata.name) <= 60",
    "metadata.name must have at most 60 characters: Pods carry it in the label key poddecoration.kusionstack.io/pd-<name>",
);

fn finish_crd(
    mut crd: CustomResourceDefinition,
    root_rules: &[RootRule],
) -> CustomResourceDefinition {
    let annotations = crd.metadata.annotations.get_or_insert_default();
    annotations.insert(keys::CRD_REVISION.to_owned(), CRD_REVISION.to_string());
    for version in &mut crd.spec.versions {
        let Some(root) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        else {
            continue;
        };
        strip_derived_schema(root);
        default_to_unseen(root);
        root.required = None;
        root.title = None;
        root.x_kubernetes_validations = (!root_rules.is_empty()).then(|| {
            root_rules
                .iter()
                .map(|(rule, message)| ValidationRule {
                    rule: (*rule).into(),
                    message: Some((*message).into()),
                    optional_old_self: Some(true),
                    ..ValidationRule::default()
                })
                .collect()
        });
    }
    crd
}

/// Gives an object whose status has no `observedGeneration` the value 0, which is no generation of an object. Tools that
/// wait for objects (kstatus: Flux, `helm --wait`) take an object without this field as finished, even before a
/// controller has seen it.
fn default_to_unseen(root: &mut JSONSchemaProps) {
    const OBSERVED: &str = "observedGeneration";
    let properties = root.properties.as_mut();
    let Some(status) = properties.and_then(|all| all.get_mut("status")) else {
        return;
    };
    let properties = status.properties.as_mut();
    let Some(observed) = properties.and_then(|all| all.get_mut(OBSERVED)) else {
        return;
    };
    observed.default = Some(JSON(json!(0)));
    status.default = Some(JSON(json!({ OBSERVED: 0 })));
}

/// Removes the keywords that the derive adds and that the former schemas did not have: `nullable` (so that
/// the API server still prunes nulls) and `default` (admission writes defaults, so that they are visible in
/// the stored object). Restores the two types of int-or-string fields.
fn strip_derived_schema(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.default = None;
    if let Some(values) = &mut schema.enum_ {
        values.retain(|value| !value.0.is_null());
    }
    if schema.x_kubernetes_int_or_string == Some(true) {
        let of = |type_: &str| JSONSchemaProps {
            type_: Some(type_.into()),
            ..JSONSchemaProps::default()
        };
        schema.any_of = Some(vec![of("integer"), of("string")]);
    }
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        strip_derived_schema(property);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => strip_derived_schema(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => {
            items.iter_mut().for_each(strip_derived_schema)
        }
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        strip_derived_schema(values);
    }
}
