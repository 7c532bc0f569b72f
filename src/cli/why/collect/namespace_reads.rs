//! Lists the objects of a namespace, each kind at most once for all objects that are explained.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use kube::api::{Api, ListParams, PartialObjectMeta};
use tokio::sync::OnceCell;

use crate::api::keys;
use crate::api::operationjob::OperationJob;
use crate::api::poddecoration::PodDecoration;
use crate::cli::why::api_reads;
use crate::cluster::request_path::ResourcePath;
use crate::domain::diagnosis::RuleObject;
use crate::domain::pod::Pod;
use crate::domain::rules::conditions;

/// Group and version of our own kinds, as a path.
pub const OWN_API: &str = "/apis/apps.kusionstack.io/v1alpha1";

/// A list that was read, or why it could not be read.
type Listed<T> = OnceCell<Result<Vec<T>, String>>;

/// The lists of a namespace. Each is read when it is needed for the first time.
pub struct NamespaceReads {
    pub client: Client,
    pub namespace: String,
    rules: Listed<RuleObject>,
    pods: Listed<Arc<Pod>>,
    managed_pods: Listed<Arc<Pod>>,
    jobs: Listed<OperationJob>,
    decorations: Listed<PodDecoration>,
    disruption_budgets: Listed<PodDisruptionBudget>,
    excluded: OnceCell<Option<String>>,
}

impl NamespaceReads {
    /// Nothing is read yet.
    pub fn new(client: &Client, namespace: &str) -> NamespaceReads {
        NamespaceReads {
            client: client.clone(),
            namespace: namespace.to_owned(),
            rules: OnceCell::new(),
            pods: OnceCell::new(),
            managed_pods: OnceCell::new(),
            jobs: OnceCell::new(),
            decorations: OnceCell::new(),
            disruption_budgets: OnceCell::new(),
            excluded: OnceCell::new(),
        }
    }

    /// The rule objects.
    pub async fn rules(&self) -> anyhow::Result<Vec<RuleObject>> {
        let read = api_reads::list_rules(&self.client, Some(&self.namespace));
        read_once(&self.rules, read).await
    }

    /// All Pods.
    pub async fn pods(&self) -> anyhow::Result<Vec<Arc<Pod>>> {
        read_once(&self.pods, self.list_pods(None)).await
    }

    /// The managed Pods.
    pub async fn managed_pods(&self) -> anyhow::Result<Vec<Arc<Pod>>> {
        if let Some(Ok(pods)) = self.pods.get() {
            let managed = pods.iter().filter(|pod| pod.is_managed());
            return Ok(managed.map(Arc::clone).collect());
        }
        let read = self.list_pods(Some(keys::CONTROL_SELECTOR));
        read_once(&self.managed_pods, read).await
    }

    /// The OperationJobs.
    pub async fn jobs(&self) -> anyhow::Result<Vec<OperationJob>> {
        let read = async {
            let listed = async {
                let path = ResourcePath::from_parts(OWN_API, &self.namespace, "operationjobs")?;
                api_reads::list_all_pages(&self.client, path.path(), None).await
            };
            let namespace = Some(&*self.namespace);
            api_reads::call_with_timeout("list", "operationjobs", namespace, listed).await
        };
        read_once(&self.jobs, read).await
    }

    /// The PodDecorations.
    pub async fn decorations(&self) -> anyhow::Result<Vec<PodDecoration>> {
        let decorations: Api<PodDecoration> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default();
        let read = async {
            let listed = decorations.list(&params);
            let namespace = Some(&*self.namespace);
            let listed =
                api_reads::call_with_timeout("list", "poddecorations", namespace, listed).await?;
            Ok(listed.items)
        };
        read_once(&self.decorations, read).await
    }

    /// The PodDisruptionBudgets.
    pub async fn disruption_budgets(&self) -> anyhow::Result<Vec<PodDisruptionBudget>> {
        let budgets: Api<PodDisruptionBudget> =
            Api::namespaced(self.client.clone(), &self.namespace);
        let params = ListParams::default();
        let read = async {
            let listed = budgets.list(&params);
            let namespace = Some(&*self.namespace);
            let listed =
                api_reads::call_with_timeout("list", "poddisruptionbudgets", namespace, listed)
                    .await?;
            Ok(listed.items)
        };
        read_once(&self.disruption_budgets, read).await
    }

    /// Why the namespace is excluded. `None` also if the user may not read the namespace. Such users see the reason in
    /// the conditions of the rules.
    pub async fn exclusion_reason(&self) -> Option<String> {
        let read = async {
            let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(self.client.clone());
            let namespace = &*self.namespace;
            let read = namespaces.get_metadata_opt(namespace);
            let found =
                api_reads::call_with_timeout("get", "namespaces", Some(namespace), read).await;
            let labels = found.ok().flatten().and_then(|n| n.metadata.labels);
            conditions::exclusion_reason(namespace, labels.as_ref(), None)
        };
        self.excluded.get_or_init(|| read).await.clone()
    }

    async fn list_pods(&self, labels: Option<&str>) -> anyhow::Result<Vec<Arc<Pod>>> {
        let listed = async {
            let path = ResourcePath::from_parts("/api/v1", &self.namespace, "pods")?;
            api_reads::list_all_pages::<Pod>(&self.client, path.path(), labels).await
        };
        let namespace = Some(&*self.namespace);
        let listed = api_reads::call_with_timeout("list", "pods", namespace, listed).await?;
        Ok(listed.into_iter().map(Arc::new).collect())
    }
}

/// Reads a list unless it, or its error, is known.
async fn read_once<T: Clone>(
    listed: &Listed<T>,
    read: impl Future<Output = anyhow::Result<Vec<T>>>,
) -> anyhow::Result<Vec<T>> {
    let read = async { read.await.map_err(|error| format!("{error:#}")) };
    let listed = listed.get_or_init(|| read).await;
    listed.clone().map_err(anyhow::Error::msg)
}
