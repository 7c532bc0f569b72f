//! The plugin, found and run by the real kubectl.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, PostParams};
use operating::api::collaset::CollaSet;
use operating::api::keys::Family;
use serde_json::{Value, json};
use testbed::kubectl::Said;
use testbed::pods::names;
use testbed::{Bed, Scope, wait};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::wait_events::bed;

const ID: &str = "upgrade";

/// A directory with the program under the name by which kubectl finds it.
fn plugin() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    symlink(
        env!("CARGO_BIN_EXE_operating"),
        dir.path().join("kubectl-operating"),
    )
    .unwrap();
    dir
}

/// The path of the programs, with a directory before it.
pub fn path_with(dir: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::iter::once(PathBuf::from(dir)).chain(std::env::split_paths(&path));
    std::env::join_paths(dirs).unwrap()
}

/// Runs `kubectl operating ARGS…` with this kubeconfig, by default as the administrator.
pub async fn ask_plugin(bed: &Bed, kubeconfig: Option<&Path>, args: &[&str]) -> Said {
    let dir = plugin();
    let mut command = bed.kubectl([&["operating"], args].concat());
    command.env("PATH", path_with(dir.path()));
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command.output().await.unwrap().into()
}

async fn why(scope: &Scope, pod: &str) -> Value {
    ask_plugin(
        bed().await,
        None,
        &["why", pod, "-n", &scope.namespace, "-o", "json"],
    )
    .await
    .json()
}

/// Runs `why` until its output satisfies the condition, because the status of rules lags.
pub async fn until_why(
    scope: &Scope,
    pod: &str,
    condition: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    wait::value(condition, async || {
        Some(why(scope, pod).await).filter(|diagnosis| wanted(diagnosis))
    })
    .await
}

/// Pods without an owner, under a rule that allows no disruption.
async fn pods_under_zero_budget(pods: &[&str]) -> Scope {
    let scope = bed().await.scope("why").await;
    for pod in pods {
        scope
            .pod(pod, json!({ "metadata": { "labels": { "app": "web" } } }))
            .await;
    }
    scope.all_available("app=web", pods.len()).await;
    scope.rule("web", json!({ "app": "web" }), json!(0)).await;
    scope
        .until_at_rest("web", i32::try_from(pods.len()).unwrap())
        .await;
    scope
}

#[tokio::test]
async fn wait_is_explained_with_rule_figures_and_holders() {
    let bed = bed().await;
    let scope = bed.scope("why").await;
    for pod in ["web-0", "web-1", "web-2"] {
        scope
            .pod(pod, json!({ "metadata": { "labels": { "app": "web" } } }))
            .await;
    }
    scope.all_available("app=web", 3).await;
    scope.rule("web", json!({ "app": "web" }), json!(1)).await;
    scope.until_at_rest("web", 3).await;
    let idle = why(&scope, "pod/web-1").await;
    assert_eq!(idle["summary"], "Pod web-1 is available, and may go");

    scope.begin("web-0", ID).await.unwrap();
    scope.begin("web-1", ID).await.unwrap();
    let diagnosis = until_why(&scope, "web-1", "the rule to hold web-1", |diagnosis| {
        diagnosis["rules"][0]["verdict"] == "holds"
            && diagnosis["rules"][0]["budget"]["waiting"] == 1
    })
    .await;
    let operation = &diagnosis["operations"][0];
    assert_eq!(
        (&operation["id"], &operation["type"], &operation["phase"]),
        (&json!(ID), &json!(ID), &json!("PreCheck"))
    );
    assert_eq!(operation["waitsFor"][0]["on"], "rule");
    assert_eq!(operation["waitsFor"][0]["name"], "web/availability");
    let budget = &diagnosis["rules"][0]["budget"];
    assert_eq!(
        (&budget["used"], &budget["limit"], &budget["expected"]),
        (&json!(1), &json!(1), &json!(3))
    );
    assert_eq!(budget["holders"][0]["pod"], "web-0");
    assert_eq!(budget["before"], 0);

    let tree = ask_plugin(bed, None, &["why", "pod", "web-1", "-n", &scope.namespace]).await;
    assert_eq!(tree.code, Some(0), "{tree:?}");
    for part in [
        "operation upgrade (upgrade): PreCheck",
        "1 of 3 Pods are unavailable, the limit is 1 (used by web-0",
        "web-0 for ",
    ] {
        assert!(tree.out.contains(part), "{part}: {}", tree.out);
    }
    // The diagnosis waits for the operator of web-0.
    let diagnosis = until_why(&scope, "web-0", "web-0 to be in Operate", |diagnosis| {
        diagnosis["operations"][0]["phase"] == "Operate"
    })
    .await;
    let text = diagnosis["operations"][0]["waitsFor"][0]["text"]
        .as_str()
        .unwrap();
    assert!(text.contains(&Family::Operating.key(ID)), "{text}");
}

#[tokio::test]
async fn collaset_is_shown_with_revisions_and_delay() {
    let bed = bed().await;
    let scope = bed.scope("why").await;
    let sets: Api<CollaSet> = Api::namespaced(scope.client.clone(), &scope.namespace);
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet",
        "metadata": { "name": "web" },
        "spec": {
            "replicas": 1,
            "selector": { "matchLabels": { "app": "web" } },
            "updateStrategy": { "operationDelaySeconds": 3600 },
            "template": {
                "metadata": { "labels": { "app": "web" } },
                "spec": { "containers": [{ "name": "main", "image": "web:1" }] },
            },
        },
    });
    sets.create(
        &PostParams::default(),
        &serde_json::from_value(set).unwrap(),
    )
    .await
    .unwrap();
    let pod = names(&scope.all_available("app=web", 1).await).remove(0);
    let patch = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "main", "image": "web:2" }] } } } });
    sets.patch("web", &Default::default(), &kube::api::Patch::Merge(patch))
        .await
        .unwrap();
    let diagnosis = until_why(&scope, &pod, "the delay of the update", |diagnosis| {
        // The status of the set follows its work on the Pod.
        let updated = diagnosis["owner"]["rollout"]["updatedRevision"].as_str();
        let known = updated.is_some_and(|updated| !updated.is_empty());
        known && diagnosis["operations"][0]["waitsFor"][0]["on"] == "delay"
    })
    .await;
    let rollout = &diagnosis["owner"]["rollout"];
    assert_eq!(diagnosis["owner"]["kind"], "CollaSet");
    assert_eq!(rollout["delaySeconds"], 3600);
    assert_eq!(rollout["policy"], "InPlaceIfPossible");
    let (old, new) = (
        rollout["revision"].as_str().unwrap(),
        rollout["updatedRevision"].as_str().unwrap(),
    );
    assert!(
        !old.is_empty() && !new.is_empty() && old != new,
        "{rollout}"
    );
}

#[tokio::test]
async fn missing_objects_are_reported_with_the_remedy() {
    let bed = bed().await;
    let scope = bed.scope("why").await;
    let namespace = scope.namespace.as_str();
    let missing = ask_plugin(bed, None, &["why", "pod/nobody", "-n", namespace]).await;
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(
        missing
            .err
            .contains(&format!("kubectl get pods -n {namespace}")),
        "{missing:?}"
    );

    let kind = ask_plugin(bed, None, &["why", "job/web", "-n", namespace]).await;
    assert_eq!(kind.code, Some(1), "{kind:?}");
    assert!(kind.err.contains("accepts pod/NAME"), "{kind:?}");

    scope
        .pod(
            "free",
            json!({ "metadata": { "labels": { "kusionstack.io/control": null } } }),
        )
        .await;
    let free = ask_plugin(bed, None, &["why", "pod/free", "-n", namespace]).await;
    assert_eq!(free.code, Some(0), "{free:?}");
    assert!(
        free.out.contains("is not managed") && free.out.contains("kubectl label pod free"),
        "{free:?}"
    );

    scope.pod("alone", json!({})).await;
    let alone = ask_plugin(
        bed,
        None,
        &["why", "pod/alone", "-n", namespace, "-o", "json"],
    )
    .await
    .json();
    assert_eq!(alone["rules"], json!([]));
}

/// The user may read everything except the owners of the Pods: the output names the kinds that it cannot read, and is
/// otherwise complete.
#[tokio::test]
async fn forbidden_reads_are_reported() {
    let bed = bed().await;
    let scope = pods_under_zero_budget(&["web-0"]).await;
    let namespace = &scope.namespace;
    let accounts: Api<ServiceAccount> = Api::namespaced(scope.client.clone(), namespace);
    for name in ["reader", "nobody"] {
        let account = json!({ "metadata": { "name": name } });
        accounts
            .create(
                &PostParams::default(),
                &serde_json::from_value(account).unwrap(),
            )
            .await
            .unwrap();
    }
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "reader" },
        "rules": [
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] },
            { "apiGroups": ["apps.kusionstack.io"], "resources": ["podtransitionrules"], "verbs": ["list"] },
        ],
    }))
    .unwrap();
    let roles: Api<Role> = Api::namespaced(scope.client.clone(), namespace);
    roles.create(&PostParams::default(), &role).await.unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "reader" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": "reader", "namespace": namespace }],
    }))
    .unwrap();
    let bindings: Api<RoleBinding> = Api::namespaced(scope.client.clone(), namespace);
    bindings
        .create(&PostParams::default(), &binding)
        .await
        .unwrap();

    let reader = bed
        .kubeconfig_for_service_account(namespace, "reader")
        .await
        .unwrap();
    let args = ["why", "pod/web-0", "-n", namespace];
    // The API server's authorizer learns of the binding by a watch.
    let diagnosis = wait::value("the rights of the reader", async || {
        let diagnosis = ask_plugin(bed, Some(&reader), &args).await;
        (diagnosis.code == Some(0)).then_some(diagnosis)
    })
    .await;
    assert!(
        diagnosis.out.contains("held by rule availability"),
        "{diagnosis:?}"
    );
    assert!(
        diagnosis
            .out
            .contains("not known: only the claims show which Pods use a budget"),
        "{diagnosis:?}"
    );
    assert!(
        diagnosis.out.contains("you may not list pods"),
        "{diagnosis:?}"
    );

    let nobody = bed
        .kubeconfig_for_service_account(namespace, "nobody")
        .await
        .unwrap();
    let refused = ask_plugin(bed, Some(&nobody), &args).await;
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.err.contains("you may not get pods") && refused.err.contains("auth can-i"),
        "{refused:?}"
    );
}

#[tokio::test]
async fn budgets_are_listed_the_tightest_first() {
    let bed = bed().await;
    let scope = pods_under_zero_budget(&["web-0", "web-1"]).await;
    scope.rule("roomy", json!({ "app": "web" }), json!(2)).await;
    scope.until_at_rest("roomy", 2).await;
    let namespace = scope.namespace.as_str();
    let diagnosis = ask_plugin(bed, None, &["budget", "-n", namespace, "-o", "json"])
        .await
        .json();
    let rules = diagnosis["rules"].as_array().unwrap();
    assert_eq!(
        (&rules[0]["name"], &rules[1]["name"]),
        (&json!("web"), &json!("roomy"))
    );
    assert_eq!(
        (
            &rules[1]["allowed"],
            &rules[1]["limit"],
            &rules[1]["expected"],
            &rules[1]["observed"]
        ),
        (&json!(2), &json!(2), &json!(2), &json!(true))
    );
    let table = ask_plugin(bed, None, &["budget", "-n", namespace]).await;
    assert!(table.out.starts_with("NAME "), "{table:?}");
    assert!(
        table.out.contains("[##########]") && table.out.contains("[..........]"),
        "{table:?}"
    );
    let all = ask_plugin(bed, None, &["budget", "-A"]).await;
    assert!(
        all.out.starts_with("NAMESPACE ") && all.out.contains(namespace),
        "{all:?}"
    );
}

#[tokio::test]
async fn watch_shows_changes_and_ends_with_pod() {
    let bed = bed().await;
    let scope = pods_under_zero_budget(&["web-0"]).await;
    let dir = plugin();
    let args = [
        "operating",
        "why",
        "pod/web-0",
        "-n",
        &scope.namespace,
        "-o",
        "json",
        "--watch",
    ];
    let mut command = bed.kubectl(args);
    let mut child = command
        .env("PATH", path_with(dir.path()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async |condition: &str, wanted: &dyn Fn(&Value) -> bool| {
        let found = async {
            loop {
                let line = lines.next_line().await.unwrap();
                let line = line.unwrap_or_else(|| panic!("it ended before {condition}"));
                if wanted(&serde_json::from_str(&line).unwrap()) {
                    return;
                }
            }
        };
        let found = tokio::time::timeout(wait::PATIENCE, found).await;
        found.unwrap_or_else(|_| panic!("waited for {condition}"));
    };
    next("the Pod at rest", &|diagnosis| {
        diagnosis["pod"]["available"] == true
    })
    .await;
    scope.begin("web-0", ID).await.unwrap();
    next("the begin", &|diagnosis| {
        diagnosis["operations"][0]["phase"] == "PreCheck"
    })
    .await;
    scope
        .rules()
        .delete("web", &Default::default())
        .await
        .unwrap();
    next("the grant", &|diagnosis| {
        diagnosis["rules"] == json!([]) && diagnosis["operations"][0]["phase"] != "PreCheck"
    })
    .await;
    scope.delete("web-0").await.unwrap();
    next("the end", &|diagnosis| {
        diagnosis["summary"] == "Pod web-0 is gone"
    })
    .await;
    let ended = tokio::time::timeout(wait::PATIENCE, child.wait())
        .await
        .unwrap()
        .unwrap();
    assert!(ended.success(), "{ended:?}");
}
