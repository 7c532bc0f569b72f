#![allow(clippy::unwrap_used, clippy::panic)]

mod data;
mod history;

use serde_json::{Value, json};

use crate::api::poddecoration::PodDecoration;

/// A PodDecoration `log` with the UID `u1`, a selector of labels, this template, and this status.
fn decoration(template: Value, status: Value) -> PodDecoration {
    serde_json::from_value(json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1",
        "kind": "PodDecoration",
        "metadata": { "name": "log", "uid": "u1", "generation": 2 },
        "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": template },
        "status": status,
    }))
    .unwrap()
}
