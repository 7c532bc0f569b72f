//! Bad values are refused, and the message names the value.

use serde_json::{Value, json};

use super::chart::{NAMESPACE, chart, template};

fn refusal(values: &Value) -> String {
    match template(&chart(), NAMESPACE, &values.to_string()) {
        Err(text) => text,
        Ok(_) => panic!("accepted: {values}"),
    }
}

#[test]
fn bad_values_are_refused_by_name() {
    for (values, named) in [
        (json!({"replica": 3}), "'replica'"),
        (json!({"replicas": 0}), "/replicas"),
        (json!({"replicas": "3"}), "/replicas"),
        (json!({"replicas": 2.5}), "/replicas"),
        (json!({"image": {"name": "x"}}), "'name'"),
        (json!({"image": "operating:1"}), "image"),
        (json!({"image": {"repository": ""}}), "/image/repository"),
        (
            json!({"image": {"repository": "Team/x"}}),
            "/image/repository",
        ),
        (json!({"image": {"tag": "a b"}}), "/image/tag"),
        (json!({"image": {"tag": 1.2}}), "/image/tag"),
        (
            json!({"image": {"tag": format!("@sha256:{}", "0".repeat(64))}}),
            "/image/tag",
        ),
        (
            json!({"image": {"pullPolicy": "always"}}),
            "/image/pullPolicy",
        ),
        (
            json!({"imagePullSecrets": ["registry"]}),
            "/imagePullSecrets/0",
        ),
        (json!({"featureGates": {"Collasets": false}}), "'Collasets'"),
        (
            json!({"featureGates": {"CollaSets": "false"}}),
            "/featureGates/CollaSets",
        ),
        (json!({"certificates": "none"}), "/certificates"),
        (json!({"certificates": {"enabled": true}}), "certificates"),
        (
            json!({"clientCertificates": {"configMap": "A"}}),
            "/clientCertificates/configMap",
        ),
        (
            json!({"clientCertificates": {"names": []}}),
            "/clientCertificates/names",
        ),
        (
            json!({"traffic": {"config": "default: endpoints"}}),
            "/traffic/config",
        ),
        (json!({"traffic": {"files": {"a/b": "x"}}}), "a/b"),
        (
            json!({"traffic": {"files": {"traffic.yaml": "x"}}}),
            "traffic.yaml",
        ),
        (json!({"requestTimeout": 60}), "/requestTimeout"),
        (json!({"requestTimeout": "60"}), "/requestTimeout"),
        (json!({"log": {"format": "yaml"}}), "/log/format"),
        (json!({"log": {"level": ""}}), "/log/level"),
        (json!({"extraArgs": "--trust-callers"}), "/extraArgs"),
        (json!({"extraArgs": ["--cert-dir=/x"]}), "/extraArgs/0"),
        (
            json!({"extraArgs": ["--feature-gates", "CollaSets=false"]}),
            "/extraArgs/0",
        ),
        (json!({"extraEnv": [{"value": "x"}]}), "/extraEnv/0"),
        (
            json!({"extraEnv": [{"name": "POD_NAME"}]}),
            "/extraEnv/0/name",
        ),
        (
            json!({"extraEnv": [{"name": "OPERATING_TRUST_CALLERS"}]}),
            "/extraEnv/0/name",
        ),
        (json!({"resources": ["memory"]}), "resources"),
        (json!({"priorityClassName": 1}), "/priorityClassName"),
        (json!({"nodeSelector": {"a": true}}), "/nodeSelector/a"),
        (json!({"tolerations": {"key": "a"}}), "/tolerations"),
        (json!({"affinity": "none"}), "affinity"),
    ] {
        let text = refusal(&values);
        assert!(text.contains(named), "{values} is refused by:\n{text}");
    }
}

/// The schema cannot compare values.
#[test]
fn contradictions_are_refused_with_remedy() {
    let graceful = json!({"featureGates": {"GraceDeleteWebhook": true}});
    let text = refusal(&graceful);
    let remedy = "set clientCertificates.configMap, or add --trust-callers to extraArgs";
    assert!(text.contains(remedy), "{text}");
    let mut trusted = graceful;
    trusted["extraArgs"] = json!(["--trust-callers"]);
    template(&chart(), NAMESPACE, &trusted.to_string()).unwrap();
    trusted["clientCertificates"] = json!({"configMap": "operating-callers"});
    let text = refusal(&trusted);
    assert!(text.contains("use one of them"), "{text}");
    let text = refusal(&json!({"traffic": {"files": {"ca.crt": "x"}}}));
    assert!(text.contains("traffic.config is not"), "{text}");
}

/// The server protects no Pod in its own namespace, and Helm's default namespace is that of many Pods.
#[test]
fn default_namespace_is_refused() {
    let text = template(&chart(), "default", "{}").unwrap_err();
    let remedy = "--namespace kusionstack-system --create-namespace";
    assert!(text.contains(remedy), "{text}");
}
