//! The manifests of users still describe what is stored. `kubectl diff` shows at most the empty fields that Kuperator's
//! webhook has stored in the template, and to apply a manifest, which removes these fields, changes nothing else.

use operating::api::collaset::CollaSet;
use serde_json::{Value, json};
use testbed::Bed;

use crate::fixture::{self, kind, name};
use crate::sets::{Set, uids};
use crate::taken_over::taken_over;
use crate::unblock::{release, until_at_rest};

/// Fields that Go writes without a value, and their parents.
const EMPTIES: [(&str, &str); 4] = [
    ("/template/metadata", "creationTimestamp"),
    ("/template/spec/containers/0", "resources"),
    ("/template/containers/0", "resources"),
    ("/volumeClaimTemplates/0", "status"),
];

/// What a user has written, without the defaults of Kuperator's webhook, and without the empty fields that Go writes.
fn manifest(object: &Value) -> Value {
    let mut spec = object["spec"].clone();
    for (parent, key, default) in [
        ("", "scaleStrategy", json!({})),
        (
            "/updateStrategy",
            "podUpgradePolicy",
            json!("InPlaceIfPossible"),
        ),
        ("/updateStrategy/rollingUpdate", "byPartition", json!({})),
        ("/updateStrategy", "rollingUpdate", json!({})),
        ("", "updateStrategy", json!({})),
        ("", "weight", json!(0)),
        ("", "historyLimit", json!(20)),
        ("", "activeDeadlineSeconds", json!(10800)),
        ("", "TTLSecondsAfterFinished", json!(1800)),
    ] {
        remove(&mut spec, parent, key, &default);
    }
    for (parent, key) in EMPTIES {
        for empty in [json!(null), json!({})] {
            remove(&mut spec, parent, key, &empty);
        }
    }
    json!({
        "apiVersion": object["apiVersion"], "kind": kind(object),
        "metadata": { "name": name(object) }, "spec": spec,
    })
}

/// Removes a field that has this value.
fn remove(spec: &mut Value, parent: &str, key: &str, value: &Value) {
    let parent = spec.pointer_mut(parent).and_then(Value::as_object_mut);
    if let Some(parent) = parent.filter(|p| p.get(key) == Some(value)) {
        parent.shift_remove(key);
    }
}

/// The output of `kubectl diff` for an object.
async fn diff(bed: &Bed, namespace: &str, flags: &[&str], object: &Value) -> String {
    let args = [&["diff", "-n", namespace], flags].concat();
    bed.ask_kubectl_about(&args, object).await.text()
}

/// The lines that `kubectl diff` shows as removed or added, without indentation.
fn changed_lines(diff: &str) -> Vec<String> {
    let is_changed = |line: &&str| {
        let is_header = line.starts_with("---") || line.starts_with("+++");
        line.starts_with(['-', '+']) && !is_header
    };
    let trimmed = |line: &str| format!("{}{}", &line[..1], line[1..].trim());
    diff.lines().filter(is_changed).map(trimmed).collect()
}

/// The objects of users that no other test changes.
fn unchanged() -> impl Iterator<Item = Value> {
    let kinds = [
        "CollaSet",
        "PodDecoration",
        "PodTransitionRule",
        "OperationJob",
    ];
    let changed = ["half", "pair", "wait", "deco", "swap", "rec"];
    fixture::objects().into_iter().filter(move |object| {
        let is_unchanged = !changed.contains(&name(object)) || kind(object) == "PodTransitionRule";
        kinds.contains(&kind(object)) && is_unchanged
    })
}

#[tokio::test]
async fn diff_of_manifests_shows_empty_fields_only() {
    let cluster = taken_over().await;
    let namespace = cluster.scope(&cluster.dumped).namespace;
    let empty = [
        "-creationTimestamp: null",
        "-resources: {}",
        "-status: {}",
        "-generation: 1",
        "+generation: 2",
        "-generation: 2",
        "+generation: 3",
    ];
    let server_side = ["--server-side", "--force-conflicts"];
    let mut compared = 0;
    for object in unchanged() {
        for flags in [&[] as &[&str], &server_side] {
            let shown = diff(&cluster.bed, &namespace, flags, &manifest(&object)).await;
            let mut lines = changed_lines(&shown);
            if kind(&object) == "CollaSet" {
                lines.retain(|line| !empty.contains(&&**line));
            }
            assert_eq!(lines, [""; 0], "{shown}");
        }
        compared += 1;
    }
    assert_eq!(compared, 8);
    // A change is shown.
    let idle = unchanged().find(|object| name(object) == "idle");
    let mut changed = manifest(&idle.unwrap());
    changed["spec"]["replicas"] = json!(7);
    let shown = diff(&cluster.bed, &namespace, &[], &changed).await;
    assert!(shown.contains("+  replicas: 7"), "{shown}");
}

/// A manifest is applied in the middle of an update.
#[tokio::test]
async fn applied_manifest_changes_no_pod_and_no_revision() {
    let cluster = taken_over().await;
    let scope = cluster.scope(&cluster.dumped);
    let set = Set::named(&scope, "rec");
    let (before, revision) = (set.pods().await, updated_revision(&set.get().await));
    let object = fixture::objects()
        .into_iter()
        .find(|object| name(object) == "rec");
    let manifest = manifest(&object.unwrap());
    let args = ["apply", "-n", &scope.namespace];
    let applied = cluster
        .bed
        .ask_kubectl_about(&args, &manifest)
        .await
        .success();
    assert!(applied.out.contains("configured"), "{applied:?}");
    let is_observed = |set: &CollaSet| {
        let observed = set.status.as_ref().map(|status| status.observed_generation);
        observed == set.metadata.generation
    };
    let observed = set.until("the new generation", is_observed).await;
    assert_eq!(updated_revision(&observed), revision);
    for (id, pod) in set.pods().await {
        assert_eq!(pod, before[&id], "ID {id}");
    }
    let shown = diff(&cluster.bed, &scope.namespace, &[], &manifest).await;
    assert_eq!(shown, "");

    release(&scope, "rec").await;
    until_at_rest(&set).await;
    assert_eq!(uids(&set.pods().await), uids(&before));
    assert_eq!(set.images().await, ["nginx:2"; 3]);
}

fn updated_revision(set: &CollaSet) -> String {
    set.status.as_ref().unwrap().updated_revision.clone()
}
