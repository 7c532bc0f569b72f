//! Defaults that the API server writes into a Pod or a PVC if a field is missing. A template that contains a default
//! has the same meaning as one without the field.
//!
//! Source: `SetDefaults_*` of `pkg/apis/core/v1/defaults.go` (Kubernetes 1.36), and the admission plugin
//! `ServiceAccount` for `serviceAccountName`.

use serde_json::{Map, Value, json};

/// Removes defaults from the fields of a struct in normal form.
pub(super) fn drop_defaults(name: &str, fields: &mut Map<String, Value>) {
    match name {
        "PodSpec" => drop_pod_spec_defaults(fields),
        "Container" => drop_container_defaults(fields),
        "ResourceRequirements" => drop_request_defaults(fields),
        // A volume without a source is an empty directory.
        "Volume" if fields.get("emptyDir") == Some(&json!({})) => {
            fields.shift_remove("emptyDir");
        }
        _ => {}
    }
    fields.retain(|key, value| !is_default(name, key, value));
}

fn is_default(name: &str, key: &str, value: &Value) -> bool {
    let text = |default| value.as_str() == Some(default);
    let number = |default| value.as_i64() == Some(default);
    match (name, key) {
        ("PodSpec", "restartPolicy") => text("Always"),
        ("PodSpec", "dnsPolicy") => text("ClusterFirst"),
        ("PodSpec", "schedulerName") => text("default-scheduler"),
        ("PodSpec", "serviceAccountName") => text("default"),
        ("PodSpec", "terminationGracePeriodSeconds") => number(30),
        ("PodSpec", "enableServiceLinks") => value == &json!(true),
        ("PodSpec", "securityContext") => value == &json!({}),
        ("Container", "terminationMessagePath") => text("/dev/termination-log"),
        ("Container", "terminationMessagePolicy") => text("File"),
        ("ContainerPort", "protocol") => text("TCP"),
        ("Probe", "timeoutSeconds" | "successThreshold") => number(1),
        ("Probe", "periodSeconds") => number(10),
        ("Probe", "failureThreshold") => number(3),
        ("HTTPGetAction", "path") => text("/"),
        ("HTTPGetAction", "scheme") => text("HTTP"),
        ("SecurityContext", "procMount") => text("Default"),
        ("ObjectFieldSelector", "apiVersion") => text("v1"),
        (
            "SecretVolumeSource"
            | "ConfigMapVolumeSource"
            | "DownwardAPIVolumeSource"
            | "ProjectedVolumeSource",
            "defaultMode",
        ) => number(0o644),
        ("ServiceAccountTokenProjection", "expirationSeconds") => number(3600),
        ("HostPathVolumeSource", "type") => text(""),
        ("ISCSIVolumeSource", "iscsiInterface") => text("default"),
        ("RBDVolumeSource", "pool") => text("rbd"),
        ("RBDVolumeSource", "user") => text("admin"),
        ("RBDVolumeSource", "keyring") => text("/etc/ceph/keyring"),
        ("AzureDiskVolumeSource", "cachingMode") => text("ReadWrite"),
        ("AzureDiskVolumeSource", "kind") => text("Shared"),
        ("AzureDiskVolumeSource", "fsType") => text("ext4"),
        ("AzureDiskVolumeSource", "readOnly") => value == &json!(false),
        ("ScaleIOVolumeSource", "storageMode") => text("ThinProvisioned"),
        ("ScaleIOVolumeSource", "fsType") => text("xfs"),
        ("PersistentVolumeClaimSpec", "volumeMode") => text("Filesystem"),
        _ => false,
    }
}

fn drop_pod_spec_defaults(spec: &mut Map<String, Value>) {
    // This is the old name of a field. The API server keeps both fields equal.
    if let Some(account) = spec.shift_remove("serviceAccount") {
        spec.entry("serviceAccountName").or_insert(account);
    }
    if spec.get("hostNetwork") != Some(&json!(true)) {
        return;
    }
    // With `hostNetwork` each container port is a port of the node.
    let lists = ["containers", "initContainers"];
    for list in lists {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        let ports = containers
            .into_iter()
            .flatten()
            .filter_map(|c| c.get_mut("ports")?.as_array_mut())
            .flatten();
        for port in ports.filter_map(Value::as_object_mut) {
            if port.get("hostPort") == port.get("containerPort") {
                port.shift_remove("hostPort");
            }
        }
    }
}

fn drop_container_defaults(container: &mut Map<String, Value>) {
    let image = container.get("image").and_then(Value::as_str);
    let usual = default_pull_policy(image.unwrap_or_default());
    if container.get("imagePullPolicy").and_then(Value::as_str) == Some(usual) {
        container.shift_remove("imagePullPolicy");
    }
    let policies = container
        .get_mut("resizePolicy")
        .and_then(Value::as_array_mut);
    if let Some(policies) = policies {
        policies.retain(|policy| policy["restartPolicy"] != "NotRequired");
        if policies.is_empty() {
            container.shift_remove("resizePolicy");
        }
    }
}

/// A missing request defaults to the limit.
fn drop_request_defaults(resources: &mut Map<String, Value>) {
    let Some(limits) = resources.get("limits").cloned() else {
        return;
    };
    let requests = resources.get_mut("requests").and_then(Value::as_object_mut);
    if let Some(requests) = requests {
        requests.retain(|name, amount| limits.get(name) != Some(amount));
        if requests.is_empty() {
            resources.shift_remove("requests");
        }
    }
}

/// The default pull policy of an image.
pub fn default_pull_policy(image: &str) -> &'static str {
    let (named, digest) = match image.split_once('@') {
        Some((named, _)) => (named, true),
        None => (image, false),
    };
    let last = named.rsplit('/').next().unwrap_or_default();
    match last.split_once(':') {
        Some((_, "latest")) => "Always",
        None if !digest => "Always",
        _ => "IfNotPresent",
    }
}

#[cfg(test)]
mod tests {
    use super::super::{POD_TEMPLATE, PVC, normal_form};
    use super::*;

    #[test]
    fn spec_with_all_its_defaults_reads_as_one_without() {
        let brief = json!({ "spec": {
            "hostNetwork": true,
            "containers": [{
                "name": "app", "image": "registry:5000/app:1",
                "ports": [{ "containerPort": 80 }],
                "env": [{ "name": "IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
                "readinessProbe": { "httpGet": { "port": 80 } },
                "resources": { "limits": { "cpu": "1", "memory": "1Gi" } },
            }],
            "volumes": [{ "name": "tmp" }, { "name": "s", "secret": { "secretName": "s" } }],
        } });
        let full = json!({ "spec": {
            "hostNetwork": true, "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler", "serviceAccount": "default", "serviceAccountName": "default",
            "terminationGracePeriodSeconds": 30, "enableServiceLinks": true, "securityContext": {},
            "containers": [{
                "name": "app", "image": "registry:5000/app:1", "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "ports": [{ "containerPort": 80, "hostPort": 80, "protocol": "TCP" }],
                "env": [{ "name": "IP", "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "status.podIP" } } }],
                "readinessProbe": {
                    "httpGet": { "port": 80, "path": "/", "scheme": "HTTP" },
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
                },
                "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "NotRequired" }],
                "resources": { "limits": { "cpu": "1", "memory": "1Gi" }, "requests": { "cpu": "1000m", "memory": "1Gi" } },
            }],
            "volumes": [
                { "name": "tmp", "emptyDir": {} },
                { "name": "s", "secret": { "secretName": "s", "defaultMode": 420 } },
            ],
        } });
        assert_eq!(
            normal_form(&POD_TEMPLATE, &full),
            normal_form(&POD_TEMPLATE, &brief)
        );
        let pvc_template = |mode: Value| json!({ "spec": { "accessModes": ["ReadWriteOnce"], "volumeMode": mode } });
        let [brief, full] =
            [Value::Null, json!("Filesystem")].map(|m| normal_form(&PVC, &pvc_template(m)));
        assert_eq!(brief, full);
        assert_ne!(normal_form(&PVC, &pvc_template(json!("Block"))), brief);
    }

    #[test]
    fn non_default_value_stays() {
        for spec in [
            json!({ "restartPolicy": "Never" }),
            json!({ "serviceAccount": "a" }),
            json!({ "terminationGracePeriodSeconds": 29 }),
            json!({ "enableServiceLinks": false }),
            json!({ "containers": [{ "ports": [{ "containerPort": 80, "hostPort": 80 }] }] }),
            json!({ "containers": [{ "image": "app", "imagePullPolicy": "IfNotPresent" }] }),
            json!({ "containers": [{ "resizePolicy": [{ "resourceName": "cpu", "restartPolicy": "RestartContainer" }] }] }),
            json!({ "containers": [{ "resources": { "limits": { "cpu": "2" }, "requests": { "cpu": "1" } } }] }),
            json!({ "volumes": [{ "emptyDir": { "medium": "Memory" } }] }),
        ] {
            let mut bare = spec.clone();
            let of = |spec: &Value| normal_form(&POD_TEMPLATE, &json!({ "spec": spec }));
            let field = bare.as_object().and_then(|s| s.keys().next().cloned());
            if let (Some(spec), Some(field)) = (bare.as_object_mut(), field) {
                spec.insert(field, Value::Null);
            }
            assert_ne!(of(&spec), of(&bare), "{spec}");
        }
        let port = |host: Value| json!({ "spec": { "containers": [{ "ports": [{ "containerPort": 80, "hostPort": host }] }] } });
        assert_ne!(
            normal_form(&POD_TEMPLATE, &port(json!(80))),
            normal_form(&POD_TEMPLATE, &port(Value::Null)),
            "off the network of the node"
        );
    }

    #[test]
    fn tag_determines_pull_policy() {
        for (image, policy) in [
            ("app", "Always"),
            ("app:latest", "Always"),
            ("host:5000/app", "Always"),
            ("host:5000/app:1", "IfNotPresent"),
            ("app@sha256:0", "IfNotPresent"),
            ("app:latest@sha256:0", "Always"),
        ] {
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }
}
