//! Kuperator's chart has its CustomResourceDefinitions and its Namespace as templates, so that `helm uninstall` deletes
//! them, and with them every object of users. These tests use the real Helm on a chart of this shape.

use std::fs;
use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use operating::api::collaset::CollaSet;
use serde_json::json;
use tempfile::TempDir;
use testbed::fleet::HOME;
use testbed::kubectl::Said;
use testbed::plane::{Options, Plane};
use testbed::server::CONFIGURATIONS;
use testbed::{rendering, wait};

const RELEASE: &str = "kuperator";
const CRD: &str = "collasets.apps.kusionstack.io";
const STATEFUL_SET: &str = "kusionstack-kuperator";
/// The label of the Secrets in which Helm stores a release.
const RELEASE_SECRETS: &str = "owner=helm,name=kuperator";

/// A cluster with a release of the chart, and a CollaSet of a user.
struct Cluster {
    plane: Plane,
    chart: TempDir,
}

impl Cluster {
    async fn start() -> Cluster {
        let chart = TempDir::new().unwrap();
        write_chart(chart.path(), "");
        let plane = Plane::start(Options::bare()).await.unwrap();
        let cluster = Cluster { plane, chart };
        let chart = cluster.chart.path().to_str().unwrap().to_owned();
        let _ = cluster.helm(&["install", RELEASE, &chart]).await.success();
        let sets = cluster.sets();
        let set = json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "metadata": { "name": "web" },
            "spec": {
                "replicas": 1, "selector": { "matchLabels": { "app": "web" } },
                "template": {
                    "metadata": { "labels": { "app": "web" } },
                    "spec": { "containers": [{ "name": "c", "image": "i:1" }] },
                },
            },
        });
        let set = serde_json::from_value(set).unwrap();
        wait::until("the kind CollaSet to be served", async || {
            sets.create(&PostParams::default(), &set).await.is_ok()
        })
        .await;
        assert!(cluster.runs_kuperator().await);
        cluster
    }

    fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    fn sets(&self) -> Api<CollaSet> {
        Api::namespaced(self.client(), "default")
    }

    async fn helm(&self, args: &[&str]) -> Said {
        let home = self.chart.path().join("home");
        let command = tokio::task::spawn_blocking(move || rendering::helm(&home));
        let output = tokio::process::Command::from(command.await.unwrap().unwrap())
            .args(args)
            .args(["-n", "default"])
            .env("KUBECONFIG", self.plane.kubeconfig())
            .output();
        output.await.unwrap().into()
    }

    async fn kubectl(&self, args: &[&str]) {
        let _ = self.plane.ask_kubectl(args).await.success();
    }

    /// Whether the set of the user is stored and not in deletion.
    async fn has_set(&self) -> bool {
        let found = self.sets().get_opt("web").await.ok().flatten();
        found.is_some_and(|set| set.metadata.deletion_timestamp.is_none())
    }

    async fn has_namespace(&self) -> bool {
        let namespaces: Api<Namespace> = Api::all(self.client());
        let found = namespaces.get_opt(HOME).await.unwrap();
        found.is_some_and(|namespace| namespace.metadata.deletion_timestamp.is_none())
    }

    /// Whether the webhook configuration is there whose name Operating has, too.
    async fn has_webhooks(&self) -> bool {
        let all: Api<MutatingWebhookConfiguration> = Api::all(self.client());
        all.get_opt(CONFIGURATIONS[0]).await.unwrap().is_some()
    }

    async fn runs_kuperator(&self) -> bool {
        let sets: Api<StatefulSet> = Api::namespaced(self.client(), HOME);
        sets.get_opt(STATEFUL_SET).await.unwrap().is_some()
    }

    /// Fails unless Kuperator is gone and everything else is there.
    async fn assert_only_kuperator_gone(&self) {
        wait::until("Kuperator to be gone", async || {
            !self.runs_kuperator().await
        })
        .await;
        assert!(self.has_namespace().await);
        assert!(self.has_set().await);
        let releases = self.helm(&["list", "--short"]).await.success();
        assert_eq!(releases.out.trim(), "");
    }
}

/// Writes a chart. `annotations` is a YAML map for the metadata of what must stay.
fn write_chart(chart: &Path, annotations: &str) {
    let templates = chart.join("templates");
    fs::create_dir_all(&templates).unwrap();
    let meta = "apiVersion: v2\nname: kuperator\nversion: 0.1.0\n";
    fs::write(chart.join("Chart.yaml"), meta).unwrap();
    let definition = format!(
        r#"apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: {CRD}
  annotations: {{{annotations}}}
spec:
  group: apps.kusionstack.io
  names: {{kind: CollaSet, listKind: CollaSetList, plural: collasets, singular: collaset}}
  scope: Namespaced
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        x-kubernetes-preserve-unknown-fields: true
"#
    );
    fs::write(templates.join("crd.yaml"), definition).unwrap();
    let namespace = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {HOME}\n  annotations: {{{annotations}}}\n"
    );
    fs::write(templates.join("namespace.yaml"), namespace).unwrap();
    let webhooks = format!(
        "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata:\n  name: {}\nwebhooks: []\n",
        CONFIGURATIONS[0]
    );
    fs::write(templates.join("webhooks.yaml"), webhooks).unwrap();
    let stateful_set = format!(
        r#"apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {STATEFUL_SET}
  namespace: {HOME}
spec:
  replicas: 3
  serviceName: kuperator
  selector: {{matchLabels: {{app: kuperator}}}}
  template:
    metadata: {{labels: {{app: kuperator}}}}
    spec: {{containers: [{{name: manager, image: "kuperator:1"}}]}}
"#
    );
    fs::write(templates.join("kuperator.yaml"), stateful_set).unwrap();
}

#[tokio::test]
async fn uninstall_deletes_every_collaset() {
    let cluster = Cluster::start().await;
    let _ = cluster.helm(&["uninstall", RELEASE]).await;
    wait::until("the CollaSet to be gone", async || !cluster.has_set().await).await;
    assert!(!cluster.has_namespace().await);
}

/// Helm reads the annotation in the manifest of the release, not in the cluster.
#[tokio::test]
async fn annotation_in_the_cluster_keeps_nothing() {
    let cluster = Cluster::start().await;
    let keep = "helm.sh/resource-policy=keep";
    cluster.kubectl(&["annotate", "crd", CRD, keep]).await;
    cluster
        .kubectl(&["annotate", "namespace", HOME, keep])
        .await;
    let _ = cluster.helm(&["uninstall", RELEASE]).await;
    wait::until("the CollaSet to be gone", async || !cluster.has_set().await).await;
    assert!(!cluster.has_namespace().await);
}

#[tokio::test]
async fn upgrade_with_annotations_in_templates_keeps_objects() {
    let cluster = Cluster::start().await;
    write_chart(cluster.chart.path(), r#""helm.sh/resource-policy": keep"#);
    let chart = cluster.chart.path().to_str().unwrap();
    let upgrade = ["upgrade", RELEASE, chart, "--reuse-values"];
    let _ = cluster.helm(&upgrade).await.success();
    let _ = cluster.helm(&["uninstall", RELEASE]).await.success();
    cluster.assert_only_kuperator_gone().await;
    // If Operating has taken the configuration over, its webhooks go.
    assert!(!cluster.has_webhooks().await);
}

/// Without its Secrets, Helm knows no release, and an uninstall by mistake deletes nothing.
#[tokio::test]
async fn forgotten_release_keeps_objects() {
    let cluster = Cluster::start().await;
    cluster
        .kubectl(&["delete", "secret", "-n", "default", "-l", RELEASE_SECRETS])
        .await;
    let uninstall = cluster.helm(&["uninstall", RELEASE]).await;
    assert!(!uninstall.succeeded(), "{uninstall:?}");
    assert!(cluster.runs_kuperator().await);
    cluster
        .kubectl(&["delete", "statefulset", "-n", HOME, STATEFUL_SET])
        .await;
    cluster.assert_only_kuperator_gone().await;
    assert!(cluster.has_webhooks().await);
}
