//! Puts the server's own webhook configurations into their cache, from one watch for each name.

use std::sync::Arc;

use kube::Client;
use tracing::{info, warn};

use crate::cluster::caches::Caches;
use crate::cluster::changes::Change;
use crate::cluster::watch::{CatchUpSignal, Source, UnreadableObjects, WatchSink};
use crate::cluster::webhook_registration::{RegistrationChange, StoredConfiguration};
use crate::domain::rules::registration::{
    CONFIGURATION_REMEDY, RequiredConfiguration, WebhookConfiguration,
};
use crate::tasks::Supervisor;

/// A callback that receives every stored configuration.
pub type ConfigurationObserver = Arc<dyn Fn(&WebhookConfiguration) + Send + Sync>;

/// Watches each configuration by its name, because the server may read no others.
pub fn start_registration_watches(
    client: &Client,
    caches: &Caches,
    needed: Vec<RequiredConfiguration>,
    observer: &ConfigurationObserver,
    supervisor: &Supervisor,
) {
    for needed in needed {
        let path = match needed.kind {
            "MutatingWebhookConfiguration" => {
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
            }
            _ => "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
        };
        let source = Source {
            fields: Some(format!("metadata.name={}", needed.name)),
            ..Source::from_path(path)
        };
        let sink = ConfigurationSink {
            caches: caches.clone(),
            observer: Arc::clone(observer),
            index: caches.registration.expect_configuration(needed),
        };
        let (sink, catch_up) = (Arc::new(sink), CatchUpSignal::default());
        super::spawn_watch::<WebhookConfiguration, _>(
            client, caches, source, sink, catch_up, supervisor,
        );
    }
}

/// The sink of one configuration.
struct ConfigurationSink {
    caches: Caches,
    observer: ConfigurationObserver,
    /// The index of the configuration in the registration.
    index: usize,
}

impl ConfigurationSink {
    fn set_stored(&self, stored: StoredConfiguration) {
        if let StoredConfiguration::Stored(configuration) = &stored {
            (self.observer)(configuration);
        }
        if self.caches.registration.set_stored(self.index, stored) {
            self.caches.changes.notify(Change::Registration);
            match self.caches.registration.take_change() {
                Some(RegistrationChange::Lacking(gap)) => warn!(
                    gap,
                    "the API server does not send all requests that the rules hold; {CONFIGURATION_REMEDY}"
                ),
                Some(RegistrationChange::Complete) => {
                    info!("the API server sends all requests that the rules hold again")
                }
                None => {}
            }
        }
    }
}

impl WatchSink<WebhookConfiguration> for ConfigurationSink {
    fn parse(&self, raw: &str) -> serde_json::Result<WebhookConfiguration> {
        serde_json::from_str(raw)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
    fn replace(&self, objects: Vec<WebhookConfiguration>, _version: u64) {
        let found = objects.into_iter().next();
        self.set_stored(found.map_or(StoredConfiguration::Absent, StoredConfiguration::Stored));
    }
    fn apply(&self, object: WebhookConfiguration) {
        self.set_stored(StoredConfiguration::Stored(object));
    }
    fn delete(&self, _object: WebhookConfiguration) {
        self.set_stored(StoredConfiguration::Absent);
    }
    fn bookmark(&self, _version: u64) {}
    fn parse_unreadable(&self, _raw: &str) -> Option<WebhookConfiguration> {
        self.set_stored(StoredConfiguration::Unknown);
        None
    }
}
