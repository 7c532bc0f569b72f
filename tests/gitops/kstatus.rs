//! The status that Flux and Helm compute (kstatus), for objects on a real API server.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use testbed::{Bed, binaries, wait};

/// One line `KIND/NAME STATUS` for each object.
pub fn compute(list: &str) -> Vec<String> {
    let mut child = Command::new(binaries::kstatus().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(list.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{list}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// A CollaSet without Pods, a rule, a decoration of it and a job, all of the same name.
pub fn objects(namespace: &str) -> Vec<Value> {
    let labels = json!({ "app": "web" });
    let template = json!({
        "metadata": { "labels": labels },
        "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
    });
    let selector = json!({ "matchLabels": labels });
    let rules = json!([{ "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } }]);
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind,
            "metadata": { "name": "web", "namespace": namespace }, "spec": spec,
        })
    };
    let set = json!({ "replicas": 0, "selector": selector, "template": template });
    let init = json!([{ "name": "log", "image": "i:1" }]);
    let decoration = json!({ "selector": selector, "template": { "initContainers": init } });
    let job = json!({ "action": "Replace", "targets": [{ "name": "nobody" }] });
    vec![
        object("CollaSet", set),
        object(
            "PodTransitionRule",
            json!({ "selector": selector, "rules": rules }),
        ),
        object("PodDecoration", decoration),
        object("OperationJob", job),
    ]
}

const KINDS: &str = "collasets,podtransitionrules,poddecorations,operationjobs";

#[tokio::test(flavor = "multi_thread")]
async fn new_object_is_in_progress_until_the_controller_has_seen_it() {
    let bed = Bed::own().await;
    let scope = bed.scope("kstatus").await;
    bed.without_server().await;
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects(&scope.namespace) });
    let _ = bed.ask_kubectl_about(&["create"], &list).await.success();
    let status = async || {
        let said = bed
            .ask_kubectl_in(&scope, &["get", KINDS, "-o", "json"])
            .await;
        compute(&said.success().out)
    };
    let found = status().await;
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(
        found.iter().all(|line| line.ends_with(" InProgress")),
        "{found:?}"
    );

    bed.with_server().await;
    wait::until("the CollaSet and the rule are current", async || {
        let found = status().await;
        let has = |line: &str| found.iter().any(|one| one == line);
        has("CollaSet/web Current") && has("PodTransitionRule/web Current")
    })
    .await;
}

/// An invalid rule, as an earlier server may have stored it, does not become current by waiting.
#[tokio::test(flavor = "multi_thread")]
async fn invalid_rule_is_failed() {
    let bed = Bed::own().await;
    let scope = bed.scope("invalid").await;
    bed.without_server().await;
    let selector = json!({ "matchLabels": { "app": "no value of a label" } });
    let mut rule = objects(&scope.namespace).remove(1);
    rule["spec"]["selector"] = selector;
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": [rule] });
    let _ = bed.ask_kubectl_about(&["create"], &list).await.success();
    bed.with_server().await;
    wait::until("the rule is failed", async || {
        let said = bed
            .ask_kubectl_in(&scope, &["get", KINDS, "-o", "json"])
            .await;
        compute(&said.success().out) == ["PodTransitionRule/web Failed"]
    })
    .await;
}
