//! A plane for one test, because installed objects affect the whole plane, and functions that several tests use.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use operating::admission::routes::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use operating::api::keys;
use operating::cli::install::names;
use serde_json::json;
use testbed::kubectl::Said;
use testbed::plane::{Options, Plane};
use testbed::replica::{Replica, Setup};
use testbed::wait;
use tokio::sync::{Mutex, MutexGuard};
use tokio_util::task::AbortOnDropHandle;

use super::network::Network;

/// Timeout for kubectl when it waits for the end of a namespace. The namespace controller may look at a namespace again
/// only after its resync period of five minutes.
const KUBECTL_PATIENCE: Duration = Duration::from_secs(420);

/// One plane at a time, because two would slow each other down.
static ALONE: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

/// A plane of its own for one test, on which nothing is installed yet.
pub struct Cluster {
    pub plane: Plane,
    _network: Option<AbortOnDropHandle<()>>,
    _alone: MutexGuard<'static, ()>,
}

impl Cluster {
    pub async fn start(nodes: usize) -> Cluster {
        Cluster::with(nodes, false, None).await
    }

    /// The same as [`Cluster::start`], with an audit log.
    pub async fn audited(nodes: usize) -> Cluster {
        Cluster::with(nodes, true, None).await
    }

    /// The same as [`Cluster::start`]. The API server reaches the Pods behind Services.
    pub async fn networked(nodes: usize) -> Cluster {
        Cluster::with(nodes, false, Some(Network::prepare())).await
    }

    async fn with(nodes: usize, audit: bool, network: Option<Network>) -> Cluster {
        let alone = ALONE.lock().await;
        let options = Options {
            nodes,
            audit,
            apiserver_flags: network.iter().map(Network::flag).collect(),
            ..Options::default()
        };
        let plane = Plane::start(options).await.unwrap();
        Cluster {
            _network: network.map(|network| network.serve(plane.client().unwrap())),
            plane,
            _alone: alone,
        }
    }

    pub fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    /// Starts a replica, `operating serve --leader-elect` with further flags, and waits until it is ready.
    pub async fn replica(&self, name: &str, flags: &[&str]) -> Replica {
        let setup = Setup {
            name: name.to_owned(),
            supervisor: self.plane.controlplane_binary().to_owned(),
            logs: self.plane.logs(),
            flags: flags.iter().map(Into::into).collect(),
            task_faults: None,
        };
        let replica = Replica::start(&setup, &testbed::server::binary()).await;
        replica.unwrap()
    }

    /// Runs `kubectl`. Returns its output.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        let running = tokio::time::timeout(KUBECTL_PATIENCE, self.plane.ask_kubectl(args));
        let Ok(output) = running.await else {
            let terminating = self.going().await;
            panic!(
                "kubectl {args:?} did not end within {KUBECTL_PATIENCE:?}; what is going:\n{terminating}"
            );
        };
        output.success().out
    }

    /// The status of every namespace and CRD that is being deleted, and the objects left in our own namespace.
    async fn going(&self) -> String {
        let mut found = String::new();
        let status = "go-template={{range .items}}{{if .metadata.deletionTimestamp}}{{.kind}} {{.metadata}} \
                      {{.status.conditions}}\n{{end}}{{end}}";
        let ours = "pods,secrets,certificates,certificaterequests,leases,events";
        for args in [
            &["get", "namespaces,customresourcedefinitions", "-o", status][..],
            &["get", ours, "-n", names::NAMESPACE, "-o", "wide"],
        ] {
            found += &self.plane.ask_kubectl(args).await.text();
        }
        found
    }

    /// Runs the command line as the administrator. Returns its output.
    pub async fn operating(&self, args: &[&str]) -> String {
        let running = tokio::process::Command::new(testbed::server::binary())
            .args(args)
            .env("OPERATING_KUBECONFIG", self.plane.kubeconfig())
            .env_remove("KUBECONFIG")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(wait::PATIENCE, running).await;
        Said::from(output.expect("operating hangs").unwrap())
            .success()
            .out
    }

    /// The `caBundle`s (PEM) in the entries of both configurations; an entry without one counts as an empty one.
    pub async fn bundles(&self) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        for (kind, name) in [
            ("MutatingWebhookConfiguration", MUTATING_CONFIGURATION),
            ("ValidatingWebhookConfiguration", VALIDATING_CONFIGURATION),
        ] {
            let kind = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
            let api: Api<DynamicObject> =
                Api::all_with(self.client(), &ApiResource::from_gvk(&kind));
            let Some(object) = api.get_opt(name).await.unwrap() else {
                continue;
            };
            for entry in object.data["webhooks"].as_array().unwrap() {
                let bundle = serde_json::from_value(entry["clientConfig"]["caBundle"].clone());
                found.insert(bundle.map(|ByteString(b)| b).unwrap_or_default());
            }
        }
        found
    }

    /// The one `caBundle` of all entries.
    pub async fn bundle(&self) -> Option<Vec<u8>> {
        let mut all = self.bundles().await.into_iter();
        match (all.next(), all.next()) {
            (Some(bundle), None) if !bundle.is_empty() => Some(bundle),
            _ => None,
        }
    }

    /// `key` of a Secret of the server's namespace.
    pub async fn secret(&self, name: &str, key: &str) -> Option<Vec<u8>> {
        let secrets: Api<Secret> = Api::namespaced(self.client(), names::NAMESPACE);
        let data = secrets.get_opt(name).await.unwrap()?.data?;
        data.get(key).map(|value| value.0.clone())
    }

    /// A rule over `app=load` in a fresh namespace. The namespace has the enforcement label when this function returns.
    pub async fn ruled_namespace(&self, finalizers: &[&str]) -> String {
        let namespace = self.plane.namespace("ruled").await.unwrap();
        let rule: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": {"name": "half", "finalizers": finalizers},
            "spec": {
                "selector": {"matchLabels": {"app": "load"}},
                "rules": [{"name": "half", "availablePolicy": {"maxUnavailableValue": "50%"}}],
            },
        }))
        .unwrap();
        let kind = GroupVersionKind::try_from(rule.types.as_ref().unwrap()).unwrap();
        let rules: Api<DynamicObject> =
            Api::namespaced_with(self.client(), &namespace, &ApiResource::from_gvk(&kind));
        wait::until("a rule is accepted", async || {
            match rules.create(&PostParams::default(), &rule).await {
                Ok(_) => true,
                Err(error) => {
                    eprintln!("a rule: {error}");
                    false
                }
            }
        })
        .await;
        let namespaces: Api<Namespace> = Api::all(self.client());
        wait::until("the namespace is labelled", async || {
            let found = namespaces.get(&namespace).await.unwrap();
            found.labels().contains_key(keys::NAMESPACE_ENFORCEMENT)
        })
        .await;
        namespace
    }

    /// Asserts that no object of the installation is left.
    pub async fn assert_gone(&self) {
        assert_eq!(self.bundles().await, BTreeSet::new());
        let crds: Api<CustomResourceDefinition> = Api::all(self.client());
        let crds = crds.list_metadata(&ListParams::default()).await.unwrap();
        let ours = crds.items.iter().map(|crd| crd.name_any());
        let ours: Vec<_> = ours.filter(|name| name.ends_with(keys::GROUP)).collect();
        assert_eq!(ours, Vec::<String>::new());
        let namespaces: Api<Namespace> = Api::all(self.client());
        assert_eq!(namespaces.get_opt(names::NAMESPACE).await.unwrap(), None);
        let access = ["get", "clusterroles,clusterrolebindings", "-o", "name"];
        let roles = self.kubectl(&access).await;
        // The plane itself has roles of its own.
        let roles = roles
            .lines()
            .filter(|l| l.contains("/operating") && !l.contains("/operating-plane:"));
        let roles: Vec<_> = roles.collect();
        assert_eq!(roles, Vec::<&str>::new());
    }
}
