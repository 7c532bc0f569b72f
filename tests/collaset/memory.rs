//! Reviews of CollaSets that are built to use much memory. Every user who may create a CollaSet in a dry run can cause
//! them.

use std::iter::successors;

use futures::future::join_all;
use kube::Error;
use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use operating::api::collaset::CollaSet;
use serde_json::{Map, Value, json};
use testbed::Bed;
use testbed::review::{about, review};

/// Bytes of an object, below the limit of `--max-collaset-bytes`.
const SIZE: usize = 250_000;
/// Reviews at once.
const REVIEWS: usize = 100;
/// Bound for the growth of a replica's resident memory, in MiB. With the caches of a large cluster, which take 120 MiB,
/// this is still far below the container's limit of 512 MiB.
const GROWTH: u64 = 320;

/// As many of these entries as fit into [`SIZE`] bytes.
fn many(entry: impl Fn(usize) -> Value) -> Value {
    let mut remaining_bytes = SIZE;
    let entries = (0..).map(entry);
    entries
        .take_while(|entry| {
            let size = entry.to_string().len() + 1;
            let fits = size <= remaining_bytes;
            remaining_bytes = remaining_bytes.saturating_sub(size);
            fits
        })
        .collect()
}

/// The same for a map with these keys.
fn map(key: impl Fn(usize) -> String, value: Value) -> Value {
    let size = key(10_000).len() + value.to_string().len() + 4;
    let keys = (0..SIZE / size).map(key);
    let map: Map<_, _> = keys.map(|key| (key, value.clone())).collect();
    map.into()
}

fn nested() -> Value {
    let nested = successors(Some(json!(0)), |inner| Some(json!({ "a": inner })));
    nested.take(100).last().unwrap()
}

/// A CollaSet that is valid except for its size.
fn set(change: Value) -> Value {
    let mut set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 0,
            "selector": { "matchLabels": { "app": "a" } },
            "template": {
                "metadata": { "labels": { "app": "a" } },
                "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
            },
        },
    });
    json_patch::merge(&mut set, &change);
    set
}

fn container(part: Value) -> Value {
    let mut container = json!({ "name": "c", "image": "i:1" });
    json_patch::merge(&mut container, &part);
    set(json!({ "spec": { "template": { "spec": { "containers": [container] } } } }))
}

/// Pairs of an old and a new object. They take far more memory than bytes, or cause very many errors.
fn hostile() -> Vec<(Value, Value)> {
    let env =
        container(json!({ "env": many(|n| json!({ "name": format!("a{n}"), "value": "" })) }));
    let mut changed = env.clone();
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
    let pvc_templates = |list: Value| set(json!({ "spec": { "volumeClaimTemplates": list } }));
    let labels = |key: &str| {
        let labels = map(|n| format!("{key}{n}"), json!(""));
        set(json!({ "spec": { "template": { "metadata": { "labels": labels } } } }))
    };
    let fields = json!([{ "manager": "m", "operation": "Update", "fieldsV1": map(|n| format!("f:{n}"), json!({})) }]);
    let containers = many(
        |n| json!({ "name": format!("c{n}"), "image": "i", "tty": false, "ports": [{ "containerPort": 1 }] }),
    );
    let created = [
        container(json!({ "env": many(|_| json!({ "name": "=", "value": "" })) })),
        labels("a"),
        labels("="),
        pvc_templates(many(|_| json!({}))),
        pvc_templates(many(
            |n| json!({ "metadata": { "name": n }, "spec": nested() }),
        )),
        set(json!({ "metadata": { "managedFields": fields } })),
        set(json!({ "spec": { "template": { "spec": { "containers": containers } } } })),
        set(json!({ "spec": { "scaleStrategy": { "podToDelete": many(|_| json!("")) } } })),
    ];
    let updated = [(env.clone(), Value::Null), (changed, env)];
    let created = created.into_iter().map(|object| (object, Value::Null));
    created.chain(updated).collect()
}

fn body(namespace: &str, object: &Value, old: &Value) -> Vec<u8> {
    let kind = json!({ "group": "apps.kusionstack.io", "version": "v1alpha1", "kind": "CollaSet" });
    let resource =
        json!({ "group": "apps.kusionstack.io", "version": "v1alpha1", "resource": "collasets" });
    review(&json!({
        "uid": "u", "operation": if old.is_null() { "CREATE" } else { "UPDATE" }, "dryRun": true,
        "namespace": namespace, "name": "web", "kind": kind, "resource": resource,
        "userInfo": { "username": "mallory" }, "object": object, "oldObject": old,
    }))
}

/// Fails unless the review is allowed, or refused with a reason.
fn assert_clear(answer: kube::Result<Value>) {
    let (code, message) = match &answer {
        Ok(verdict) if verdict["allowed"] == json!(true) => return,
        Ok(verdict) => {
            let status = &verdict["status"];
            (
                status["code"].as_u64().unwrap(),
                status["message"].as_str().unwrap(),
            )
        }
        Err(Error::Api(status)) => (status.code.into(), status.message.as_str()),
        Err(other) => panic!("no verdict: {other:?}"),
    };
    let remedy = match code {
        413 => "make the templates smaller",
        422 => "CollaSet web is invalid: ",
        503 => "try again",
        _ => panic!("{code}: {message}"),
    };
    assert!(message.contains(remedy), "{code}: {message}");
}

#[tokio::test]
async fn hundred_large_reviews_at_once_take_bounded_memory() {
    let bed = Bed::own().await;
    for other in [1, 2] {
        bed.terminate(other).await;
    }
    let scope = bed.scope("review-memory").await;
    let paths = bed.paths().await;
    let path = |route: &str| paths.iter().find(|path| path.ends_with(route)).unwrap();
    let routes = ["/mutate/collasets", "/validate/collasets"].map(path);
    let bodies: Vec<_> = hostile()
        .iter()
        .map(|(object, old)| body(&scope.namespace, object, old))
        .collect();
    let before = bed.peak_mib(0).await;

    for route in routes {
        let flood = bodies.iter().cycle().take(REVIEWS);
        let flood = join_all(flood.map(|body| bed.send(route, body.clone())));
        let honest = async {
            let pod = json!({ "metadata": { "namespace": scope.namespace, "name": "p", "uid": "u" }, "spec": {} });
            bed.forge("/validate/pods", about(&pod, "DELETE", None))
                .await
        };
        let (answers, honest) = futures::join!(flood, honest);
        assert_eq!(honest.unwrap()["allowed"], json!(true));
        answers.into_iter().for_each(assert_clear);
    }
    // An object of the same size, with long texts.
    let env = |n| json!({ "name": format!("A{n}"), "value": "x".repeat(30_000) });
    let honest = container(json!({ "env": (0..8).map(env).collect::<Vec<_>>() }));
    let resource = ApiResource::erase::<CollaSet>(&());
    let sets: Api<DynamicObject> =
        Api::namespaced_with(scope.client.clone(), &scope.namespace, &resource);
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let honest = serde_json::from_value(honest).unwrap();
    sets.create(&dry, &honest).await.unwrap();

    let grown = bed.peak_mib(0).await - before;
    assert!(grown < GROWTH, "{grown} MiB more than {before}");
    println!("{grown} MiB more than {before}");
}
