//! The life of a release of the chart: installation, update, return to the former version, removal, and an installation
//! that takes over what stayed. The processes of the server run as the rendered Deployment says.

use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, ResourceExt};
use operating::admission::policies::POLICY_NAMES;
use operating::admission::routes::{MUTATING_CONFIGURATION, WEBHOOK_REVISION};
use operating::api::keys;
use operating::cli::install::names;
use serde_json::json;
use testbed::kubectl::Said;
use testbed::{rendering, wait};

use super::cluster::Cluster;
use super::load::Load;
use super::server_pods::ServerPods;

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/operating");
/// A webhook that the chart of the test's former version does not have. The load does not call it.
const NEW_WEBHOOK: &str = "collaset-leaving.apps.kusionstack.io";

/// Label of the objects of the installation.
const LABEL: &str = "app.kubernetes.io/name=operating";

/// Runs Helm as the administrator, in the namespace of the server.
async fn run_helm(cluster: &Cluster, args: &[&str]) -> Said {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().to_owned();
    let command = tokio::task::spawn_blocking(move || rendering::helm(&path));
    let output = tokio::process::Command::from(command.await.unwrap().unwrap())
        .args(args)
        .args(["--namespace", names::NAMESPACE, "--kubeconfig"])
        .arg(cluster.plane.kubeconfig())
        .kill_on_drop(true)
        .output();
    let said = Said::from(output.await.unwrap());
    eprintln!("helm {args:?}: {}", said.text());
    said
}

/// Runs Helm, which must succeed.
async fn helm(cluster: &Cluster, args: &[&str]) {
    let _ = run_helm(cluster, args).await.success();
}

/// Waits as a user would who does not know how long it takes.
const WAIT: [&str; 2] = ["--wait", "--timeout=5m"];

async fn install(cluster: &Cluster, chart: &str, values: &[&str]) {
    // As docs/install-helm.md says. Later commands go on with the way of the installation.
    let args = [
        "install",
        "operating",
        chart,
        "--create-namespace",
        "--server-side=false",
    ];
    helm(cluster, &[&args[..], &WAIT, values].concat()).await;
}

async fn upgrade(cluster: &Cluster, chart: &str, values: &[&str]) {
    let args = ["upgrade", "operating", chart];
    helm(cluster, &[&args[..], &WAIT, values].concat()).await;
}

/// A copy of the chart as a former version could be: another version, no short name of CollaSets, and one webhook less.
fn former_chart(directory: &Path) -> PathBuf {
    let chart = directory.join("operating");
    fs::create_dir_all(chart.join("templates")).unwrap();
    for folder in ["", "templates"] {
        for entry in fs::read_dir(Path::new(CHART).join(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                fs::copy(entry.path(), chart.join(folder).join(entry.file_name())).unwrap();
            }
        }
    }
    let change = |file: &str, change: &dyn Fn(&str) -> String| {
        let path = chart.join(file);
        let text = fs::read_to_string(&path).unwrap();
        let changed = change(&text);
        assert_ne!(text, changed, "{file}");
        fs::write(path, changed).unwrap();
    };
    change("Chart.yaml", &|text| {
        text.replace(
            &format!("ersion: {}", env!("CARGO_PKG_VERSION")),
            "ersion: 0.0.9",
        )
    });
    change("templates/crds.yaml", &|text| {
        text.replace("    shortNames:\n    - cls\n", "")
    });
    change("templates/webhooks.yaml", &|text| {
        without_block(text, &format!("  name: {NEW_WEBHOOK}"))
    });
    // The leader corrects only webhooks of its own revision.
    change("templates/webhooks.yaml", &|text| {
        let revision = |of: u32| format!("{}: '{of}'", keys::WEBHOOK_REVISION);
        text.replace(&revision(WEBHOOK_REVISION), &revision(0))
    });
    chart
}

/// A template without the outermost `if` that contains a line.
fn without_block(template: &str, line: &str) -> String {
    let (mut kept, mut block, mut depth) = (String::new(), Vec::new(), 0);
    for text in template.lines() {
        depth += usize::from(text.starts_with("{{- if "));
        block.push(text);
        depth -= usize::from(text.starts_with("{{- end "));
        if depth == 0 {
            if !block.contains(&line) {
                kept += &block
                    .iter()
                    .map(|text| format!("{text}\n"))
                    .collect::<String>();
            }
            block.clear();
        }
    }
    kept
}

async fn has_webhook(cluster: &Cluster, name: &str) -> bool {
    let path = "jsonpath={.webhooks[*].name}";
    let kind = "mutatingwebhookconfiguration";
    let found = cluster
        .kubectl(&["get", kind, MUTATING_CONFIGURATION, "-o", path])
        .await;
    found.split_whitespace().any(|found| found == name)
}

async fn short_name(cluster: &Cluster) -> String {
    let path = "jsonpath={.spec.names.shortNames}";
    let crd = "collasets.apps.kusionstack.io";
    let args = ["get", "crd", crd, "--ignore-not-found", "-o", path];
    cluster.kubectl(&args).await
}

/// Three Pods run with this argument and without the other one, and no process has ended by itself.
async fn assert_pods_run(cluster: &Cluster, pods: &ServerPods, log: &str) {
    let deployments: Api<Deployment> = Api::namespaced(cluster.client(), names::NAMESPACE);
    let status = deployments.get("operating").await.unwrap().status.unwrap();
    assert_eq!(status.ready_replicas, Some(3));
    wait::until("the processes of former Pods end", async || {
        pods.arguments().len() == 3
    })
    .await;
    for (pod, args) in pods.arguments() {
        assert!(
            args.contains(&"--cert-dir=/certs".to_owned()),
            "{pod}: {args:?}"
        );
        let shown = args.iter().find(|arg| arg.starts_with("--log="));
        assert_eq!(shown.map_or("", String::as_str), log, "{pod}: {args:?}");
    }
    assert_eq!(pods.unexpected_ends(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn release_is_installed_updated_and_removed_under_load() {
    let cluster = Cluster::networked(3).await;
    cluster.plane.cert_manager().await.unwrap();
    let pods = ServerPods::start(&cluster.plane).await;
    let directory = tempfile::tempdir().unwrap();
    let former = former_chart(directory.path());
    let former = former.to_str().unwrap();

    install(&cluster, former, &[]).await;
    assert_pods_run(&cluster, &pods, "").await;
    assert!(!has_webhook(&cluster, NEW_WEBHOOK).await);
    assert_eq!(short_name(&cluster).await, "");
    wait::until("the CA is injected", async || {
        cluster.bundle().await.is_some()
    })
    .await;
    let namespace = cluster.ruled_namespace(&[]).await;
    let of_sets = cluster.plane.namespace("sets").await.unwrap();
    let set = create_collaset(&cluster, &of_sets).await;
    let load = Load::start(cluster.client(), &namespace).await;
    load.more(200).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());

    upgrade(&cluster, CHART, &["--set", "log.level=debug"]).await;
    load.more(200).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    assert_pods_run(&cluster, &pods, "--log=debug").await;
    assert!(has_webhook(&cluster, NEW_WEBHOOK).await);
    assert_eq!(short_name(&cluster).await, r#"["cls"]"#);
    wait::until("every entry has the CA", async || {
        cluster.bundle().await.is_some()
    })
    .await;

    let other = run_helm(&cluster, &["install", "other", CHART]).await;
    assert!(!other.succeeded());
    assert!(
        other
            .err
            .contains("cannot be imported into the current release"),
        "{other:?}"
    );

    helm(
        &cluster,
        &[&["rollback", "operating", "1"][..], &WAIT].concat(),
    )
    .await;
    load.more(200).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    assert_pods_run(&cluster, &pods, "").await;
    assert!(!has_webhook(&cluster, NEW_WEBHOOK).await);

    helm(&cluster, &[&["uninstall", "operating"][..], &WAIT].concat()).await;
    load.take_failures();
    load.more(50).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    assert!(cluster.bundles().await.is_empty());
    assert_crds_stay(&cluster).await;
    let policies = [
        &[
            "get",
            "validatingadmissionpolicies",
            "--ignore-not-found",
            "-o",
            "name",
        ][..],
        &POLICY_NAMES,
    ];
    assert_eq!(cluster.kubectl(&policies.concat()).await, "");
    wait::until("the processes end", async || pods.arguments().is_empty()).await;
    load.assert_pods_live_on().await;
    assert_eq!(stored(&cluster, &of_sets).await.uid(), set.uid());

    install(&cluster, CHART, &[]).await;
    assert_pods_run(&cluster, &pods, "").await;
    wait::until("every entry has the CA", async || {
        cluster.bundle().await.is_some()
    })
    .await;
    load.take_failures();
    load.more(50).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    load.assert_pods_live_on().await;
    assert_eq!(stored(&cluster, &of_sets).await.uid(), set.uid());
    wait::until("the CollaSet is reconciled again", async || {
        let set = stored(&cluster, &of_sets).await;
        set.data["status"]["observedGeneration"].as_i64() == set.metadata.generation
    })
    .await;
}

const COLLASETS_OFF: [&str; 3] = [
    "--reset-then-reuse-values",
    "--set",
    "featureGates.CollaSets=false",
];

/// Server-side apply is Helm's default. The servers write the CA and no segment, so no update is a conflict.
#[tokio::test(flavor = "multi_thread")]
async fn self_managed_release_is_updated_by_server_side_apply() {
    let cluster = Cluster::networked(3).await;
    let pods = ServerPods::start(&cluster.plane).await;
    let own = "certificates=self-managed";
    let args = [
        "install",
        "operating",
        CHART,
        "--create-namespace",
        "--set",
        own,
    ];
    helm(&cluster, &[&args[..], &WAIT].concat()).await;
    wait::until("the CA is written", async || {
        cluster.bundle().await.is_some()
    })
    .await;
    let namespace = cluster.ruled_namespace(&[]).await;
    let load = Load::start(cluster.client(), &namespace).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    assert!(has_webhook(&cluster, NEW_WEBHOOK).await);

    upgrade(&cluster, CHART, &COLLASETS_OFF).await;
    load.more(200).await;
    assert_eq!(load.take_failures(), Vec::<String>::new());
    // A leader with the former feature gates may have put the webhook back before it ended.
    wait::until("no webhook for CollaSets is left", async || {
        !has_webhook(&cluster, NEW_WEBHOOK).await
    })
    .await;
    assert!(cluster.bundle().await.is_some());
    for (pod, args) in pods.arguments() {
        let plain = args.contains(&"--plain-webhook-paths".to_owned());
        assert!(plain, "{pod}: {args:?}");
    }
    assert_eq!(pods.unexpected_ends(), Vec::<String>::new());
}

/// Under server-side apply, the API server refuses what is left of a removed webhook: the `caBundle`, which cert-manager
/// owns. The page has the remedy.
#[tokio::test(flavor = "multi_thread")]
async fn client_side_update_removes_webhooks_of_cert_manager() {
    let cluster = Cluster::start(3).await;
    cluster.plane.cert_manager().await.unwrap();
    let args = ["install", "operating", CHART, "--create-namespace"];
    helm(&cluster, &[&args[..], &WAIT].concat()).await;
    wait::until("the CA is injected", async || {
        cluster.bundle().await.is_some()
    })
    .await;
    let before = cluster.bundle().await;

    let args = [&["upgrade", "operating", CHART][..], &COLLASETS_OFF].concat();
    let refused = run_helm(&cluster, &args).await;
    assert!(!refused.succeeded());
    let reason = "clientConfig: Required value";
    assert!(refused.err.contains(reason), "{refused:?}");

    helm(
        &cluster,
        &[&args[..], &["--server-side=false"], &WAIT].concat(),
    )
    .await;
    assert!(!has_webhook(&cluster, NEW_WEBHOOK).await);
    assert_eq!(cluster.bundle().await, before);

    // The end of the page: everything is removed, and Helm does not miss what is gone already.
    cluster.operating(&["uninstall", "--yes"]).await;
    helm(&cluster, &[&["uninstall", "operating"][..], &WAIT].concat()).await;
    let kinds = "crd,clusterrole,clusterrolebinding,deployment,service,certificate";
    let all = cluster
        .kubectl(&["get", kinds, "-A", "-l", LABEL, "-o", "name"])
        .await;
    assert_eq!(all, "");
    assert_eq!(short_name(&cluster).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn installation_by_manifests_becomes_release() {
    let cluster = Cluster::start(3).await;
    cluster.plane.cert_manager().await.unwrap();
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests");
    cluster.kubectl(&["apply", "-k", manifests]).await;
    wait::until("the CA is injected", async || {
        cluster.bundle().await.is_some()
    })
    .await;
    let before = cluster.bundle().await;
    let args = ["install", "operating", CHART, "--server-side=false"];
    let refused = run_helm(&cluster, &args).await;
    assert!(refused.err.contains("cannot be imported"), "{refused:?}");
    helm(
        &cluster,
        &[&args[..], &["--take-ownership"], &WAIT].concat(),
    )
    .await;
    assert_eq!(cluster.bundle().await, before);

    helm(&cluster, &[&["uninstall", "operating"][..], &WAIT].concat()).await;
    assert!(cluster.bundles().await.is_empty());
    assert_crds_stay(&cluster).await;
}

/// All CRDs are there, and none is being deleted, which may take minutes.
async fn assert_crds_stay(cluster: &Cluster) {
    for crd in operating::api::crd::all_crds() {
        let path = "jsonpath={.metadata.deletionTimestamp}";
        let args = ["get", "crd", &crd.name_any(), "-o", path];
        assert_eq!(cluster.kubectl(&args).await, "", "{}", crd.name_any());
    }
}

fn collasets(cluster: &Cluster, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("apps.kusionstack.io", "v1alpha1", "CollaSet");
    Api::namespaced_with(cluster.client(), namespace, &ApiResource::from_gvk(&kind))
}

async fn create_collaset(cluster: &Cluster, namespace: &str) -> DynamicObject {
    let set = json!({
        "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "web:1"}]},
            },
        },
    });
    let set = serde_json::from_value(set).unwrap();
    let sets = collasets(cluster, namespace);
    sets.create(&PostParams::default(), &set).await.unwrap()
}

async fn stored(cluster: &Cluster, namespace: &str) -> DynamicObject {
    collasets(cluster, namespace).get("web").await.unwrap()
}
