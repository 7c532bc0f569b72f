//! `operating explain`: reviews decided without a cluster.

use std::path::PathBuf;
use std::process::Command;

use operating::api::keys::{self, Family};
use serde_json::{Value, json};
use testbed::kubectl::Said;

/// A directory with input files, and the program.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn explain(&self, args: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_operating"));
        // The command needs no cluster.
        command
            .arg("explain")
            .args(args)
            .current_dir(self.0.path())
            .env("KUBECONFIG", "/nowhere");
        command.output().unwrap().into()
    }

    fn json(&self, args: &[&str]) -> Value {
        let output = self.explain(&[args, &["-o", "json"]].concat());
        serde_json::from_str(&output.out).unwrap_or_else(|e| panic!("{e}: {output:?}"))
    }
}

fn pod(name: &str, available: bool) -> Value {
    let mut labels = json!({ "app": "web", (keys::CONTROL): keys::CONTROL_VALUE });
    if available {
        labels[keys::SERVICE_AVAILABLE] = json!("1");
    }
    let ready = if available { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": "shop", "name": name, "uid": name, "resourceVersion": "41", "labels": labels,
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "set", "controller": true }],
        },
        "spec": {
            "containers": [{ "name": "main", "image": "web:1" }],
            "readinessGates": [{ "conditionType": keys::SERVICE_READY }],
        },
        "status": { "phase": "Running", "conditions": [
            { "type": "Ready", "status": ready }, { "type": keys::SERVICE_READY, "status": "True" },
        ] },
    })
}

fn set(replicas: u32) -> Value {
    let labels = json!({ "app": "web", (keys::CONTROL): keys::CONTROL_VALUE });
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet",
        "metadata": { "namespace": "shop", "name": "web", "uid": "set" },
        "spec": { "replicas": replicas, "template": { "metadata": { "labels": labels } } },
    })
}

fn list(items: &[Value]) -> String {
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

fn review(operation: &str, sub: Option<&str>, old: Option<&Value>, new: Option<&Value>) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "operation": operation, "namespace": "shop", "name": "web-0",
            "kind": { "group": "", "version": "v1", "kind": "Pod" },
            "resource": { "group": "", "version": "v1", "resource": "pods" }, "subResource": sub,
            "userInfo": { "username": "kubernetes-admin" }, "oldObject": old, "object": new,
        },
    })
    .to_string()
}

const RULE: &str = "apiVersion: apps.kusionstack.io/v1alpha1
kind: PodTransitionRule
metadata: { name: web, namespace: shop }
spec:
  selector: { matchLabels: { app: web } }
  rules:
    - name: availability
      availablePolicy: { maxUnavailableValue: 50% }
";

/// Three of four Pods serve, so one more may go; or only two serve, so none may go.
fn desk(serving: usize) -> Desk {
    let desk = Desk::new();
    let pods: Vec<_> = (0..4)
        .map(|n| pod(&format!("web-{n}"), n < serving))
        .collect();
    desk.put("rules.yaml", RULE);
    desk.put("pods.yaml", list(&[&pods[..], &[set(4)]].concat()));
    desk.put("delete.json", review("DELETE", None, Some(&pods[0]), None));
    desk
}

const FILES: [&str; 4] = ["--rules", "rules.yaml", "--pods", "pods.yaml"];

fn with(review: &str) -> Vec<&str> {
    [&[review][..], &FILES].concat()
}

#[test]
fn deletion_passes_while_budget_has_room() {
    let output = desk(3).explain(&with("delete.json"));
    assert_eq!(
        (output.code, output.err.as_str()),
        (Some(0), ""),
        "{output:?}"
    );
    assert!(
        output.out.starts_with("allowed: DELETE pods shop/web-0\n"),
        "{output:?}"
    );
    assert!(
        output
            .out
            .contains("PodTransitionRule web: 1 of 4 Pods are unavailable, the limit is 2"),
        "{output:?}"
    );
}

#[test]
fn deletion_is_denied_with_text_of_server() {
    let desk = desk(2);
    let output = desk.explain(&with("delete.json"));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.out.contains(
            "denied (429 TooManyRequests): DELETE pods shop/web-0\nPod web-0 is held by rule availability of \
             PodTransitionRule web: 2 of 4 Pods are unavailable, the limit is 2 (used by web-2, web-3); try again"
        ),
        "{output:?}"
    );
    let json = desk.json(&with("delete.json"));
    assert_eq!(
        (&json["allowed"], &json["code"]),
        (&json!(false), &json!(429))
    );
    assert_eq!(
        json["budgets"][0],
        json!({ "object": "web", "used": 2, "limit": 2, "expected": 4, "allowed": 0 })
    );
    assert_eq!(json["judgedBy"], json!(["/validate/pods"]));
}

#[test]
fn claims_of_the_file_count() {
    let desk = desk(3);
    let claim = "status:
  ledger:
    watermark: '99'
    claims:
      - { podName: web-1, podUID: web-1, operation: Evict, resourceVersion: '41', attempt: 1,
          since: 2026-01-01T00:00:00Z, until: 2026-01-01T00:01:00Z }
";
    desk.put("rules.yaml", format!("{RULE}{claim}"));
    let output = desk.explain(&with("delete.json"));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.out.contains("2 of 4 Pods are unavailable")
            && output.out.contains("used by web-1 for"),
        "{output:?}"
    );
}

#[test]
fn missing_pods_of_a_workload_use_the_budget_up() {
    let desk = desk(4);
    desk.put(
        "pods.yaml",
        format!(
            "{}---\n{}",
            serde_norway::to_string(&set(6)).unwrap(),
            serde_norway::to_string(&pod("web-1", true)).unwrap()
        ),
    );
    let json = desk.json(&with("delete.json"));
    // The review contains its Pod: the files contain two of six Pods.
    assert_eq!(
        json["budgets"][0],
        json!({ "object": "web", "used": 4, "limit": 3, "expected": 6, "allowed": 0 })
    );
    assert_eq!(json["code"], 429);
}

#[test]
fn eviction_is_decided_by_its_pod_in_files() {
    let desk = desk(2);
    let eviction =
        json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": "web-0" } });
    desk.put(
        "evict.json",
        review("CREATE", Some("eviction"), None, Some(&eviction)),
    );
    let output = desk.explain(&with("evict.json"));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output
            .out
            .contains("(429 TooManyRequests): CREATE pods/eviction shop/web-0"),
        "{output:?}"
    );

    let alone = desk.explain(&["evict.json", "--rules", "rules.yaml"]);
    assert_eq!(alone.code, Some(2), "{alone:?}");
    assert!(
        alone
            .err
            .contains("give Pod web-0 of namespace shop in a file of --pods"),
        "{alone:?}"
    );
}

#[test]
fn begin_of_operation_is_mutated_and_then_validated() {
    for (serving, phase) in [(3, Family::Preparing), (2, Family::PreCheck)] {
        let desk = desk(serving);
        let old = pod("web-0", true);
        let mut new = old.clone();
        new["metadata"]["labels"][Family::Operating.key("x")] = json!("1");
        new["metadata"]["labels"][Family::OperationType.key("x")] = json!("upgrade");
        desk.put("begin.json", review("UPDATE", None, Some(&old), Some(&new)));
        let json = desk.json(&with("begin.json"));
        assert_eq!(json["allowed"], true, "{json}");
        assert_eq!(json["judgedBy"], json!(["/mutate/pods", "/validate/pods"]));
        let path = format!("/metadata/labels/{}", phase.key("x").replace('/', "~1"));
        let patch = json["patch"].as_array().unwrap();
        assert!(
            patch
                .iter()
                .any(|operation| operation["path"] == path.as_str()),
            "{path}: {json}"
        );
    }
}

#[test]
fn unreadable_rule_holds_and_is_named() {
    let desk = desk(4);
    desk.put("rules.yaml", RULE.replace("50%", "150%"));
    let output = desk.explain(&with("delete.json"));
    assert_eq!(output.code, Some(1), "{output:?}");
    assert!(
        output.out.contains(
            "which can't be evaluated: spec.rules[0].availablePolicy.maxUnavailableValue"
        ),
        "{output:?}"
    );
    assert!(
        output
            .err
            .contains("rules.yaml: PodTransitionRule web: the API server would refuse it"),
        "{output:?}"
    );
}

#[test]
fn unmanaged_pod_is_allowed() {
    let desk = desk(2);
    let mut free = pod("web-0", true);
    free["metadata"]["labels"] = json!({ "app": "web" });
    desk.put("delete.json", review("DELETE", None, Some(&free), None));
    let output = desk.explain(&with("delete.json"));
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("free: not-managed"), "{output:?}");
}

#[test]
fn missing_pods_file_is_reported() {
    let output = desk(2).explain(&["delete.json", "--rules", "rules.yaml"]);
    assert!(
        output.err.contains("no other Pods are given (--pods)"),
        "{output:?}"
    );
    assert!(
        output.err.contains("ReplicaSet web is not in the files"),
        "{output:?}"
    );
}

#[test]
fn unusable_input_is_named_with_file_place_and_field() {
    let desk = desk(2);
    for (file, text, message) in [
        ("delete.json", "", "delete.json: holds no object"),
        (
            "delete.json",
            "{\"apiVersion\":\"admission.k8s.io/v1beta1\"}",
            "delete.json: apiVersion: must be admission.k8s.io/v1",
        ),
        (
            "delete.json",
            "{\"kind\": ",
            "delete.json: the body ends too early (line 1",
        ),
        (
            "delete.json",
            "a: [1",
            "delete.json: is neither JSON nor YAML",
        ),
        (
            "delete.json",
            "{\"apiVersion\":\"admission.k8s.io/v1\",\"kind\":\"AdmissionReview\"}",
            "request: missing",
        ),
        ("rules.yaml", "kind: [", "rules.yaml: is no YAML or JSON"),
        (
            "rules.yaml",
            "metadata: {name: a}\n",
            "rules.yaml: kind: is missing",
        ),
        (
            "rules.yaml",
            "kind: ConfigMap\nmetadata: {name: a}\n",
            "rules.yaml: holds no PodTransitionRule",
        ),
        (
            "rules.yaml",
            "kind: PodTransitionRule\nspec: {}\n",
            "rules.yaml: metadata: is missing",
        ),
        (
            "rules.yaml",
            "kind: PodTransitionRule\nmetadata: {}\n",
            "rules.yaml: metadata.name: is missing",
        ),
        (
            "rules.yaml",
            "kind: PodTransitionRuleList\nitems: 3\n",
            "rules.yaml: items: must be a list",
        ),
        (
            "rules.yaml",
            "kind: Namespace\nmetadata: {name: a}\n---\nkind: PodTransitionRule\nmetadata: {name: web}\nspec:\n  rules: three\n",
            "rules.yaml: document 2: web: spec.rules: invalid type",
        ),
        (
            "rules.yaml",
            "kind: List\nitems:\n- kind: PodTransitionRule\n  metadata: {name: web}\n  spec: {rules: three}\n",
            "rules.yaml: items[0]: web: spec.rules: invalid type",
        ),
        (
            "pods.yaml",
            "kind: Pod\nmetadata: {name: a, labels: 3}\n",
            "pods.yaml: a: metadata.labels: invalid type",
        ),
    ] {
        let before = std::fs::read(desk.0.path().join(file)).unwrap();
        desk.put(file, text);
        let output = desk.explain(&with("delete.json"));
        assert_eq!(
            (output.code, output.out.as_str()),
            (Some(2), ""),
            "{text:?}: {output:?}"
        );
        assert!(output.err.contains(message), "{text:?}: {output:?}");
        desk.put(file, before);
    }
    let missing = desk.explain(&["nowhere.json", "--rules", "rules.yaml"]);
    assert_eq!(missing.code, Some(2), "{missing:?}");
    assert!(
        missing.err.contains("nowhere.json: can't be read"),
        "{missing:?}"
    );
    let usage = desk.explain(&["delete.json"]);
    assert_eq!(usage.code, Some(2), "{usage:?}");
    assert!(usage.err.contains("--rules"), "{usage:?}");
}

/// The error names the line if the object is a document of its own.
#[test]
fn wrong_type_is_named_with_its_line() {
    let desk = desk(2);
    desk.put(
        "rules.yaml",
        "kind: PodTransitionRule\nmetadata: {name: web}\nspec:\n  rules: three\n",
    );
    let output = desk.explain(&with("delete.json"));
    assert!(output.err.contains("line 4"), "{output:?}");
}

#[test]
fn requests_never_sent_to_the_webhook_are_reported() {
    let desk = desk(2);
    let text = review("CONNECT", Some("exec"), None, None);
    desk.put("exec.json", text);
    let output = desk.explain(&with("exec.json"));
    assert_eq!(output.code, Some(2), "{output:?}");
    assert!(
        output.err.contains("never sends CONNECT of pods/exec here"),
        "{output:?}"
    );
}

/// The command refuses a verdict that would depend on an answer of the API server.
#[test]
fn verdicts_that_need_the_api_server_are_refused() {
    let desk = desk(2);
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web", "namespace": "shop" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
            },
        },
    });
    let mut review: Value =
        serde_json::from_str(&review("CREATE", None, None, Some(&set))).unwrap();
    let group = json!({ "group": keys::GROUP, "version": keys::VERSION, "resource": "collasets" });
    review["request"]["resource"] = group;
    review["request"]["name"] = json!("web");
    desk.put("create.json", review.to_string());
    let output = desk.explain(&with("create.json"));
    assert_eq!(
        (output.code, output.out.as_str()),
        (Some(2), ""),
        "{output:?}"
    );
    assert!(
        output
            .err
            .contains("can't be decided offline: /validate/collasets asks"),
        "{output:?}"
    );
    assert!(output.err.contains("--dry-run=server"), "{output:?}");
}
