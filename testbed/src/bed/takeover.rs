//! A cluster that another implementation runs, and that the server takes over.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::Api;
use kube::api::{DeleteParams, ListParams};

use super::Bed;
use crate::fleet::REPLICAS;

impl Bed {
    /// Kills all replicas and removes the webhooks. A test can store objects that no admission has judged until
    /// [`Bed::with_server`]. The bed must be a test's own.
    pub async fn without_server(&self) {
        self.kill_all().await;
        let (delete, all) = (DeleteParams::default(), ListParams::default());
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.admin());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.admin());
        mutating.delete_collection(&delete, &all).await.unwrap();
        validating.delete_collection(&delete, &all).await.unwrap();
    }

    /// Installs the server again, starts all replicas, and waits until the webhooks are called.
    pub async fn with_server(&self) {
        let installed = self.operating(&["install", "--webhook-url", self.url()]);
        assert!(installed.status.success(), "{installed:?}");
        for index in 0..REPLICAS {
            self.restart(index).await;
        }
        self.until_enforcing().await;
    }
}
