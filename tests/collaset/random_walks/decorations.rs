//! The PodDecorations of a walk: what users do with them.

use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};
use testbed::Scope;

use super::requests::{is_taken, passed};
use crate::invariants::DECORATED;

const NAMES: [&str; 2] = ["log", "mesh"];

pub fn draw_name(rng: &mut StdRng) -> &'static str {
    NAMES.choose(rng).unwrap()
}

/// Draws an edit of the spec of a PodDecoration.
pub fn draw_edit(rng: &mut StdRng, name: &str) -> Value {
    match rng.random_range(0..100) {
        0..40 => json!({ "template": { "containers": draw_sidecar(rng, name) } }),
        40..60 => json!({ "template": { "metadata": draw_label(rng) } }),
        60..65 => json!({ "weight": rng.random_range(0..3) }),
        65..88 => json!({ "updateStrategy": { "rollingUpdate": draw_rollout(rng) } }),
        _ => json!({ "selector": draw_selector(rng) }),
    }
}

/// Draws a sidecar, or none. The sidecar has the name of the PodDecoration.
fn draw_sidecar(rng: &mut StdRng, name: &str) -> Value {
    if rng.random_bool(0.2) {
        return json!([]);
    }
    let places = ["BeforePrimaryContainer", "AfterPrimaryContainer"];
    let image = format!("side:{}", rng.random_range(1..4));
    // Most edits change only the image, which is possible in place.
    let place = places[usize::from(rng.random_bool(0.8))];
    json!([{ "name": name, "image": image, "injectPolicy": place }])
}

fn draw_label(rng: &mut StdRng) -> Value {
    match rng.random_range(0..4) {
        0 => json!([]),
        value => {
            json!([{ "patchPolicy": "Retain", "labels": { DECORATED: value.to_string() } }])
        }
    }
}

/// Draws which Pods get the updated revision: all, some instance IDs, or all but a number.
fn draw_rollout(rng: &mut StdRng) -> Value {
    match rng.random_range(0..5) {
        0 => json!(null),
        1 => {
            json!({ "selector": { "matchExpressions": [draw_instances(rng)] }, "partition": null })
        }
        _ => json!({ "selector": null, "partition": rng.random_range(0..5) }),
    }
}

/// Draws which Pods are decorated: all of the namespace, those of the set, none, or some instance IDs.
fn draw_selector(rng: &mut StdRng) -> Value {
    let app = match rng.random_range(0..6) {
        0 => json!(null),
        1 => json!({ "app": "web" }),
        2 => json!({ "app": "other" }),
        _ => {
            let expressions = [draw_instances(rng)];
            return json!({ "matchLabels": null, "matchExpressions": expressions });
        }
    };
    json!({ "matchLabels": app, "matchExpressions": null })
}

fn draw_instances(rng: &mut StdRng) -> Value {
    let ids: Vec<_> = (0..3).map(|_| rng.random_range(0..6).to_string()).collect();
    json!({ "key": keys::INSTANCE_ID, "operator": "In", "values": ids })
}

/// Merges into the spec of a PodDecoration, or creates one that selects the Pods of the set. Repeats the request while
/// the webhooks are down. Returns false if the API server refuses the change.
pub async fn decorate(scope: &Scope, name: &str, part: &Value) -> bool {
    let api: Api<PodDecoration> = scope.api();
    let patch = Patch::Merge(json!({ "spec": part }));
    let mut spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": {} });
    json_patch::merge(&mut spec, part);
    let new = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodDecoration",
        "metadata": { "name": name }, "spec": spec,
    });
    let new: PodDecoration = serde_json::from_value(new).unwrap();
    is_taken(&format!("{part} of {name}"), async || {
        let edited = api.patch(name, &PatchParams::default(), &patch).await;
        match edited {
            Err(kube::Error::Api(status)) if status.code == 404 => {
                api.create(&PostParams::default(), &new).await
            }
            edited => edited,
        }
    })
    .await
}

/// Deletes a PodDecoration. It exists until no Pod has it any more.
pub async fn undecorate(scope: &Scope, name: &str) -> bool {
    let api: Api<PodDecoration> = scope.api();
    passed(api.delete(name, &DeleteParams::default()).await)
}
