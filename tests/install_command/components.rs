//! `manifests` and its components match the code. No API server is needed.

use std::collections::BTreeMap;

use operating::admission::routes::{ClientConfig, ConfigurationSettings, webhook_configurations};
use operating::cli::install::{EnabledFeatures, names, rbac};
use serde::Deserialize;
use serde_json::{Value, json};
use testbed::rendering;

/// Objects of `manifests` with these components, by kind and name.
fn built(components: &[&str]) -> BTreeMap<String, Value> {
    let output = rendering::kustomize(components).unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{components:?}: {text}");
    let mut all = BTreeMap::new();
    for document in serde_norway::Deserializer::from_slice(&output.stdout) {
        let object = Value::deserialize(document).unwrap();
        all.insert(key(&object), object);
    }
    all
}

fn key(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().unwrap();
    format!("{} {name}", object["kind"].as_str().unwrap())
}

fn entries(configuration: &Value) -> BTreeMap<String, Value> {
    let all = configuration["webhooks"].as_array().unwrap();
    let named = all
        .iter()
        .map(|w| (w["name"].as_str().unwrap().to_owned(), w.clone()));
    named.collect()
}

/// The RBAC objects, webhook entries and server arguments of a component equal those of its flags.
fn assert_renders(components: &[&str], parts: EnabledFeatures) {
    let found = built(components);
    let rbac: BTreeMap<_, _> = rbac::rbac_objects(names::NAMESPACE, parts)
        .unwrap()
        .iter()
        .map(|object| serde_json::to_value(object).unwrap())
        .map(|object| (key(&object), object))
        .collect();
    let is_rbac = |key: &str| key.contains("Role") || key.starts_with("ServiceAccount");
    let shown = found.iter().filter(|(key, _)| is_rbac(key));
    let shown: BTreeMap<_, _> = shown.map(|(k, o)| (k.clone(), o.clone())).collect();
    assert_eq!(shown, rbac, "{components:?}");

    let (mutating, validating) = webhook_configurations(&ConfigurationSettings {
        client: ClientConfig::Service {
            name: names::SERVICE.into(),
            namespace: names::NAMESPACE.into(),
            port: names::SERVICE_PORT,
        },
        namespace: names::NAMESPACE.into(),
        ca_bundle: None,
        grace_delete: parts.grace_delete,
        collasets: parts.collasets,
        cert_manager: (!parts.certificates)
            .then(|| format!("{}/{}", names::NAMESPACE, names::CERTIFICATE)),
        segment: None,
    });
    for expected in [
        serde_json::to_value(mutating).unwrap(),
        serde_json::to_value(validating).unwrap(),
    ] {
        let shown = &found[&key(&expected)];
        assert_eq!(entries(shown), entries(&expected), "{components:?}");
        let annotation = "cert-manager.io/inject-ca-from";
        let of = |object: &Value| object["metadata"]["annotations"][annotation].clone();
        assert_eq!(of(shown), of(&expected), "{components:?}");
    }

    let pod = &found["Deployment operating"]["spec"]["template"]["spec"];
    let mut args = vec![
        "serve",
        "--leader-elect",
        "--cert-dir=/certs",
        "--log-format=json",
    ];
    if parts.certificates {
        args.retain(|arg| !arg.starts_with("--cert-dir"));
    }
    args.extend((!parts.collasets).then_some("--feature-gates=CollaSets=false"));
    args.extend(
        parts
            .grace_delete
            .then_some("--feature-gates=GraceDeleteWebhook=true"),
    );
    args.extend((!parts.webhooks).then_some("--fixed-webhooks"));
    assert_eq!(pod["containers"][0]["args"], json!(args), "{components:?}");
    let mounts = pod["volumes"].is_array() && pod["containers"][0]["volumeMounts"].is_array();
    assert_eq!(mounts, !parts.certificates, "{components:?}");
    let issued = found.keys().any(|key| key.starts_with("Certificate "));
    assert_eq!(issued, !parts.certificates, "{components:?}");
}

#[test]
fn each_component_renders_like_its_flags() {
    let usual = EnabledFeatures {
        collasets: true,
        traffic: true,
        grace_delete: false,
        certificates: false,
        webhooks: true,
    };
    assert_renders(&[], usual);
    assert_renders(
        &["without-collasets"],
        EnabledFeatures {
            collasets: false,
            ..usual
        },
    );
    assert_renders(
        &["grace-delete"],
        EnabledFeatures {
            grace_delete: true,
            ..usual
        },
    );
    assert_renders(
        &["fixed-webhooks"],
        EnabledFeatures {
            webhooks: false,
            ..usual
        },
    );
    assert_renders(
        &["self-managed-certificates"],
        EnabledFeatures {
            certificates: true,
            ..usual
        },
    );
    let all = [
        "self-managed-certificates",
        "without-collasets",
        "grace-delete",
        "network-policy",
    ];
    assert_renders(
        &all,
        EnabledFeatures {
            collasets: false,
            ..EnabledFeatures::ALL_FEATURES
        },
    );
}

/// The number behind a port of a Service or NetworkPolicy that names a port of the container.
fn number(found: &BTreeMap<String, Value>, name: &Value) -> Value {
    let containers = &found["Deployment operating"]["spec"]["template"]["spec"]["containers"];
    let ports = containers[0]["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == *name).unwrap();
    port["containerPort"].clone()
}

#[test]
fn service_and_network_policy_use_the_server_ports() {
    let found = built(&["network-policy"]);
    let ports = found["Service operating"]["spec"]["ports"]
        .as_array()
        .unwrap();
    let ports = ports.iter().map(|p| {
        (
            p["name"].clone(),
            p["port"].clone(),
            number(&found, &p["targetPort"]),
        )
    });
    // The defaults of --listen and --metrics-listen.
    assert_eq!(
        ports.collect::<Vec<_>>(),
        [
            (json!("webhook"), json!(names::SERVICE_PORT), json!(9443)),
            (json!("metrics"), json!(8080), json!(8080)),
        ]
    );
    let policy = &found["NetworkPolicy operating"]["spec"];
    let pods = &found["Deployment operating"]["spec"]["selector"];
    assert_eq!(policy["podSelector"], *pods);
    let rules = policy["ingress"].as_array().unwrap();
    let open = rules.iter().map(|rule| {
        (
            number(&found, &rule["ports"][0]["port"]),
            rule["from"].is_null(),
        )
    });
    assert_eq!(
        open.collect::<Vec<_>>(),
        [(json!(9443), true), (json!(8080), false)]
    );
}

#[test]
fn client_certificates_are_mounted_where_the_server_looks() {
    for components in [
        &["client-certificates"][..],
        &["self-managed-certificates", "client-certificates"],
    ] {
        let found = built(components);
        assert_eq!(variable(&found, "OPERATING_CLIENT_NAMES"), "kube-apiserver");
        let (path, callers) = volume(&found, "callers");
        let file = format!("{path}/ca.crt");
        assert_eq!(variable(&found, "OPERATING_CLIENT_CA_FILE"), file);
        assert_eq!(callers["configMap"]["name"], "operating-callers");
    }
}

/// The value of a variable of the server.
fn variable(found: &BTreeMap<String, Value>, name: &str) -> String {
    let pod = &found["Deployment operating"]["spec"]["template"]["spec"];
    let all = pod["containers"][0]["env"].as_array().unwrap();
    let object = all.iter().find(|object| object["name"] == name).unwrap();
    object["value"].as_str().unwrap().to_owned()
}

/// Where a volume of the server is mounted, and the volume.
fn volume(found: &BTreeMap<String, Value>, name: &str) -> (String, Value) {
    let pod = &found["Deployment operating"]["spec"]["template"]["spec"];
    let named = |all: &Value| {
        let all = all.as_array().unwrap();
        all.iter().find(|v| v["name"] == name).unwrap().clone()
    };
    let mount = named(&pod["containers"][0]["volumeMounts"]);
    assert_eq!(mount["readOnly"], true);
    let path = mount["mountPath"].as_str().unwrap().to_owned();
    (path, named(&pod["volumes"]))
}

/// The name of the ConfigMap changes with its content, so a change of the file starts new Pods.
#[test]
fn traffic_config_is_mounted_where_the_server_looks() {
    for components in [
        &["traffic-adapters"][..],
        &["self-managed-certificates", "traffic-adapters"],
    ] {
        let found = built(components);
        let (path, config) = volume(&found, "traffic");
        let file = variable(&found, "OPERATING_TRAFFIC_CONFIG");
        assert_eq!(file, format!("{path}/traffic.yaml"));
        let name = config["configMap"]["name"].as_str().unwrap();
        assert!(name.starts_with("operating-traffic-"), "{name}");
        let map = &found[&format!("ConfigMap {name}")];
        assert_eq!(map["metadata"]["namespace"], names::NAMESPACE);
        assert!(map["data"]["traffic.yaml"].is_string(), "{map}");
        let (path, credentials) = volume(&found, "traffic-credentials");
        assert_eq!(path, "/traffic-credentials");
        let secret =
            json!({ "secretName": "operating-traffic", "defaultMode": 0o440, "optional": true });
        assert_eq!(credentials["secret"], secret);
    }
}
