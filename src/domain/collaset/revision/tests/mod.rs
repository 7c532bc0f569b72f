#![allow(clippy::unwrap_used, clippy::panic)]

mod data;
mod history;
mod inplace;

use serde_json::{Value, json};

use crate::api::collaset::CollaSet;
use crate::domain::collaset::core_v1::{POD_TEMPLATE, PVC, go_json};

/// A set with the UID `u1`, a selector of labels and these templates.
fn set(template: Value, pvc_templates: Value) -> CollaSet {
    serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "CollaSet",
        "metadata": { "name": "web", "uid": "u1", "generation": 2 },
        "spec": {
            "selector": { "matchLabels": { "app": "web" } },
            "template": template,
            "volumeClaimTemplates": pvc_templates,
        },
    }))
    .unwrap()
}

fn template(image: &str) -> Value {
    json!({
        "metadata": { "labels": { "app": "web" } },
        "spec": { "containers": [{ "name": "app", "image": image, "resources": { "requests": { "cpu": "1000m" } } }] },
    })
}

/// Data as Kuperator stores it.
fn kuperator_data(template: &Value, pvc_templates: &[Value]) -> Value {
    let mut template: Value = serde_json::from_str(&go_json(&POD_TEMPLATE, template)).unwrap();
    template["$patch"] = json!("replace");
    let mut data = json!({ "spec": { "template": template } });
    if !pvc_templates.is_empty() {
        let pvc_templates = pvc_templates
            .iter()
            .map(|c| serde_json::from_str::<Value>(&go_json(&PVC, c)).unwrap());
        data["spec"]["volumeClaimTemplates"] = pvc_templates.collect();
    }
    data
}
