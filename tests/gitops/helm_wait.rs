//! `helm install --wait` of a chart with a CollaSet and a rule.

use std::fs;

use serde_json::json;
use testbed::kubectl::Said;
use testbed::{Bed, binaries};

use crate::kstatus::objects;

/// A chart with a CollaSet of this image and a rule.
fn chart(namespace: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("Chart.yaml"),
        "apiVersion: v2\nname: web\nversion: 1.0.0\n",
    )
    .unwrap();
    let templates = dir.path().join("templates");
    fs::create_dir(&templates).unwrap();
    for mut object in objects(namespace).into_iter().take(2) {
        if object["kind"] == "CollaSet" {
            object["spec"]["replicas"] = json!(2);
        }
        let file = templates.join(format!("{}.yaml", object["kind"].as_str().unwrap()));
        fs::write(file, object.to_string()).unwrap();
    }
    dir
}

async fn helm(bed: &Bed, namespace: &str, args: &[&str]) -> Said {
    let binary = tokio::task::spawn_blocking(binaries::helm).await;
    let home = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(binary.unwrap().unwrap())
        .args(args)
        .args(["--namespace", namespace, "--kubeconfig"])
        .arg(bed.kubeconfig())
        .env_remove("KUBECONFIG")
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .kill_on_drop(true)
        .output();
    output.await.unwrap().into()
}

#[tokio::test(flavor = "multi_thread")]
async fn helm_waits_until_the_pods_of_a_collaset_are_available() {
    let bed = Bed::own().await;
    let scope = bed.scope("helm").await;
    let chart = chart(&scope.namespace);
    let path = chart.path().to_str().unwrap();
    let args = ["install", "web", path, "--wait", "--timeout=3m"];
    let _ = helm(&bed, &scope.namespace, &args).await.success();
    // When the command ends, the CollaSet is as the spec asks.
    let ready = [
        "wait",
        "collaset/web",
        "--for=condition=Ready",
        "--timeout=0",
    ];
    let _ = bed.ask_kubectl_in(&scope, &ready).await.success();
    assert_eq!(scope.list("app=web").await.len(), 2);

    // Without a server nobody sees a change, and Helm does not take the old status as an answer.
    bed.without_server().await;
    let set = fs::read_to_string(chart.path().join("templates/CollaSet.yaml")).unwrap();
    let changed = set.replace("\"replicas\":2", "\"replicas\":3");
    assert_ne!(set, changed);
    fs::write(chart.path().join("templates/CollaSet.yaml"), changed).unwrap();
    let args = ["upgrade", "web", path, "--wait", "--timeout=5s"];
    let said = helm(&bed, &scope.namespace, &args).await;
    assert!(!said.succeeded(), "{said:?}");
    assert!(said.text().contains("InProgress"), "{said:?}");
}
