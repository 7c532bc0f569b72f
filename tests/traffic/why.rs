//! `operating why` about traffic.

use kube::ResourceExt;
use operating::api::keys;
use serde_json::{Value, json};
use testbed::bed::rights_on_pods;
use testbed::{Bed, Scope, wait};

use crate::fixtures::Employer;
use crate::sets::Set;

async fn why(bed: &Bed, scope: &Scope, object: &str) -> Value {
    let output = bed.operating(&["why", object, "-n", &scope.namespace, "-o", "json"]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn text(bed: &Bed, scope: &Scope, object: &str) -> String {
    let output = bed.operating(&["why", object, "-n", &scope.namespace]);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn slow() -> Value {
    json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "600" } } })
}

#[tokio::test]
async fn wait_for_traffic_is_explained_for_the_pod_and_the_service() {
    let bed = Bed::shared().await;
    let scope = bed.scope("traffic-why").await;
    let set = Set::new(&scope, "web", 2, json!({})).await;
    let web = Employer::new(&scope, "web", slow()).await;
    web.consistent(2).await;
    let quiet = why(bed, &scope, "svc/web").await;
    assert_eq!(
        quiet["summary"],
        "Service web (adapter endpoints): traffic is as the Pods need, 2 members registered"
    );
    assert_eq!(quiet["pods"]["protected"]["count"], 2);

    let name = set.pod(0).await.name_any();
    scope.begin(&name, "manual").await.unwrap();
    web.until("the Pod to drain", |report| report.draining == 1)
        .await;
    let object = format!("pod/{name}");
    let pod = wait::value("the drain time", async || {
        let pod = why(bed, &scope, &object).await;
        let says = pod["traffic"][0]["says"][0].as_str()?.to_owned();
        says.contains(" at the latest (in ").then_some(pod)
    })
    .await;
    let traffic = &pod["traffic"][0];
    assert_eq!(
        (&traffic["service"], &traffic["adapter"]),
        (&json!("web"), &json!("endpoints"))
    );
    let summary = pod["summary"].as_str().unwrap();
    assert!(
        summary.contains("; Service web (adapter endpoints): "),
        "{summary}"
    );
    let tree = text(bed, &scope, &object).await;
    let line = format!("Service {}/web (adapter endpoints): ", scope.namespace);
    assert!(tree.contains(&line), "{tree}");

    let service = why(bed, &scope, "svc/web").await;
    assert_eq!(service["counts"]["draining"], 1);
    assert_eq!(service["waiting"][0]["pod"], name);
    assert_eq!(
        service["pods"]["protected"]["names"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    let tree = text(bed, &scope, "svc/web").await;
    assert!(tree.contains(&format!("{name} at {name}/")), "{tree}");
    assert!(
        tree.contains("2 Pods are protected by its finalizer"),
        "{tree}"
    );

    web.edit(json!({ "metadata": { "annotations": { (keys::CONSIST_DRAIN_SECONDS): "0" } } }))
        .await;
    web.marks(&name, (true, false)).await;
    let pod = why(bed, &scope, &object).await;
    assert_eq!(pod["traffic"], json!([]), "{pod}");
    let missing = bed.operating(&["why", "svc/nobody", "-n", &scope.namespace]);
    let error = String::from_utf8(missing.stderr).unwrap();
    assert!(error.contains("kubectl get services -n"), "{error}");
}

/// Reads go with the rights of the user.
#[tokio::test]
async fn service_that_the_user_may_not_read_is_named() {
    let bed = Bed::shared().await;
    let scope = bed.scope("traffic-why-rights").await;
    let set = Set::new(&scope, "web", 1, json!({})).await;
    let web = Employer::new(&scope, "web", slow()).await;
    web.consistent(1).await;
    let name = set.pod(0).await.name_any();
    scope.begin(&name, "manual").await.unwrap();
    web.until("the Pod to drain", |report| report.draining == 1)
        .await;
    let rules = json!({
        "apiGroups": [keys::GROUP], "resources": ["podtransitionrules"], "verbs": ["list"],
    });
    let user = bed
        .new_user(&scope, "reader", &[rights_on_pods(), rules])
        .await;
    assert!(user.pods().get_opt(&name).await.unwrap().is_some());
    let file = bed
        .kubeconfig_for_service_account(&scope.namespace, "reader")
        .await;
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_operating"));
    let args = ["why", &name, "-n", &scope.namespace, "--kubeconfig"];
    let output = command.args(args).arg(file.unwrap()).output().unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let note = "not known: what Service web says about the Pod: you may not get services";
    assert!(out.contains(note), "{out} {:?}", output.stderr);
}

#[tokio::test]
async fn problems_of_services_are_named_with_remedies() {
    let bed = Bed::shared().await;
    let scope = bed.scope("traffic-why-problems").await;
    let _none = Employer::new(
        &scope,
        "none",
        json!({ "spec": { "selector": { "app": "x" } } }),
    )
    .await;
    let named = json!({ "metadata": { "annotations": { (keys::CONSIST_ADAPTER): "edge" } } });
    let _named = Employer::new(&scope, "named", named).await;
    let unlabelled = json!({ "metadata": { "labels": { (keys::CONTROL): "false" } } });
    let _plain = Employer::new(&scope, "plain", unlabelled).await;
    for (service, reason, remedy) in [
        (
            "none",
            "has the labels of spec.selector (app=x)",
            "kubectl get pods -n",
        ),
        (
            "named",
            "is named \"edge\"; write one of endpoints",
            "kubectl annotate service named",
        ),
        (
            "plain",
            "it has no label kusionstack.io/control",
            "kubectl label service plain",
        ),
    ] {
        let object = format!("service/{service}");
        wait::until(reason, async || {
            let tree = text(bed, &scope, &object).await;
            tree.contains(reason) && tree.contains(remedy)
        })
        .await;
    }
}
