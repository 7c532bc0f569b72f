//! The data of a ControllerRevision: `{"spec":{"template":{…,"$patch":"replace"},"volumeClaimTemplates":[…]}}`, the
//! latter only where there are any (contract 6.1).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::api::collaset::CollaSetSpec;
use crate::domain::collaset::core_v1::{self, Kind, POD_TEMPLATE, PVC};

const PATCH: &str = "$patch";

const CREATION: &str = "creationTimestamp";

/// The data of a spec: its raw template and claim templates, keys sorted. A null `creationTimestamp` of the template,
/// as `kubectl create --dry-run` writes it, is left out: it is the mark of data by Kuperator.
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
        let claims = spec.volume_claim_templates.clone();
        inner.insert("volumeClaimTemplates".to_owned(), claims.into());
    }
    let mut data = json!({ "spec": inner });
    data.sort_all_objects();
    data
}

/// The Pod template. Fails, naming the field, where the data is not of this format.
pub fn pod_template(data: &Value) -> Result<&Value, String> {
    let template = object_at(data, "/spec/template")?;
    object_at(data, "/spec/template/spec")?;
    Ok(template)
}

/// The claim templates; none where the data has no list of them.
pub fn pvc_templates(data: &Value) -> &[Value] {
    let templates = data["spec"]["volumeClaimTemplates"].as_array(); // a pointer would allocate
    templates.map_or(&[], Vec::as_slice)
}

/// Whether two data mean the same, whatever their notation: the types of Go leave their marks
/// (`"creationTimestamp":null`, `"resources":{}`, quantities in another unit), and a set that is taken over from
/// Kuperator must not be rolled out for that (contract Q29). The order of claim templates does not count (contract Q45).
pub fn is_equal_data(a: &Value, b: &Value) -> bool {
    a == b
        || (normal_template(a) == normal_template(b)
            && have_same_pvc_templates(pvc_templates(a), pvc_templates(b)))
}

/// Whether stored data is what Kuperator made of `ours`: it has lost each field that 1.22 did not know (contract Q23),
/// which alone is no reason to roll a set out when it is taken over.
///
/// To be asked of the latest revision only, since its Pods lack those fields, and further ones will: a change that
/// touches nothing else than such fields reaches the Pods together with the next one that does. Data without the mark
/// of Go, `"creationTimestamp":null`, is compared by [`equal`].
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
    let claims: Vec<_> = pvc_templates(ours)
        .iter()
        .map(|claim| {
            let name = pvc_template_name(claim);
            let stored = pvc_templates(stored)
                .iter()
                .find(|c| pvc_template_name(c) == name);
            core_v1::without_newer_fields(&PVC, claim, stored.unwrap_or(&Value::Null))
        })
        .collect();
    let ours = json!({ "spec": { "template": template, "volumeClaimTemplates": claims } });
    is_equal_data(stored, &ours)
}

/// Whether two lists hold the same claim templates, whatever their notation and order.
pub fn have_same_pvc_templates(a: &[Value], b: &[Value]) -> bool {
    normal_pvc_templates(a) == normal_pvc_templates(b)
}

/// Name of a claim template, which is the name of the volume too; empty when it has none.
pub fn pvc_template_name(template: &Value) -> &str {
    template["metadata"]["name"].as_str().unwrap_or_default()
}

/// The template in its normal form. Undecodable data is compared as it is.
pub(super) fn normal_template(data: &Value) -> Option<Value> {
    let mut template = data.pointer("/spec/template").unwrap_or(data).clone();
    if let Some(template) = template.as_object_mut() {
        template.shift_remove(PATCH);
    }
    core_v1::normal_form(&POD_TEMPLATE, &template)
}

fn normal_pvc_templates(templates: &[Value]) -> Vec<Value> {
    let kind = Kind::List(Box::new(PVC));
    let mut claims = match core_v1::normal_form(&kind, &templates.into()) {
        Some(Value::Array(claims)) => claims,
        _ => Vec::new(),
    };
    claims.sort_by(|a, b| pvc_template_name(a).cmp(pvc_template_name(b)));
    claims
}

fn object_at<'a>(data: &'a Value, pointer: &str) -> Result<&'a Value, String> {
    let path = || pointer.trim_start_matches('/').replace('/', ".");
    match data.pointer(pointer) {
        Some(value) if value.is_object() => Ok(value),
        Some(_) => Err(format!("{} is not an object", path())),
        None => Err(format!("{} is missing", path())),
    }
}

/// Containers of both templates. That names and order are the same is known by then.
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
