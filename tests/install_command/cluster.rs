//! A plane without a server, and functions that several tests use.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Client, Resource, ResourceExt};
use operating::admission::routes::{MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION};
use operating::api::keys;
use operating::cli::install::{self, EnabledFeatures, names};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::plane::{Options, Plane};
use testbed::wait;

/// A plane for one test, because installed objects affect the whole plane.
pub struct Cluster {
    plane: Plane,
}

/// A managed, available Pod that no node runs.
pub fn pod(name: &str) -> Value {
    let labels = json!({keys::CONTROL: keys::CONTROL_VALUE, keys::SERVICE_AVAILABLE: "1"});
    let resources = json!({"requests": {"cpu": "1m"}});
    json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": "c", "image": "i:1", "resources": resources}],
                 "schedulerName": "nobody"},
    })
}

impl Cluster {
    pub async fn start() -> Self {
        Self {
            plane: Plane::start(Options::bare()).await.unwrap(),
        }
    }

    /// A plane with the CRDs and the RBAC objects of all features, and without a server.
    pub async fn with_crds_and_rights() -> Self {
        let cluster = Self::start().await;
        let (client, features) = (cluster.client(), EnabledFeatures::ALL_FEATURES);
        let crds = install::install_crds(&client, names::NAMESPACE).await;
        crds.unwrap();
        let rights = install::install_rbac(&client, names::NAMESPACE, features).await;
        rights.unwrap();
        cluster
    }

    pub fn plane(&self) -> &Plane {
        &self.plane
    }

    pub fn client(&self) -> Client {
        self.plane.client().unwrap()
    }

    pub async fn namespace(&self, prefix: &str) -> String {
        self.plane.namespace(prefix).await.unwrap()
    }

    /// A certificate in PEM form.
    pub fn ca(&self) -> Vec<u8> {
        let names = vec!["localhost".to_owned()];
        rcgen::generate_simple_self_signed(names)
            .unwrap()
            .cert
            .pem()
            .into_bytes()
    }

    fn api(&self, object: &DynamicObject) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::try_from(object.types.as_ref().unwrap()).unwrap();
        let resource = ApiResource::from_gvk(&gvk);
        match object.namespace() {
            Some(namespace) => Api::namespaced_with(self.client(), &namespace, &resource),
            None => Api::all_with(self.client(), &resource),
        }
    }

    pub async fn create(&self, object: DynamicObject) -> DynamicObject {
        self.api(&object)
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    pub async fn create_pod(&self, namespace: &str, pod: Value) {
        let api: Api<Pod> = Api::namespaced(self.client(), namespace);
        api.create(
            &PostParams::default(),
            &serde_json::from_value(pod).unwrap(),
        )
        .await
        .unwrap();
    }

    pub async fn create_rule(&self, namespace: &str) -> kube::Result<()> {
        let rule: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "PodTransitionRule",
            "metadata": {"name": "r", "namespace": namespace}, "spec": {"selector": {}, "rules": []},
        }))
        .unwrap();
        self.api(&rule)
            .create(&PostParams::default(), &rule)
            .await
            .map(drop)
    }

    /// Strategic merge patch of an object or a subresource; `""` is the object.
    pub async fn patch<K>(
        &self,
        namespace: Option<&str>,
        name: &str,
        subresource: &str,
        change: &Value,
    ) -> kube::Result<()>
    where
        K: k8s_openapi::Resource + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(self.client(), namespace, &resource),
            None => Api::all_with(self.client(), &resource),
        };
        let (params, patch) = (PatchParams::default(), Patch::Strategic(change));
        match subresource {
            "" => api.patch(name, &params, &patch).await.map(drop),
            other => api
                .patch_subresource(other, name, &params, &patch)
                .await
                .map(drop),
        }
    }

    pub async fn configuration_opt(&self, name: &str) -> Option<DynamicObject> {
        let kind = if name == MUTATING_CONFIGURATION {
            "MutatingWebhookConfiguration"
        } else {
            "ValidatingWebhookConfiguration"
        };
        assert!(name == MUTATING_CONFIGURATION || name == VALIDATING_CONFIGURATION);
        let gvk = GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind);
        Api::all_with(self.client(), &ApiResource::from_gvk(&gvk))
            .get_opt(name)
            .await
            .unwrap()
    }

    pub async fn configuration(&self, name: &str) -> DynamicObject {
        self.configuration_opt(name).await.unwrap()
    }

    /// Waits until the API server's own caches have the webhooks and the label of the namespace.
    pub async fn until_denied(&self, namespace: &str) {
        self.create_pod(namespace, pod("probe")).await;
        let mut value = 0;
        wait::until("a label edit is denied", || {
            value += 1;
            let change = json!({"metadata": {"labels": {"probe": value.to_string()}}});
            async move {
                self.patch::<Pod>(Some(namespace), "probe", "", &change)
                    .await
                    .is_err()
            }
        })
        .await;
    }

    /// Waits until the API server's own caches have the webhooks.
    pub async fn until_configured(&self, namespace: &str) {
        self.create_pod(namespace, pod("probe")).await;
        let sent = "apiserver_admission_webhook_fail_open_count{name=\"pod-update-unruled.apps.kusionstack.io\"";
        let mut value = 0;
        wait::until("a label edit is sent", || {
            value += 1;
            let change = json!({"metadata": {"labels": {"probe": value.to_string()}}});
            async move {
                self.patch::<Pod>(Some(namespace), "probe", "", &change)
                    .await
                    .unwrap();
                self.metric(sent).await > 0.0
            }
        })
        .await;
    }

    pub async fn until_gone<K>(&self, api: &Api<K>, name: &str)
    where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        wait::until("the object is gone", || async {
            api.get_metadata_opt(name).await.unwrap().is_none()
        })
        .await;
    }

    /// Sum of the API server's series whose text begins with this; 0 without such series.
    pub async fn metric(&self, series: &str) -> f64 {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = self.client().request_text(request).await.unwrap();
        let lines = text.lines().filter(|line| line.starts_with(series));
        lines
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}
