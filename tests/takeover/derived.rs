//! Phases that the dump does not contain, made from its objects by the labels that Kuperator writes in these phases.
//! They are in a namespace of their own.
//!
//! The dump was taken when `wait` had completed its rollout. Its sets `rec` and `pair` have the policy
//! `InPlaceIfPossible`, and its Pod of `gone` has a label for deletion that Kuperator does not read.

use serde_json::{Value, json};

use crate::fixture::{self, kind, name};

/// Operations in the dump began at this time, in nanoseconds since 1970.
const BEGIN: &str = "1795303679383286771";
const AVAILABLE: &str = "podopslifecycle.kusionstack.io/service-available";

pub fn objects() -> Vec<Value> {
    [recreating(), waiting(), replacing(), deleting()].concat()
}

/// The objects that belong to a set of the dump.
fn of_set(set: &str) -> Vec<Value> {
    let is_of_set = |object: &Value| {
        let is_own = name(object) == set;
        is_own || name(object).starts_with(&format!("{set}-"))
    };
    fixture::objects().into_iter().filter(is_of_set).collect()
}

fn label(object: &mut Value, key: &str, value: impl Into<Value>) {
    object["metadata"]["labels"][key] = value.into();
}

fn unlabel(object: &mut Value, key: &str) {
    let labels = object["metadata"]["labels"].as_object_mut().unwrap();
    labels.remove(key).unwrap();
}

/// Gives a Pod the labels of an operation in a phase.
fn operation(pod: &mut Value, id: &str, of_type: &str, phase: &str) {
    let mut set = |family: &str, suffix: &str, value: &str| {
        let key = format!("{family}.podopslifecycle.kusionstack.io/{suffix}");
        label(pod, &key, value);
    };
    set("operating", id, BEGIN);
    set("operation-type", id, of_type);
    set(phase, id, BEGIN);
    if phase != "pre-check" {
        set("pre-checked", id, BEGIN);
        set("operation-permission", of_type, BEGIN);
    }
}

/// Takes a Pod off traffic.
fn off_traffic(pod: &mut Value) {
    unlabel(pod, AVAILABLE);
    for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
        let gates = ["Ready", "pod.kusionstack.io/service-ready"];
        if gates.contains(&condition["type"].as_str().unwrap()) {
            condition["status"] = json!("False");
        }
    }
}

fn set_image(pod: &mut Value, image: &str, revision: &str) {
    pod["spec"]["containers"][0]["image"] = json!(image);
    pod["status"]["containerStatuses"][0]["image"] = json!(image);
    label(pod, "controller-revision-hash", revision);
}

/// A set of the policy `Recreate` whose Pods are in Preparing.
fn recreating() -> Vec<Value> {
    let mut all = of_set("rec");
    for object in &mut all {
        match kind(object) {
            "CollaSet" => object["spec"]["updateStrategy"]["podUpgradePolicy"] = json!("Recreate"),
            "Pod" => label(
                object,
                "podopslifecycle.kusionstack.io/preparing-to-delete",
                BEGIN,
            ),
            _ => (),
        }
    }
    all
}

/// A rollout under a rule of 1: a Pod is in Operate, and three Pods are in PreCheck.
fn waiting() -> Vec<Value> {
    const BEFORE: &str = "wait-6459bd884b";
    let mut all = of_set("wait");
    let mut is_first = true;
    for object in &mut all {
        match kind(object) {
            "CollaSet" => {
                let status = object["status"].as_object_mut().unwrap();
                status.retain(|key, _| !key.starts_with("updated") || key == "updatedRevision");
                status["currentRevision"] = json!(BEFORE);
                status.insert("operatingReplicas".to_owned(), json!(4));
                for key in ["availableReplicas", "readyReplicas"] {
                    status[key] = json!(3);
                }
            }
            "Pod" => {
                set_image(object, "nginx:1", BEFORE);
                object["metadata"]["generation"] = json!(1);
                let phase = match std::mem::take(&mut is_first) {
                    true => "operate",
                    false => "pre-check",
                };
                operation(object, "collaset", "update", phase);
                if phase == "operate" {
                    off_traffic(object);
                }
            }
            "ResourceContext" => {
                for context in object["spec"]["contexts"].as_array_mut().unwrap() {
                    context["data"]["Revision"] = json!(BEFORE);
                }
            }
            _ => (),
        }
    }
    all
}

/// An update of the policy `Replace` to an image that cannot be pulled: both Pods are in open pairs.
fn replacing() -> Vec<Value> {
    const BEFORE: &str = "pair-76f4f54bff";
    const AFTER: &str = "pair-9c9f6f745";
    let mut all = of_set("pair");
    let mut new = Vec::new();
    for object in &mut all {
        match kind(object) {
            "CollaSet" => {
                object["spec"]["updateStrategy"]["podUpgradePolicy"] = json!("Replace");
                object["status"]["replicas"] = json!(4);
            }
            "Pod" => {
                object["metadata"]["generation"] = json!(1);
                let mut half = object.clone();
                let (origin, id) = (name(object).to_owned(), instance_id(object));
                let new_id = (id + 2).to_string();
                half["metadata"]["name"] = json!(format!("pair-new{id}"));
                half["metadata"]["uid"] = json!(format!("new-{id}"));
                half["status"]["phase"] = json!("Pending");
                label(
                    &mut half,
                    "collaset.kusionstack.io/instance-id",
                    new_id.clone(),
                );
                label(
                    &mut half,
                    "collaset.kusionstack.io/replace-pair-origin-name",
                    origin,
                );
                label(&mut half, "podopslifecycle.kusionstack.io/creating", BEGIN);
                new.push(half);
                serving(object);
                set_image(object, "nginx:1", BEFORE);
                label(object, "collaset.kusionstack.io/to-replace", BEGIN);
                label(
                    object,
                    "collaset.kusionstack.io/replaced-by-replace-update",
                    AFTER,
                );
                label(
                    object,
                    "collaset.kusionstack.io/replace-pair-new-id",
                    new_id,
                );
            }
            "ResourceContext" => object["spec"]["contexts"] = pool_of_pairs(BEFORE, AFTER),
            _ => (),
        }
    }
    all.append(&mut new);
    all
}

fn instance_id(pod: &Value) -> i64 {
    let id = &pod["metadata"]["labels"]["collaset.kusionstack.io/instance-id"];
    id.as_str().unwrap().parse().unwrap()
}

/// Puts a Pod on traffic whose image could not be pulled.
fn serving(pod: &mut Value) {
    label(pod, AVAILABLE, BEGIN);
    for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
        condition["status"] = json!("True");
    }
    let status = &mut pod["status"]["containerStatuses"][0];
    status["ready"] = json!(true);
    status["started"] = json!(true);
    status["imageID"] = json!("example.com/image@sha256:1");
    status["state"] = json!({ "running": { "startedAt": "2026-11-21T23:27:52Z" } });
}

fn pool_of_pairs(before: &str, after: &str) -> Value {
    let entry = |id: i64, revision: &str, link: &str, other: i64| {
        let mut data =
            json!({ "Owner": "pair", "PodDecorationRevisions": "[]", "Revision": revision });
        data[link] = json!(other.to_string());
        json!({ "id": id, "data": data })
    };
    let origins = (0..2).map(|id| entry(id, before, "ReplaceNewPodID", id + 2));
    let new = (2..4).map(|id| entry(id, after, "ReplaceOriginPodID", id - 2));
    origins.chain(new).collect()
}

/// A Pod to delete that a finalizer holds in Preparing.
fn deleting() -> Vec<Value> {
    let mut all = of_set("gone");
    let stale = "podopslifecycle.kusionstack.io/to-delete";
    for object in &mut all {
        if kind(object) == "Pod" && object["metadata"]["labels"].get(stale).is_some() {
            unlabel(object, stale);
            label(object, "collaset.kusionstack.io/to-delete", BEGIN);
            label(
                object,
                "podopslifecycle.kusionstack.io/preparing-to-delete",
                BEGIN,
            );
            operation(object, "pod-delete", "delete", "preparing");
            off_traffic(object);
        }
        if kind(object) == "CollaSet" {
            for key in [
                "availableReplicas",
                "readyReplicas",
                "updatedAvailableReplicas",
                "updatedReadyReplicas",
            ] {
                object["status"][key] = json!(2);
            }
        }
    }
    all
}
