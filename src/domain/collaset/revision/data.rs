//! The data of a ControllerRevision: `{"spec":{"template":{…,"$patch":"replace"},"volumeClaimTemplates":[…]}}`. The
//! list is absent if it is empty (contract 6.1).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api::collaset::CollaSetSpec;
use crate::domain::collaset::core_v1::{self, Kind, POD_TEMPLATE, PVC};

const PATCH: &str = "$patch";

const CREATION: &str = "creationTimestamp";

/// Returns the data of a spec: its raw template and volume claim templates, with sorted keys. A null
/// `creationTimestamp` of the template, as `kubectl create --dry-run` writes it, is removed, because it marks data that
/// Kuperator wrote.
pub fn revision_data(spec: &CollaSetSpec) -> Value {
    let mut template = spec.template.clone();
    if let Some(template) = template.as_object_mut() {
        template.insert(PATCH.to_owned(), json!("replace"));
        let metadata = template.get_mut("metadata").and_then(Value::as_object_mut);
        if let Some(metadata) = metadata.filter(|m| m.get(CREATION).is_some_and(Value::is_null)) {
            metadata.shift_remove(CREATION);
        }
    }
    let mut inner = Map::new();
    inner.insert("template".to_owned(), template);
    if !spec.volume_claim_templates.is_empty() {
        let pvc_templates = spec.volume_claim_templates.clone();
        inner.insert("volumeClaimTemplates".to_owned(), pvc_templates.into());
    }
    let mut data = json!({ "spec": inner });
    data.sort_all_objects();
    data
}

/// Returns the Pod template. Returns an error that names the field if the data does not have this format.
pub fn pod_template(data: &Value) -> Result<&Value, String> {
    let template = object_at(data, "/spec/template")?;
    object_at(data, "/spec/template/spec")?;
    Ok(template)
}

/// Returns the volume claim templates; empty if the data has no list of them.
pub fn pvc_templates(data: &Value) -> &[Value] {
    let templates = data["spec"]["volumeClaimTemplates"].as_array(); // `pointer` would allocate
    templates.map_or(&[], Vec::as_slice)
}

/// The labels of the Pod template.
pub fn template_labels(data: &Value) -> BTreeMap<String, String> {
    string_map(&data["spec"]["template"], "labels")
}

/// Whether two data have the same meaning, whatever their notation. The types of Go leave traces
/// (`"creationTimestamp":null`, `"resources":{}`, quantities in another unit), and these must not cause a rollout when
/// a set is taken over from Kuperator (contract Q29). The order of volume claim templates does not count (contract
/// Q45).
pub fn is_equal_data(a: &Value, b: &Value) -> bool {
    a == b
        || (normal_template(a) == normal_template(b)
            && have_same_pvc_templates(pvc_templates(a), pvc_templates(b)))
}

/// Whether stored data is what Kuperator made of `ours`. Kuperator drops each field that Kubernetes 1.22 did not know
/// (contract Q23). That difference alone must not cause a rollout when a set is taken over.
///
/// Call this for the latest revision only, because its Pods lack those fields, and its next Pods will, too. A change of
/// such fields only reaches the Pods together with the next change of other fields. Data without the trace of Go,
/// `"creationTimestamp":null`, is compared by [`is_equal_data`].
pub fn is_equal_kuperator_data(stored: &Value, ours: &Value) -> bool {
    let by_go = stored
        .pointer("/spec/template/metadata")
        .and_then(|metadata| metadata.get(CREATION))
        .is_some_and(Value::is_null);
    if !by_go {
        return is_equal_data(stored, ours);
    }
    let template = core_v1::without_newer_fields(
        &POD_TEMPLATE,
        ours.pointer("/spec/template").unwrap_or(&Value::Null),
        stored.pointer("/spec/template").unwrap_or(&Value::Null),
    );
    let pvc_templates: Vec<_> = pvc_templates(ours)
        .iter()
        .map(|template| {
            let name = pvc_template_name(template);
            let stored = pvc_templates(stored)
                .iter()
                .find(|c| pvc_template_name(c) == name);
            core_v1::without_newer_fields(&PVC, template, stored.unwrap_or(&Value::Null))
        })
        .collect();
    let ours = json!({ "spec": { "template": template, "volumeClaimTemplates": pvc_templates } });
    is_equal_data(stored, &ours)
}

/// Whether two lists contain the same volume claim templates, whatever their notation and order.
pub fn have_same_pvc_templates(a: &[Value], b: &[Value]) -> bool {
    normal_pvc_templates(a) == normal_pvc_templates(b)
}

/// Name of a volume claim template, which is also the name of the volume; empty if it has none.
pub fn pvc_template_name(template: &Value) -> &str {
    template["metadata"]["name"].as_str().unwrap_or_default()
}

/// The template in its normal form. Data without a template is compared as it is.
pub(super) fn normal_template(data: &Value) -> Option<Value> {
    let mut template = data.pointer("/spec/template").unwrap_or(data).clone();
    if let Some(template) = template.as_object_mut() {
        template.shift_remove(PATCH);
    }
    core_v1::normal_form(&POD_TEMPLATE, &template)
}

fn normal_pvc_templates(templates: &[Value]) -> Vec<Value> {
    let kind = Kind::List(Box::new(PVC));
    let mut pvc_templates = match core_v1::normal_form(&kind, &templates.into()) {
        Some(Value::Array(pvc_templates)) => pvc_templates,
        _ => Vec::new(),
    };
    pvc_templates.sort_by(|a, b| pvc_template_name(a).cmp(pvc_template_name(b)));
    pvc_templates
}

fn object_at<'a>(data: &'a Value, pointer: &str) -> Result<&'a Value, String> {
    let path = || pointer.trim_start_matches('/').replace('/', ".");
    match data.pointer(pointer) {
        Some(value) if value.is_object() => Ok(value),
        Some(_) => Err(format!("{} is not an object", path())),
        None => Err(format!("{} is missing", path())),
    }
}

/// Pairs the containers of both templates. The caller has checked that names and order are the same.
pub(super) fn container_pairs<'a>(
    from: &'a Value,
    to: &'a Value,
    list: &str,
) -> impl Iterator<Item = (&'a Value, &'a Value)> {
    let containers = |template: &'a Value| {
        let list = template
            .pointer(&format!("/spec/{list}"))
            .and_then(Value::as_array);
        list.into_iter().flatten()
    };
    containers(from).zip(containers(to))
}

pub(super) fn string_field<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn string_map(template: &Value, key: &str) -> BTreeMap<String, String> {
    let entries = template
        .get("metadata")
        .and_then(|m| m.get(key))
        .and_then(Value::as_object);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    entries
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.clone(), text(value)))
        .collect()
}
