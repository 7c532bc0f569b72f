//! Every kind of addition, compared with the stored Pod.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use testbed::{Bed, Scope};

use crate::fixtures::{Decoration, containers};
use crate::sets::Set;

/// The decorations of a test, in an order in which they are not applied, and the one Pod that they decorate.
async fn decorated(
    namespace: &str,
    decorations: [(&'static str, i32, Value); 3],
    template: Value,
) -> Pod {
    let scope = Bed::shared().await.scope(namespace).await;
    for (name, weight, additions) in decorations {
        let part = json!({ "weight": weight, "template": additions });
        let part = without_sidecar(part);
        Decoration::new(&scope, name, part).await;
    }
    let set = Set::new(&scope, "web", 1, json!({ "template": template })).await;
    set.pod(0).await
}

/// The additions without the container of the fixtures.
fn without_sidecar(mut part: Value) -> Value {
    let template = part["template"].as_object_mut().unwrap();
    template.entry("containers").or_insert(Value::Null);
    part
}

fn names(containers: &[Container]) -> Vec<&str> {
    containers.iter().map(|c| &*c.name).collect()
}

fn container<'a>(pod: &'a Pod, name: &str) -> &'a Container {
    containers(pod).iter().find(|c| c.name == name).unwrap()
}

fn env(container: &Container) -> BTreeMap<&str, &str> {
    let env = container.env.iter().flatten();
    env.map(|e| (&*e.name, e.value.as_deref().unwrap_or_default()))
        .collect()
}

/// Names of volumes by the path at which a container mounts them, without the token of the service account.
fn mounts(container: &Container) -> BTreeMap<&str, &str> {
    let mounts = container.volume_mounts.iter().flatten();
    mounts
        .filter(|m| !m.name.starts_with("kube-api-access-"))
        .map(|m| (&*m.mount_path, &*m.name))
        .collect()
}

/// Lower weights come first; with equal weights, the name decides.
#[tokio::test]
async fn metadata_of_highest_weight_wins() {
    let decorations = [
        (
            "tie-b",
            10,
            json!({ "metadata": [
            { "patchPolicy": "Overwrite", "labels": { "tier": "b" } },
        ] }),
        ),
        (
            "tie-a",
            10,
            json!({ "metadata": [
            { "patchPolicy": "Overwrite", "labels": { "tier": "a" } },
            { "patchPolicy": "Retain", "labels": { "extra": "a" } },
            { "patchPolicy": "MergePatchJson", "annotations": {
                "conf": r#"{"b":2,"n":{"x":null,"y":2}}"#, "fresh": r#"{"z":1}"#,
            } },
        ] }),
        ),
        (
            "first",
            -1,
            json!({ "metadata": [
            { "patchPolicy": "Retain", "labels": { "tier": "first", "extra": "first" },
              "annotations": { "note": "first" } },
        ] }),
        ),
    ];
    let template = json!({ "metadata": {
        "labels": { "app": "web", "tier": "own" },
        "annotations": { "conf": r#"{"a":1,"n":{"x":1}}"# },
    } });
    let pod = decorated("patch-metadata", decorations, template).await;
    let label = |key: &str| pod.labels().get(key).map(String::as_str);
    assert_eq!([label("tier"), label("extra")], [Some("b"), Some("first")]);
    let document = |key: &str| serde_json::from_str::<Value>(&pod.annotations()[key]).unwrap();
    assert_eq!(document("conf"), json!({ "a": 1, "b": 2, "n": { "y": 2 } }));
    assert_eq!(document("fresh"), json!({ "z": 1 }));
    assert_eq!(pod.annotations()["note"], "first");
}

#[tokio::test]
async fn containers_are_placed_replaced_and_patched() {
    let new = |name: &str, image: &str, place: &str| json!({ "name": name, "image": image, "injectPolicy": format!("{place}PrimaryContainer") });
    let decorations = [
        (
            "tie-b",
            10,
            json!({ "primaryContainers": [
            { "targetPolicy": "ByName", "name": "app", "image": "app:b", "env": [{ "name": "MODE", "value": "b" }] },
        ] }),
        ),
        (
            "tie-a",
            10,
            json!({
                "initContainers": [{ "name": "init", "image": "init:a" }, { "name": "prepare", "image": "prepare:1" }],
                "primaryContainers": [
                    { "targetPolicy": "First", "env": [{ "name": "FIRST", "value": "1" }] },
                    { "targetPolicy": "Last", "env": [{ "name": "LAST", "value": "1" }] },
                    { "targetPolicy": "All", "env": [{ "name": "ALL", "value": "1" }] },
                    { "targetPolicy": "ByName", "name": "s1", "env": [{ "name": "NAMED", "value": "1" }] },
                ],
                // The name of the first one is taken, so the container is replaced where it is.
                "containers": [new("s2", "s:a", "After"), new("s0", "s:1", "Before"), new("t2", "t:1", "After")],
            }),
        ),
        (
            "first",
            -1,
            json!({ "containers": [
            new("s1", "s:1", "Before"), new("s2", "s:1", "Before"), new("t1", "t:1", "After"),
        ] }),
        ),
    ];
    let template = json!({ "spec": {
        "initContainers": [{ "name": "init", "image": "init:1" }],
        "containers": [
            { "name": "app", "image": "app:1", "env": [{ "name": "MODE", "value": "own" }] },
            { "name": "proxy", "image": "proxy:1" },
        ],
    } });
    let pod = decorated("patch-containers", decorations, template).await;
    let init = pod.spec.as_ref().unwrap().init_containers.clone().unwrap();
    assert_eq!(names(&init), ["init", "prepare"]);
    assert_eq!(init[0].image.as_deref(), Some("init:1"));
    let order = ["s0", "s1", "s2", "app", "proxy", "t1", "t2"];
    assert_eq!(names(containers(&pod)), order);
    let images = containers(&pod).iter().map(|c| c.image.as_deref().unwrap());
    let wanted = ["s:1", "s:1", "s:a", "app:b", "proxy:1", "t:1", "t:1"];
    assert_eq!(images.collect::<Vec<_>>(), wanted);
    let env_of = |name: &str| env(container(&pod, name));
    let app = [("ALL", "1"), ("FIRST", "1"), ("MODE", "b")];
    assert_eq!(env_of("app"), BTreeMap::from(app));
    assert_eq!(
        env_of("proxy"),
        BTreeMap::from([("ALL", "1"), ("LAST", "1")])
    );
    assert_eq!(env_of("s1"), BTreeMap::from([("NAMED", "1")]));
    // First, Last and All mean the containers of the template.
    for other in ["s0", "s2", "t1", "t2"] {
        assert_eq!(env_of(other), BTreeMap::new(), "{other}");
    }
}

#[tokio::test]
async fn mounts_are_replaced_by_path_and_volumes_by_name() {
    let mount = |volume: &str, path: &str| json!({ "name": volume, "mountPath": path });
    let decorations = [
        (
            "tie-b",
            10,
            json!({ "primaryContainers": [
            { "targetPolicy": "ByName", "name": "app", "volumeMounts": [mount("cache", "/data")] },
        ] }),
        ),
        (
            "tie-a",
            10,
            json!({
                "volumes": [{ "name": "data", "emptyDir": { "medium": "Memory" } }],
                "primaryContainers": [
                    { "targetPolicy": "All", "volumeMounts": [mount("cache", "/cache"), mount("data", "/more")] },
                ],
            }),
        ),
        (
            "first",
            -1,
            json!({ "volumes": [{ "name": "cache", "emptyDir": {} }] }),
        ),
    ];
    let template = json!({ "spec": {
        "volumes": [{ "name": "data", "emptyDir": {} }],
        "containers": [{ "name": "app", "image": "app:1", "volumeMounts": [mount("data", "/data")] }],
    } });
    let pod = decorated("patch-mounts", decorations, template).await;
    let wanted = [("/cache", "cache"), ("/data", "cache"), ("/more", "data")];
    assert_eq!(mounts(container(&pod, "app")), BTreeMap::from(wanted));
    let volumes = pod.spec.as_ref().unwrap().volumes.iter().flatten();
    let sources: BTreeMap<_, _> = volumes
        .filter(|v| !v.name.starts_with("kube-api-access-"))
        .map(|v| (&*v.name, json!(v.empty_dir)))
        .collect();
    let wanted = [
        ("cache", json!({})),
        ("data", json!({ "medium": "Memory" })),
    ];
    assert_eq!(sources, BTreeMap::from(wanted));
}

/// Creates a RuntimeClass, which the API server demands of a Pod that names it.
async fn runtime_class(scope: &Scope) -> String {
    let api: Api<RuntimeClass> = Api::all(scope.client.clone());
    let class = json!({ "metadata": { "name": scope.namespace }, "handler": "sandbox" });
    let class = serde_json::from_value(class).unwrap();
    api.create(&PostParams::default(), &class).await.unwrap();
    scope.namespace.clone()
}

#[tokio::test]
async fn placement_on_nodes_is_replaced_and_extended() {
    let scope = Bed::shared().await.scope("patch-nodes").await;
    let class = runtime_class(&scope).await;
    let absent =
        |key: &str| json!({ "matchExpressions": [{ "key": key, "operator": "DoesNotExist" }] });
    let toleration = |key: &str, effect: &str, operator: &str| json!({ "key": key, "effect": effect, "operator": operator });
    let decorations = [
        (
            "later",
            1,
            json!({
                "affinity": { "nodeSelectorTerms": [absent("plane.test/b")] },
                "tolerations": [toleration("one", "NoExecute", "Exists"), toleration("two", "NoSchedule", "Exists")],
            }),
        ),
        (
            "first",
            0,
            json!({
                "affinity": { "overrideAffinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [absent("plane.test/a")] },
                } } },
                "tolerations": [toleration("one", "NoSchedule", "Exists")],
                "runtimeClassName": class,
            }),
        ),
    ];
    for (name, weight, additions) in decorations {
        let part = json!({ "weight": weight, "template": additions });
        Decoration::new(&scope, name, without_sidecar(part)).await;
    }
    let term =
        json!({ "topologyKey": "zone", "labelSelector": { "matchLabels": { "app": "web" } } });
    let template = json!({ "spec": {
        "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 1, "podAffinityTerm": term },
        ] } },
        "tolerations": [{ "key": "one", "effect": "NoSchedule", "operator": "Equal", "value": "own" }],
    } });
    let set = Set::new(&scope, "web", 1, json!({ "template": template })).await;
    let spec = json!(set.pod(0).await.spec);
    let wanted = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [absent("plane.test/a"), absent("plane.test/b")],
    } } });
    assert_eq!(spec["affinity"], wanted);
    assert_eq!(spec["runtimeClassName"], json!(class));
    let tolerations = spec["tolerations"].as_array().unwrap().iter();
    let own = |t: &&Value| !t["key"].as_str().unwrap().contains("node.kubernetes.io");
    let own: Vec<_> = tolerations.filter(own).cloned().collect();
    let wanted = [
        toleration("one", "NoSchedule", "Exists"),
        toleration("one", "NoExecute", "Exists"),
        toleration("two", "NoSchedule", "Exists"),
    ];
    assert_eq!(own, wanted);
}
