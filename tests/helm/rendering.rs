//! The chart renders the objects of `manifests`. No API server is needed.

use std::collections::BTreeSet;

use operating::admission::routes::{ConfigurationSettings, webhook_configurations};
use operating::cli::install::{client_config, names};
use serde_json::{Map, Value, json};
use testbed::rendering;

use super::chart::{NAMESPACE, Objects, chart, container, kustomize, root, template};

/// The annotation by which Helm leaves the CRDs in the cluster.
const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

#[test]
fn lint_finds_nothing() {
    let home = tempfile::tempdir().unwrap();
    let output = rendering::helm(home.path())
        .unwrap()
        .args(["lint", "--strict"])
        .arg(chart())
        .args(["--namespace", NAMESPACE])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("[WARNING]"), "{text}");
}

/// What the chart renders without the annotation that only the CRDs of the chart have.
fn rendered(values: &Value) -> Objects {
    let mut objects = template(&chart(), NAMESPACE, &values.to_string()).unwrap();
    for (key, object) in &mut objects {
        if !key.starts_with("CustomResourceDefinition ") {
            continue;
        }
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        let policy = annotations.shift_remove(RESOURCE_POLICY);
        assert_eq!(policy, Some(json!("keep")), "{key}");
    }
    objects
}

/// Asserts that the chart with these values renders `manifests` with these components, without the Namespace.
fn assert_equal(values: &Value, components: &[&str], expected: impl FnOnce(&mut Objects)) {
    let mut found = rendered(values);
    let mut wanted = kustomize(components);
    wanted.remove(&format!("Namespace {NAMESPACE}"));
    expected(&mut wanted);
    for object in found.values_mut().chain(wanted.values_mut()) {
        sort_by_name(object);
    }
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&wanted), "{values}");
    for (key, object) in &wanted {
        assert_same(&found[key], object, &format!("{values}: {key}"));
    }
}

/// Sorts the lists whose order means nothing: webhooks, volumes and variables.
fn sort_by_name(object: &mut Value) {
    let lists = [
        "/webhooks",
        "/spec/template/spec/volumes",
        "/spec/template/spec/containers/0/volumeMounts",
        "/spec/template/spec/containers/0/env",
    ];
    for list in lists {
        if let Some(Value::Array(list)) = object.pointer_mut(list) {
            list.sort_by_key(|item| item["name"].to_string());
        }
    }
}

/// Numbers are compared as JSON does, which has one kind of them.
fn assert_same(found: &Value, wanted: &Value, path: &str) {
    match (found, wanted) {
        (Value::Object(f), Value::Object(w)) => {
            let keys = |map: &Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
            assert_eq!(keys(f), keys(w), "{path}");
            for (key, found) in f {
                assert_same(found, &w[key], &format!("{path}.{key}"));
            }
        }
        (Value::Array(f), Value::Array(w)) => {
            assert_eq!(f.len(), w.len(), "{path}: {found} is not {wanted}");
            for (index, (f, w)) in f.iter().zip(w).enumerate() {
                assert_same(f, w, &format!("{path}[{index}]"));
            }
        }
        (Value::Number(f), Value::Number(w)) => assert_eq!(f.as_f64(), w.as_f64(), "{path}"),
        _ => assert_eq!(found, wanted, "{path}"),
    }
}

#[test]
fn defaults_equal_manifests() {
    assert_equal(&json!({}), &[], |_| ());
}

#[test]
fn feature_gates_equal_components() {
    let gate = |name: &str, on: bool| json!({"featureGates": {name: on}});
    assert_equal(&gate("CollaSets", false), &["without-collasets"], |_| ());
    assert_equal(
        &gate("ResourceConsist", false),
        &["without-traffic"],
        |_| (),
    );
    let both = json!({"featureGates": {"CollaSets": false, "ResourceConsist": false}});
    assert_equal(&both, &["without-collasets", "without-traffic"], |_| ());
    let graceful = json!({
        "featureGates": {"GraceDeleteWebhook": true},
        "clientCertificates": {"configMap": "operating-callers"},
    });
    assert_equal(&graceful, &["grace-delete", "client-certificates"], |_| ());
}

/// A segment in the paths would be a change of a field that Helm applies.
#[test]
fn self_managed_certificates_equal_component_with_plain_paths() {
    let values = json!({"certificates": "self-managed"});
    assert_equal(&values, &["self-managed-certificates"], |wanted| {
        let deployment = wanted.get_mut("Deployment operating").unwrap();
        let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
        let args = container["args"].as_array_mut().unwrap();
        args.push(json!("--plain-webhook-paths"));
    });
}

/// Kustomize puts a hash into the name of the ConfigMap, and Helm's users expect a checksum at the Pods.
#[test]
fn traffic_equals_component_apart_from_config_map() {
    let text =
        std::fs::read_to_string(root().join("manifests/components/traffic-adapters/traffic.yaml"));
    let config: Value = serde_norway::from_str(&text.unwrap()).unwrap();
    let values = json!({"traffic": {"config": config, "files": {"ca.crt": "pem\nlines\n"}}});
    let mut found = rendered(&values);
    let map = found.remove("ConfigMap operating-traffic").unwrap();
    assert_eq!(map["data"]["ca.crt"], "pem\nlines\n");
    let file = map["data"]["traffic.yaml"].as_str().unwrap();
    assert_eq!(serde_norway::from_str::<Value>(file).unwrap(), config);

    let mut wanted = kustomize(&["traffic-adapters"]);
    wanted.retain(|key, _| !key.starts_with("ConfigMap ") && !key.starts_with("Namespace "));
    let deployment = wanted.get_mut("Deployment operating").unwrap();
    let template = &mut deployment["spec"]["template"];
    template["metadata"]["annotations"] =
        found["Deployment operating"]["spec"]["template"]["metadata"]["annotations"].clone();
    let volumes = template["spec"]["volumes"].as_array_mut().unwrap();
    let traffic = volumes.iter_mut().find(|v| v["name"] == "traffic").unwrap();
    traffic["configMap"]["name"] = json!("operating-traffic");
    for objects in [&mut found, &mut wanted] {
        objects.values_mut().for_each(sort_by_name);
    }
    assert_eq!(found.len(), wanted.len());
    let deployment = "Deployment operating";
    assert_same(&found[deployment], &wanted[deployment], deployment);

    let checksum = |values: &Value| {
        let found = rendered(values);
        found["Deployment operating"]["spec"]["template"]["metadata"]["annotations"].clone()
    };
    let mut other = values.clone();
    other["traffic"]["files"]["ca.crt"] = json!("other");
    assert_ne!(checksum(&values), checksum(&other));
}

#[test]
fn every_object_follows_namespace_of_release() {
    let elsewhere = template(&chart(), "elsewhere", "{}").unwrap();
    for (key, object) in &elsewhere {
        let mentions = object.to_string().matches(NAMESPACE).count();
        // Webhooks and a policy have it among the namespaces that are always excluded.
        let allowed = match key.as_str() {
            "ValidatingAdmissionPolicy excluded-namespaces.operating.kusionstack.io" => 1,
            _ => object["webhooks"].as_array().map_or(0, Vec::len),
        };
        assert_eq!(mentions, allowed, "{key}");
    }
    let settings = ConfigurationSettings {
        client: client_config(None, "elsewhere"),
        namespace: "elsewhere".to_owned(),
        ca_bundle: None,
        grace_delete: false,
        collasets: true,
        cert_manager: Some(format!("elsewhere/{}", names::CERTIFICATE)),
        segment: None,
    };
    let (mutating, validating) = webhook_configurations(&settings);
    let sorted = |mut object: Value| {
        for webhook in object["webhooks"].as_array_mut().unwrap() {
            let excluded = &mut webhook["namespaceSelector"]["matchExpressions"][0]["values"];
            let excluded = excluded.as_array_mut().unwrap();
            excluded.sort_by_key(Value::to_string);
        }
        object
    };
    for wanted in [
        serde_json::to_value(mutating).unwrap(),
        serde_json::to_value(validating).unwrap(),
    ] {
        let (kind, name) = (wanted["kind"].as_str(), wanted["metadata"]["name"].as_str());
        let key = format!("{} {}", kind.unwrap(), name.unwrap());
        assert_eq!(sorted(elsewhere[&key].clone()), sorted(wanted), "{key}");
    }
}

/// cert-manager or the servers own `caBundle`: a value of Helm would take it from them.
#[test]
fn chart_never_sets_ca_bundle() {
    for certificates in ["cert-manager", "self-managed"] {
        let found = rendered(&json!({"certificates": certificates}));
        for (key, object) in found {
            assert!(
                object
                    .get("webhooks")
                    .is_none_or(|w| !w.to_string().contains("caBundle")),
                "{key}"
            );
        }
    }
}

#[test]
fn values_reach_their_fields() {
    let values = json!({
        "image": {"repository": "registry.example.com:5000/team/operating", "tag": "1.2", "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "replicas": 5,
        "requestTimeout": "2m30s",
        "log": {"level": "info,kube=warn", "format": "text"},
        "extraArgs": ["--max-connections=2048"],
        "extraEnv": [{"name": "TZ", "value": "UTC"}],
        "resources": {"limits": {"memory": "2Gi"}},
        "priorityClassName": "",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "infra", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    });
    let found = template(&chart(), NAMESPACE, &values.to_string()).unwrap();
    let deployment = &found["Deployment operating"]["spec"];
    assert_eq!(deployment["replicas"], 5);
    let pod = &deployment["template"]["spec"];
    assert_eq!(pod["imagePullSecrets"], values["imagePullSecrets"]);
    assert_eq!(pod.get("priorityClassName"), None);
    for field in ["nodeSelector", "tolerations", "affinity"] {
        assert_eq!(pod[field], values[field], "{field}");
    }
    let container = container(&found);
    assert_eq!(
        container["image"],
        "registry.example.com:5000/team/operating:1.2"
    );
    assert_eq!(container["imagePullPolicy"], "Always");
    let args = [
        "serve",
        "--leader-elect",
        "--cert-dir=/certs",
        "--log-format=text",
        "--log=info,kube=warn",
        "--request-timeout=2m30s",
        "--max-connections=2048",
    ];
    assert_eq!(container["args"], json!(args));
    assert_eq!(container["env"][2], values["extraEnv"][0]);
    assert_eq!(container["resources"]["limits"]["memory"], "2Gi");
}

#[test]
fn version_is_that_of_program() {
    let text = std::fs::read_to_string(chart().join("Chart.yaml")).unwrap();
    let chart: Value = serde_norway::from_str(&text).unwrap();
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field}");
    }
}

/// The page has a table of the values.
#[test]
fn page_names_every_value() {
    let values = std::fs::read_to_string(chart().join("values.yaml")).unwrap();
    let values: Value = serde_norway::from_str(&values).unwrap();
    let page = std::fs::read_to_string(root().join("docs/install-helm.md")).unwrap();
    for (name, value) in values.as_object().unwrap() {
        let nested = value
            .as_object()
            .filter(|map| !map.is_empty() && name != "resources");
        let rows = match nested {
            Some(map) => map.keys().map(|key| format!("{name}.{key}")).collect(),
            None => vec![name.clone()],
        };
        for row in rows {
            assert!(
                page.contains(&format!("`{row}`")),
                "docs/install-helm.md lacks {row}"
            );
        }
    }
}
