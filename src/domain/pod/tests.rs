#![allow(clippy::unwrap_used)]
use serde_json::{Value, json};

use super::parse::{MESSAGE_LIMIT, truncate_message};
use super::*;

/// A Pod in this phase whose container `app` in `list` waits for `reason`. Without a reason the container runs.
fn waits(phase: &str, ready: &str, list: &str, reason: Option<&str>) -> Pod {
    let state = match reason {
        Some(reason) => json!({ "waiting": { "reason": reason } }),
        None => json!({ "running": {} }),
    };
    serde_json::from_value(json!({ "status": {
        "phase": phase,
        "conditions": [{ "type": "Ready", "status": ready }],
        list: [{ "name": "fine", "state": { "running": {} } }, { "name": "app", "state": state }],
    } }))
    .unwrap()
}

#[test]
fn pod_that_crashes_or_cannot_start_is_broken() {
    for reason in BROKEN_REASONS {
        for list in ["containerStatuses", "initContainerStatuses"] {
            let pod = waits("Running", "False", list, Some(reason));
            assert!(pod.is_broken(), "{reason} in {list}");
        }
    }
    assert!(waits("Pending", "False", "containerStatuses", None).is_broken());
}

#[test]
fn pod_that_may_recover_is_not_broken() {
    for reason in [None, Some("ContainerCreating"), Some("PodInitializing")] {
        let pod = waits("Running", "False", "containerStatuses", reason);
        assert!(!pod.is_broken(), "{reason:?}");
    }
    let ready = waits(
        "Running",
        "True",
        "containerStatuses",
        Some(BROKEN_REASONS[0]),
    );
    assert!(!ready.is_broken());
    assert!(!Pod::default().is_broken());
}

#[test]
fn new_pod_that_is_neither_available_nor_broken_is_starting() {
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let starting = |created: Option<&str>, patch: Value| {
        let mut pod = json!({
            "metadata": { "creationTimestamp": created },
            "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "False" }] },
        });
        json_patch::merge(&mut pod, &patch);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        pod.is_starting(at("2026-01-01T00:01:00Z"))
    };
    for (created, expected) in [
        (Some("2026-01-01T00:01:00Z"), true),
        (Some("2026-01-01T00:00:31Z"), true),
        (Some("2026-01-01T00:00:30Z"), false),
        (Some("2026-01-01T00:01:29Z"), true), // the API server's clock is ahead
        (Some("2026-01-01T00:01:30Z"), false),
        (Some("yesterday"), false),
        (None, false),
    ] {
        assert_eq!(starting(created, json!({})), expected, "{created:?}");
    }
    let waiting = json!([{ "name": "app", "state": { "waiting": { "reason": "ErrImagePull" } } }]);
    let available = json!({
        "metadata": { "labels": { (keys::SERVICE_AVAILABLE): "1" } },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    for other in [
        json!({ "status": { "phase": "Pending" } }),
        json!({ "status": { "phase": "Failed" } }),
        json!({ "status": { "containerStatuses": waiting } }),
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:01:00Z" } }),
        available,
    ] {
        let case = format!("{other}");
        assert!(!starting(Some("2026-01-01T00:01:00Z"), other), "{case}");
    }
}

#[test]
fn mirror_pod_has_the_annotation_and_a_node_as_controller() {
    let node =
        json!({ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u", "controller": true });
    let but = |patch: Value| {
        let mut owner = node.clone();
        json_patch::merge(&mut owner, &patch);
        owner
    };
    let replica_set = but(json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet" }));
    let no_controller = but(json!({ "controller": null })); // the merge removes the field
    for (owners, expected) in [
        (json!([node]), true),
        (json!([but(json!({ "controller": false }))]), false),
        (json!([no_controller]), false),
        (
            json!([but(json!({ "apiVersion": "example.com/v1" }))]),
            false,
        ),
        (json!([replica_set]), false),
        (json!([replica_set, no_controller]), false),
        (json!([no_controller, replica_set]), false),
        (json!([]), false),
        (json!(null), false),
    ] {
        let metadata = json!({ "annotations": { (keys::MIRROR): "x" }, "ownerReferences": owners });
        let mut pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).unwrap();
        assert_eq!(pod.is_mirror(), expected, "{owners}");
        pod.metadata.annotations.clear();
        assert!(!pod.is_mirror(), "{owners} without the annotation");
    }
}

#[test]
fn cached_pod_keeps_cpu_and_memory_resources() {
    let resources = json!({
        "requests": { "cpu": "1", "example.com/a": "1" },
        "limits": { "memory": "1Gi", "example.com/a": "1", "cpu": null },
        "claims": [{ "name": "gpu" }],
    });
    let resizable = json!({ "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } });
    let container = json!({ "name": "app", "resources": resources });
    let spec = json!({ "containers": [container], "resources": resources });
    let spec: PodSpec = serde_json::from_value(spec).unwrap();
    assert_eq!(spec.containers[0].resources, resizable);
    assert_eq!(*spec.resources, resizable);
    for none in [json!(null), json!({}), json!({ "limits": null })] {
        let spec = json!({ "containers": [{ "resources": none }], "resources": none });
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(spec.containers[0].resources, json!({}));
    }
}

#[test]
fn cached_pod_keeps_its_pvc_volumes() {
    let volumes = json!([
        { "name": "a", "emptyDir": {} },
        { "name": "b", "persistentVolumeClaim": { "claimName": "web-b", "readOnly": true } },
        { "name": "c", "persistentVolumeClaim": null },
    ]);
    let spec: PodSpec = serde_json::from_value(json!({ "volumes": volumes })).unwrap();
    assert_eq!(spec.pvcs, ["web-b"]);
    let none: PodSpec = serde_json::from_value(json!({ "volumes": null })).unwrap();
    assert_eq!(none.pvcs.len(), 0);
}

#[test]
fn container_status_keeps_image_and_waiting_reason() {
    let read = |status| serde_json::from_value::<ContainerStatus>(status).unwrap();
    let running = read(json!({
        "name": "a", "imageID": "sha", "containerID": "run", "ready": true, "state": { "running": {} },
    }));
    assert_eq!(
        (running.image_id.as_str(), running.state.waiting),
        ("sha", None)
    );
    for none in [json!(null), json!({}), json!({ "waiting": null })] {
        assert_eq!(read(json!({ "state": none })).state.waiting, None);
    }
    let waiting = json!({ "reason": "ErrImagePull", "message": "not found" });
    let waiting = read(json!({ "state": { "waiting": waiting } }))
        .state
        .waiting;
    let waiting = waiting.unwrap();
    assert_eq!(
        (waiting.reason.as_str(), waiting.message.as_str()),
        ("ErrImagePull", "not found")
    );
}

#[test]
fn long_message_ends_at_a_word_with_an_ellipsis() {
    let repeated_words = |count| vec!["abc"; count].join(" ");
    assert_eq!(truncate_message(repeated_words(50)), repeated_words(50));
    assert_eq!(
        truncate_message(repeated_words(51)),
        repeated_words(49) + "…"
    );
    assert_eq!(
        truncate_message(format!("x{}", "é".repeat(300))).len(),
        MESSAGE_LIMIT
    );
    for message in [repeated_words(300), "é".repeat(300), String::new()] {
        let once = truncate_message(message);
        assert!(once.len() <= MESSAGE_LIMIT, "{once}");
        assert_eq!(truncate_message(once.clone()), once);
    }
}
