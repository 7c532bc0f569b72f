//! What admission refuses, with which texts; which defaults it adds; and that stored objects can always be deleted.

use kube::api::{Patch, PatchParams};
use operating::api::keys;
use operating::api::poddecoration::PodDecoration;
use serde_json::{Value, json};
use testbed::kubectl::Said;
use testbed::{Bed, Scope, wait};

use crate::fixtures::{Decoration, object};

/// `kubectl create --dry-run=server` of a PodDecoration.
async fn dry_run(scope: &Scope, object: &Value) -> Said {
    let bed = Bed::shared().await;
    let args = [
        "create",
        "--dry-run=server",
        "-o",
        "json",
        "-n",
        &scope.namespace,
    ];
    bed.ask_kubectl_about(&args, object).await
}

/// A namespace in which the server already judges PodDecorations.
async fn scope(prefix: &str) -> Scope {
    let scope = Bed::shared().await.scope(prefix).await;
    let bad = object("probe", json!({ "selector": null }));
    wait::until("PodDecorations to be judged", async || {
        !dry_run(&scope, &bad).await.succeeded()
    })
    .await;
    scope
}

#[tokio::test]
async fn dry_run_adds_defaults_and_nothing_else() {
    let scope = scope("decoration-defaults").await;
    let mut wanted = object(
        "log",
        json!({ "template": {
        "metadata": [{ "patchPolicy": "", "labels": { "a": "b" } }],
        "containers": [{ "name": "side", "image": "side:1", "securityContext": { "privileged": true } }],
        "primaryContainers": [{ "image": "app:2" }, { "name": "app", "image": "app:3" }],
        "volumes": [{ "name": "v", "emptyDir": {} }],
    } }),
    );
    let stored = dry_run(&scope, &wanted).await.json();
    let spec = &mut wanted["spec"];
    spec["weight"] = json!(0);
    spec["historyLimit"] = json!(20);
    spec["template"]["metadata"][0]["patchPolicy"] = json!("Retain");
    spec["template"]["containers"][0]["injectPolicy"] = json!("BeforePrimaryContainer");
    spec["template"]["primaryContainers"][0]["targetPolicy"] = json!("All");
    spec["template"]["primaryContainers"][1]["targetPolicy"] = json!("ByName");
    assert_eq!(stored["spec"], wanted["spec"]);
    let nothing = scope.api::<PodDecoration>().get_opt("log").await.unwrap();
    assert_eq!(nothing, None);
}

fn metadata(policy: &str, part: Value) -> Value {
    let mut patch = json!({ "patchPolicy": policy });
    json_patch::merge(&mut patch, &part);
    json!({ "template": { "metadata": [patch] } })
}

fn primary(part: Value) -> Value {
    json!({ "template": { "primaryContainers": [part] } })
}

fn containers(list: Value) -> Value {
    json!({ "template": { "containers": list } })
}

/// Changes of a valid spec, and a part of the text with which each is refused.
fn refusals() -> Vec<(Value, &'static str)> {
    let nobody = json!([{ "key": "app", "operator": "In" }]);
    let lifecycle = json!({ "matchLabels": { keys::SERVICE_AVAILABLE: "1" } });
    let mount = |part: Value| {
        let mut mount = json!({ "name": "data", "mountPath": "/data" });
        json_patch::merge(&mut mount, &part);
        primary(json!({ "volumeMounts": [mount] }))
    };
    vec![
        (json!({ "selector": null }), "spec.selector: is required"),
        (
            json!({ "selector": { "matchExpressions": nobody } }),
            "spec.selector.matchExpressions[0]",
        ),
        (
            json!({ "selector": { "matchLabels": { "app": "a b" } } }),
            "spec.selector.matchLabels",
        ),
        (
            json!({ "selector": lifecycle }),
            "spec.selector.matchLabels[podopslifecycle.kusionstack.io/service-available]",
        ),
        (
            json!({ "updateStrategy": { "rollingUpdate": { "selector": { "matchExpressions": nobody } } } }),
            "spec.updateStrategy.rollingUpdate.selector.matchExpressions[0]",
        ),
        (
            json!({ "updateStrategy": { "rollingUpdate": { "partition": -1 } } }),
            "spec.updateStrategy.rollingUpdate.partition",
        ),
        (json!({ "historyLimit": -1 }), "spec.historyLimit"),
        (
            metadata("Overwrite", json!({ "labels": { keys::INSTANCE_ID: "1" } })),
            "spec.template.metadata[0].labels[collaset.kusionstack.io/instance-id]: \"1\": is reserved",
        ),
        (
            metadata("Retain", json!({ "labels": { keys::CONTROL: "true" } })),
            "spec.template.metadata[0].labels[kusionstack.io/control]: \"true\": is reserved",
        ),
        (
            metadata("Overwrite", json!({ "labels": { "app": "other" } })),
            "spec.template.metadata[0].labels[app]: \"other\": can't be set, because spec.selector",
        ),
        (
            metadata(
                "Retain",
                json!({ "annotations": { keys::DECORATIONS: "[]" } }),
            ),
            "spec.template.metadata[0].annotations[poddecoration.kusionstack.io/revisions]: \"[]\": is reserved",
        ),
        (
            metadata("MergePatchJson", json!({ "annotations": { "conf": "{" } })),
            "spec.template.metadata[0].annotations[conf]: \"{\": must be a JSON document",
        ),
        (
            metadata("MergePatchJson", json!({ "labels": { "a": "b" } })),
            "spec.template.metadata[0].labels: must be empty",
        ),
        (
            metadata("Sometimes", json!({})),
            "spec.template.metadata[0].patchPolicy",
        ),
        (
            containers(json!([{ "name": "a", "image": "a" }, { "name": "a", "image": "b" }])),
            "spec.template.containers[1].name: \"a\": is the name of an earlier entry",
        ),
        (
            containers(json!([{ "name": "a" }])),
            "spec.template.containers[0].image",
        ),
        (
            json!({ "template": { "tolerations": [{ "key": "a", "operator": "Perhaps" }] } }),
            "spec.template.tolerations[0].operator",
        ),
        (
            json!({ "template": { "volumes": [{ "name": "A b", "emptyDir": {} }] } }),
            "spec.template.volumes[0].name",
        ),
        (
            primary(json!({ "targetPolicy": "ByName" })),
            "is required with targetPolicy ByName",
        ),
        (
            primary(json!({ "env": [{ "name": "", "value": "x" }] })),
            "spec.template.primaryContainers[0].env[0].name",
        ),
        (
            mount(json!({ "subPath": "/a" })),
            "spec.template.primaryContainers[0].volumeMounts[0].subPath: \"/a\": must be relative",
        ),
        (
            mount(json!({ "subPath": "a/../b" })),
            "spec.template.primaryContainers[0].volumeMounts[0].subPath: \"a/../b\": must not leave",
        ),
        (
            json!({ "template": { "runtimeClassName": "A_b" } }),
            "spec.template.runtimeClassName: \"A_b\"",
        ),
    ]
}

#[tokio::test]
async fn unusable_spec_is_refused_with_field_and_remedy() {
    let scope = scope("decoration-refused").await;
    for (part, text) in refusals() {
        let said = dry_run(&scope, &object("log", part.clone())).await;
        assert!(!said.succeeded(), "{part} is accepted");
        assert!(said.err.contains(text), "{text} in {}", said.err);
    }
    let said = dry_run(&scope, &object(&"n".repeat(61), json!({}))).await;
    let text = "must have at most 60 characters";
    assert!(
        said.err.contains("metadata.name") && said.err.contains(text),
        "{}",
        said.err
    );
    let longest = object(&"n".repeat(60), json!({}));
    let _ = dry_run(&scope, &longest).await.success();
}

#[tokio::test]
async fn stored_invalid_decoration_can_be_labelled_and_deleted() {
    let bed = Bed::own().await;
    let scope = bed.scope("decoration-stored").await;
    bed.without_server().await;
    let nobody =
        json!({ "matchLabels": null, "matchExpressions": [{ "key": "app", "operator": "In" }] });
    scope
        .store::<PodDecoration>(object("log", json!({ "selector": nobody })))
        .await;
    bed.with_server().await;
    let log = Decoration::named(&scope, "log");
    log.until_condition("Ready", "False", "spec.selector").await;
    let label = Patch::Merge(json!({ "metadata": { "labels": { "seen": "1" } } }));
    let params = PatchParams::default();
    log.api.patch("log", &params, &label).await.unwrap();
    let weight = Patch::Merge(json!({ "spec": { "weight": 1 } }));
    log.api.patch("log", &params, &weight).await.unwrap();
    let worse = Patch::Merge(json!({ "spec": { "historyLimit": -1 } }));
    log.api.patch("log", &params, &worse).await.unwrap_err();
    log.delete().await;
    log.until_gone().await;
}
