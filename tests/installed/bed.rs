//! A plane of its own, since what is installed bears on all of it, and a few shortcuts.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use operating::admission::routes::{MUTATING, VALIDATING};
use operating::api::keys;
use operating::cli::install::names;
use serde_json::json;
use testbed::plane::{Options, Plane};
use tokio::sync::{Mutex, MutexGuard};

/// Far beyond what anything takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(180);

/// The same for kubectl, which waits until a namespace is gone. The namespace controller may look at one again only after its
/// resync period of five minutes.
const KUBECTL_PATIENCE: Duration = Duration::from_secs(420);

/// One plane at a time: two would only wait for each other.
static ALONE: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

pub struct Bed {
    pub plane: Plane,
    _alone: MutexGuard<'static, ()>,
}

impl Bed {
    pub async fn start(nodes: usize) -> Bed {
        Bed::with(nodes, false).await
    }

    /// As [`Bed::start`], with an audit log.
    pub async fn audited(nodes: usize) -> Bed {
        Bed::with(nodes, true).await
    }

    async fn with(nodes: usize, audit: bool) -> Bed {
        let alone = ALONE.lock().await;
        let options = Options {
            nodes,
            audit,
            ..Options::default()
        };
        Bed {
            plane: Plane::start(options).await.unwrap(),
            _alone: alone,
        }
    }

    pub fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    /// Runs `kubectl`; what it prints.
    pub async fn kubectl(&self, args: &[&str]) -> String {
        let running = tokio::time::timeout(KUBECTL_PATIENCE, self.plane.kubectl(args).output());
        let Ok(output) = running.await else {
            let left = self.going().await;
            panic!(
                "kubectl {args:?} did not end within {KUBECTL_PATIENCE:?}; what is going:\n{left}"
            );
        };
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {args:?}: {text}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Status of every namespace and CRD that is being deleted, and what is left in our own namespace.
    async fn going(&self) -> String {
        let mut found = String::new();
        let status = "go-template={{range .items}}{{if .metadata.deletionTimestamp}}{{.kind}} {{.metadata}} \
                      {{.status.conditions}}\n{{end}}{{end}}";
        let ours = "pods,secrets,certificates,certificaterequests,leases,events";
        for args in [
            &["get", "namespaces,customresourcedefinitions", "-o", status][..],
            &["get", ours, "-n", names::NAMESPACE, "-o", "wide"],
        ] {
            let output = self.plane.kubectl(args).output().await.unwrap();
            found += &String::from_utf8_lossy(&output.stdout);
            found += &String::from_utf8_lossy(&output.stderr);
        }
        found
    }

    /// Runs the command line as the administrator; what it prints.
    pub async fn operating(&self, args: &[&str]) -> String {
        let running = tokio::process::Command::new(env!("CARGO_BIN_EXE_operating"))
            .args(args)
            .env("OPERATING_KUBECONFIG", self.plane.kubeconfig())
            .env_remove("KUBECONFIG")
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(PATIENCE, running).await;
        let output = output.expect("operating hangs").unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "operating {args:?}: {text}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The `caBundle`s (PEM) in the entries of both configurations; an entry without one counts as an empty one.
    pub async fn bundles(&self) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        for (kind, name) in [
            ("MutatingWebhookConfiguration", MUTATING),
            ("ValidatingWebhookConfiguration", VALIDATING),
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

    /// A rule over `app=load` in a fresh namespace, which is marked when this returns.
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
        eventually("a rule is accepted", async || {
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
        eventually("the namespace is marked", async || {
            let found = namespaces.get(&namespace).await.unwrap();
            found.labels().contains_key(keys::NAMESPACE_HAS_RULES)
        })
        .await;
        namespace
    }

    /// Nothing that bears on the cluster is left.
    pub async fn assert_gone(&self) {
        assert_eq!(self.bundles().await, BTreeSet::new());
        let crds: Api<CustomResourceDefinition> = Api::all(self.client());
        let crds = crds.list_metadata(&ListParams::default()).await.unwrap();
        let ours = crds.items.iter().map(|crd| crd.name_any());
        let ours: Vec<_> = ours.filter(|name| name.ends_with(keys::GROUP)).collect();
        assert_eq!(ours, Vec::<String>::new());
        let home: Api<Namespace> = Api::all(self.client());
        assert_eq!(home.get_opt(names::NAMESPACE).await.unwrap(), None);
        let access = ["get", "clusterroles,clusterrolebindings", "-o", "name"];
        let left = self.kubectl(&access).await;
        // The plane has roles of its own.
        let left = left
            .lines()
            .filter(|l| l.contains("/operating") && !l.contains("/operating-plane:"));
        let left: Vec<_> = left.collect();
        assert_eq!(left, Vec::<&str>::new());
    }
}

/// Asks until it holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let asked = tokio::time::timeout(PATIENCE, asking).await;
    asked.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}
