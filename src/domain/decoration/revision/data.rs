//! The data of a revision: `{"spec":{"template":{…,"$patch":"replace"},"weight":0}}` (contract 6.1).

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::api::poddecoration::{InjectPolicy, PatchPolicy, PodDecorationSpec, Template};
use crate::api::poddecoration::{PrimaryContainerPatch, TargetPolicy};
use crate::domain::collaset::core_v1::{Kind, normal_form};
use crate::domain::collaset::observed::Revision;
use crate::domain::decoration::DecorationRevision;

const PATCH: &str = "$patch";

/// Returns the data of a spec, with sorted keys. An absent weight is 0. An absent template is an empty one.
pub fn revision_data(spec: &PodDecorationSpec) -> Value {
    let template = spec.template.clone().unwrap_or_default();
    let mut template = serde_json::to_value(template).unwrap_or_default();
    if let Some(template) = template.as_object_mut() {
        template.insert(PATCH.to_owned(), json!("replace"));
    }
    let mut data = json!({ "spec": { "template": template, "weight": spec.weight.unwrap_or(0) } });
    data.sort_all_objects();
    data
}

/// Reads a stored revision of the PodDecoration with this name. An absent or null weight is 0.
///
/// # Errors
/// If the data does not have the form of [`revision_data`]. The text names the field.
pub fn parse_revision(
    decoration_name: &str,
    revision: &Revision,
) -> Result<DecorationRevision, String> {
    let spec = revision.data.get("spec").unwrap_or(&Value::Null);
    let template = match spec.get("template") {
        Some(template) if template.is_object() => template,
        Some(_) => return Err("data.spec.template is not an object".to_owned()),
        None => return Err("data.spec.template is missing".to_owned()),
    };
    let template =
        Template::deserialize(template).map_err(|error| format!("data.spec.template: {error}"))?;
    let weight = spec.get("weight").unwrap_or(&Value::Null);
    let weight =
        Option::<i32>::deserialize(weight).map_err(|error| format!("data.spec.weight: {error}"))?;
    Ok(DecorationRevision {
        decoration: decoration_name.to_owned(),
        name: revision.name.clone(),
        template,
        weight: weight.unwrap_or(0),
    })
}

/// Whether two data have the same meaning, whatever their notation. The types of Go leave traces (`"resources":{}`,
/// quantities in another unit), and Kuperator's webhook stored defaults. These must not cause a rollout when a cluster is
/// taken over from Kuperator (contract Q29).
///
/// A `targetPolicy` that is absent differs from `All` if the change has a name: it is ByName. Kuperator's webhook stored
/// `All` in such changes. It stored this in the PodDecoration and not only in the revision, so that both still have the
/// same meaning after Kuperator is gone, and no Pod is updated. If they were taken as equal, a user could no longer
/// correct `All` to ByName.
pub fn is_equal_data(a: &Value, b: &Value) -> bool {
    a == b || normal_data(a) == normal_data(b)
}

/// The normal form of data. Other fields than the template and the weight have no effect.
fn normal_data(data: &Value) -> (Option<Value>, Value) {
    let spec = data.get("spec").unwrap_or(&Value::Null);
    let template = spec.get("template").map(normal_template);
    let weight = spec.get("weight").filter(|weight| !weight.is_null());
    (template, weight.cloned().unwrap_or(json!(0)))
}

fn normal_template(template: &Value) -> Value {
    let Some(fields) = template.as_object() else {
        return template.clone();
    };
    let fields = fields.iter().filter(|(key, _)| *key != PATCH);
    let fields = fields.filter_map(|(key, value)| {
        let value = match key.as_str() {
            "metadata" => normal_items(value, normal_metadata),
            "containers" => normal_list("Container", value)
                .map(|containers| containers_with_policy(&containers)),
            "initContainers" => normal_list("Container", value),
            "primaryContainers" => normal_items(value, normal_primary_container),
            "volumes" => normal_list("Volume", value),
            "tolerations" => normal_list("Toleration", value),
            "affinity" => normal_affinity(value),
            "runtimeClassName" => normal_form(&Kind::Text, value),
            _ => (!value.is_null()).then(|| value.clone()),
        };
        Some((key.clone(), value?))
    });
    Value::Object(fields.collect())
}

/// The normal form of a list of structs of `core/v1`; `None` if the list is empty.
fn normal_list(kind: &'static str, list: &Value) -> Option<Value> {
    normal_form(&Kind::List(Box::new(Kind::Struct(kind))), list)
}

/// Changes each object of a list; `None` if the list is empty.
fn normal_items(list: &Value, change: impl Fn(&mut Map<String, Value>)) -> Option<Value> {
    let Some(items) = list.as_array() else {
        return (!list.is_null()).then(|| list.clone());
    };
    let mut items = items.clone();
    for item in items.iter_mut().filter_map(Value::as_object_mut) {
        change(item);
        item.retain(|_, value| !value.is_null());
    }
    (!items.is_empty()).then_some(Value::Array(items))
}

/// Writes the default where a policy is absent or empty.
fn set_default_policy(fields: &mut Map<String, Value>, key: &str, default: &str) {
    let policy = fields.entry(key).or_insert(Value::Null);
    if policy.is_null() || policy == "" {
        *policy = default.into();
    }
}

/// Replaces a field by its normal form; null if the field means the same as a missing one.
fn normalize(fields: &mut Map<String, Value>, key: &str, kind: &Kind) {
    if let Some(value) = fields.get_mut(key) {
        *value = normal_form(kind, value).unwrap_or_default();
    }
}

fn normal_metadata(patch: &mut Map<String, Value>) {
    set_default_policy(patch, "patchPolicy", PatchPolicy::Retain.as_str());
    let texts = Kind::Map(Box::new(Kind::Text));
    normalize(patch, "labels", &texts);
    normalize(patch, "annotations", &texts);
}

fn containers_with_policy(containers: &Value) -> Value {
    let default = InjectPolicy::BeforePrimaryContainer;
    let containers = normal_items(containers, |container| {
        set_default_policy(container, "injectPolicy", default.as_str());
    });
    containers.unwrap_or_default()
}

/// A name has an effect with ByName only.
fn normal_primary_container(patch: &mut Map<String, Value>) {
    let policy = PrimaryContainerPatch::deserialize(&Value::Object(patch.clone()))
        .map(|patch| patch.effective_target_policy());
    if let Ok(policy) = policy {
        patch.insert("targetPolicy".to_owned(), policy.as_str().into());
        if policy != TargetPolicy::ByName {
            patch.shift_remove("name");
        }
    }
    let list = |kind| Kind::List(Box::new(Kind::Struct(kind)));
    normalize(patch, "name", &Kind::Text);
    normalize(patch, "image", &Kind::Text);
    normalize(patch, "env", &list("EnvVar"));
    normalize(patch, "volumeMounts", &list("VolumeMount"));
}

/// An empty `overrideAffinity` removes the affinity of the Pod, so that it differs from an absent one.
fn normal_affinity(affinity: &Value) -> Option<Value> {
    let Some(fields) = affinity.as_object() else {
        return (!affinity.is_null()).then(|| affinity.clone());
    };
    let mut fields = fields.clone();
    let present = Kind::Pointer(Box::new(Kind::Struct("Affinity")));
    normalize(&mut fields, "overrideAffinity", &present);
    let terms = Kind::List(Box::new(Kind::Struct("NodeSelectorTerm")));
    normalize(&mut fields, "nodeSelectorTerms", &terms);
    fields.retain(|_, value| !value.is_null());
    (!fields.is_empty()).then_some(Value::Object(fields))
}
