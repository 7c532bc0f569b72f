//! Objects as an API server sends them, with realistic sizes.

use operating::api::keys;
use serde_json::{Value, json};

/// A kind of object: a description, its path, a function that makes an object by its number, and the recorded bytes.
type Kind = (&'static str, &'static str, fn(usize) -> Value, usize);

pub const ALL: [Kind; 4] = [
    (
        "managed Pod of a ReplicaSet",
        "/api/v1/pods",
        pod_of_set,
        super::POD,
    ),
    (
        "managed Pod of a StatefulSet",
        "/api/v1/pods",
        pod_of_stateful_set,
        super::STATEFUL_POD,
    ),
    (
        "old ReplicaSet",
        "/apis/apps/v1/replicasets",
        old_set,
        super::OLD_SET,
    ),
    (
        "PodTransitionRule",
        "/apis/apps.kusionstack.io/v1alpha1/podtransitionrules",
        rule,
        super::RULE,
    ),
];

/// An oversized object: its large part, its path, and a function that makes an object by its number.
type Hostile = (&'static str, &'static str, fn(usize) -> Value);

pub const HOSTILE: [Hostile; 5] = [
    (
        "Pod of 14,000 resources",
        "/api/v1/pods",
        pod_of_many_resources,
    ),
    ("Pod of 8,000 labels", "/api/v1/pods", pod_of_many_labels),
    ("Pod of 4,000 owners", "/api/v1/pods", pod_of_many_owners),
    ("Pod of a long image", "/api/v1/pods", pod_of_a_long_image),
    (
        "Deployment of 8,000 labels",
        "/apis/apps/v1/deployments",
        deployment_of_many_labels,
    ),
];

const TIME: &str = "2026-03-01T10:00:00Z";

fn uid(kind: &str, n: usize) -> String {
    format!("{kind:0>8}-0000-4000-8000-{n:012}")
}

fn namespace(n: usize) -> String {
    format!("team-{:03}-production", n / 100)
}

/// Annotations and managed fields as other admission webhooks and controllers leave them: often larger than the rest of
/// the object.
fn managed_fields() -> Value {
    let fields = json!({ "f:metadata": { "f:labels": { ".": {}, "f:app": {}, "f:tier": {}, "f:version": {} } },
        "f:spec": { "f:containers": { "k:{\"name\":\"main\"}": { ".": {}, "f:image": {}, "f:env": {} } } } });
    let entry = |manager: &str| {
        json!({ "manager": manager, "operation": "Update", "apiVersion": "v1", "time": TIME,
            "fieldsType": "FieldsV1", "fieldsV1": fields })
    };
    json!([
        entry("kube-controller-manager"),
        entry("kubelet"),
        entry("operating")
    ])
}

fn pod_of_set(n: usize) -> Value {
    let set = format!("checkout-service-{:04}-5d8f9c7b6d", n / 10);
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": set, "uid": uid("e5", n / 10),
        "controller": true, "blockOwnerDeletion": true });
    let mut pod = pod(n, &format!("{set}-{n:05}"), &owner);
    pod["metadata"]["generateName"] = json!(format!("{set}-"));
    pod["metadata"]["labels"]["pod-template-hash"] = json!("5d8f9c7b6d");
    pod
}

fn pod_of_stateful_set(n: usize) -> Value {
    let set = format!("orders-database-{:04}", n / 10);
    let name = format!("{set}-{}", n % 10);
    let owner = json!({ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set, "uid": uid("e6", n / 10),
        "controller": true, "blockOwnerDeletion": true });
    let mut pod = pod(n, &name, &owner);
    let labels = &mut pod["metadata"]["labels"];
    labels["statefulset.kubernetes.io/pod-name"] = json!(name);
    labels["apps.kubernetes.io/pod-index"] = json!((n % 10).to_string());
    labels["controller-revision-hash"] = json!(format!("{set}-6b9f8d7c5f"));
    let volume =
        json!({ "name": "data", "persistentVolumeClaim": { "claimName": format!("data-{name}") } });
    pod["spec"]["volumes"].as_array_mut().unwrap().push(volume);
    pod
}

fn pod(n: usize, name: &str, owner: &Value) -> Value {
    let environment: Vec<_> = (0..20)
        .map(|i| json!({ "name": format!("VARIABLE_{i}"), "value": "a value of some length" }))
        .collect();
    let container = |name: &str, image: &str| {
        json!({
            "name": name, "image": image, "imagePullPolicy": "IfNotPresent", "env": environment,
            "ports": [{ "name": "http", "containerPort": 8080, "protocol": "TCP" }],
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "cpu": "1", "memory": "256Mi" } },
            "readinessProbe": { "httpGet": { "path": "/ready", "port": 8080, "scheme": "HTTP" }, "periodSeconds": 10 },
            "volumeMounts": [{ "name": "token", "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" }],
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
        })
    };
    let status = |i: usize, name: &str, image: &str| {
        json!({
            "name": name, "image": image, "ready": true, "started": true, "restartCount": 0,
            "imageID": format!("{image}@sha256:{i:064}"), "containerID": format!("containerd://{n:062}{i:02}"),
            "state": { "running": { "startedAt": TIME } }, "lastState": {},
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "cpu": "1", "memory": "256Mi" } },
        })
    };
    let condition = |type_: &str| json!({ "type": type_, "status": "True", "lastProbeTime": null, "lastTransitionTime": TIME, "observedGeneration": 1 });
    let conditions = [
        "PodReadyToStartContainers",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodScheduled",
        keys::SERVICE_READY,
    ]
    .map(condition);
    let (web, proxy) = (
        "registry.example.com/team/checkout:v1.20.3",
        "registry.example.com/mesh/proxy:v1.4.0",
    );
    let app = name.rsplit_once('-').unwrap().0;
    json!({
        "metadata": {
            "name": name, "namespace": namespace(n), "uid": uid("a0", n), "resourceVersion": (50_000 + n).to_string(),
            "generation": 1, "creationTimestamp": TIME, "ownerReferences": [owner], "managedFields": managed_fields(),
            "labels": {
                "app.kubernetes.io/name": app, "app.kubernetes.io/version": "v1.20.3", "team": "payments", "tier": "backend",
                (keys::CONTROL): keys::CONTROL_VALUE, (keys::SERVICE_AVAILABLE): (1_767_225_600_000_000_000 + n).to_string(),
            },
            "annotations": { "prometheus.io/scrape": "true", "checksum/config": "x".repeat(64) },
        },
        "spec": {
            "containers": [container("main", web), container("proxy", proxy)],
            "readinessGates": [{ "conditionType": keys::SERVICE_READY }], "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
            "nodeName": format!("node-{:04}", n / 30), "serviceAccountName": "default", "schedulerName": "default-scheduler",
            "volumes": [{ "name": "token", "projected": { "sources": [{ "serviceAccountToken": { "path": "token" } }] } }],
        },
        "status": {
            "phase": "Running", "podIP": "10.1.2.3", "hostIP": "10.0.0.7", "startTime": TIME, "qosClass": "Burstable",
            "observedGeneration": 1,
            "conditions": conditions,
            "containerStatuses": [status(0, "main", web), status(1, "proxy", proxy)],
        },
    })
}

fn old_set(n: usize) -> Value {
    let deployment = format!("checkout-service-{:04}", n / 10);
    let hash = format!("{:010}", n % 10);
    let labels = json!({ "app.kubernetes.io/name": deployment, "team": "payments", "pod-template-hash": hash });
    let environment: Vec<_> = (0..20)
        .map(|i| json!({ "name": format!("VARIABLE_{i}"), "value": "a value of some length" }))
        .collect();
    json!({
        "metadata": {
            "name": format!("{deployment}-{hash}"), "namespace": namespace(n), "uid": uid("e5", n), "generation": 4,
            "resourceVersion": (50_000 + n).to_string(), "creationTimestamp": TIME, "labels": labels,
            "annotations": { "deployment.kubernetes.io/revision": (n % 10).to_string(), "deployment.kubernetes.io/desired-replicas": "10" },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "Deployment", "name": deployment, "uid": uid("d0", n / 10),
                "controller": true, "blockOwnerDeletion": true }],
            "managedFields": managed_fields(),
        },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "main",
                "image": "registry.example.com/team/checkout:v1.20.3", "env": environment }] } },
        },
        "status": { "replicas": 0, "observedGeneration": 4 },
    })
}

fn rule(n: usize) -> Value {
    let app = format!("checkout-service-{n:04}");
    let pods: Vec<_> = (0..10)
        .map(|i| format!("{app}-5d8f9c7b6d-{i:05}"))
        .collect();
    json!({
        "metadata": {
            "name": app, "namespace": namespace(n * 10), "uid": uid("b0", n), "resourceVersion": (50_000 + n).to_string(),
            "generation": 1, "creationTimestamp": TIME, "managedFields": managed_fields(),
        },
        "spec": {
            "selector": { "matchLabels": { "app.kubernetes.io/name": app } },
            "rules": [{ "name": "half", "availablePolicy": { "maxUnavailableValue": "50%" } }],
        },
        "status": {
            "observedGeneration": 1, "expectedPods": 10, "availablePods": 10, "unavailablePods": 0, "unavailableLimit": 5,
            "disruptionsAllowed": 5, "waitingPods": 0, "selectedPods": 10, "targets": pods, "details": [], "updateTime": TIME,
        },
    })
}

fn pod_of_many_resources(n: usize) -> Value {
    let mut pod = pod_of_set(n);
    let resources = (0..14_000).map(|i| (format!("example.com/resource-{n}-{i}"), json!("1")));
    pod["spec"]["containers"][0]["resources"]["limits"] = Value::Object(resources.collect());
    pod
}

fn pod_of_many_labels(n: usize) -> Value {
    let mut pod = pod_of_set(n);
    for i in 0..8_000 {
        pod["metadata"]["labels"][format!("example.com/label-{n}-{i}")] = json!("x".repeat(63));
    }
    pod
}

fn pod_of_many_owners(n: usize) -> Value {
    let mut pod = pod_of_set(n);
    let owners = pod["metadata"]["ownerReferences"].as_array_mut().unwrap();
    owners.extend((0..4_000).map(|i| {
        json!({ "apiVersion": "example.com/v1", "kind": format!("Kind{i}"), "name": format!("{n}-{i}"), "uid": uid("f0", i) })
    }));
    pod
}

fn pod_of_a_long_image(n: usize) -> Value {
    let mut pod = pod_of_set(n);
    pod["spec"]["containers"][0]["image"] = json!("x".repeat(1_000_000 + n));
    pod
}

fn deployment_of_many_labels(n: usize) -> Value {
    let pod = pod_of_many_labels(n);
    let labels = &pod["metadata"]["labels"];
    json!({
        "metadata": { "name": format!("web-{n}"), "namespace": namespace(n), "uid": uid("d0", n), "resourceVersion": "7" },
        "spec": {
            "replicas": 0, "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels } },
        },
    })
}
