//! The server's own webhook configurations, from a watch of each name into their cache.

use std::sync::Arc;

use kube::Client;
use tracing::{info, warn};

use crate::cluster::caches::Caches;
use crate::cluster::changes::Change;
use crate::cluster::registration::{News, Stored};
use crate::cluster::watch::{CatchUp, Sink, Source, UnreadableObjects};
use crate::domain::rules::registration::{
    CONFIGURATION_REMEDY, RequiredConfiguration, WebhookConfiguration,
};
use crate::tasks::Supervisor;

/// Who is told of every configuration that is stored.
pub type Told = Arc<dyn Fn(&WebhookConfiguration) + Send + Sync>;

/// Watches the configurations, each by its name: the server may read no others.
pub fn start(
    client: &Client,
    caches: &Caches,
    needed: Vec<RequiredConfiguration>,
    told: &Told,
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
            ..Source::all(path)
        };
        let sink = One {
            caches: caches.clone(),
            told: Arc::clone(told),
            place: caches.registration.expect(needed),
        };
        let (sink, catch_up) = (Arc::new(sink), CatchUp::default());
        super::spawn::<WebhookConfiguration, _>(client, caches, source, sink, catch_up, supervisor);
    }
}

/// The sink of the configuration of one name.
struct One {
    caches: Caches,
    told: Told,
    place: usize,
}

impl One {
    fn set(&self, stored: Stored) {
        if let Stored::There(configuration) = &stored {
            (self.told)(configuration);
        }
        if self.caches.registration.set(self.place, stored) {
            self.caches.changes.notify(Change::Registration);
            match self.caches.registration.news() {
                Some(News::Lacking(gap)) => warn!(
                    gap,
                    "the API server does not send all that the rules hold; {CONFIGURATION_REMEDY}"
                ),
                Some(News::Whole) => info!("the API server sends all that the rules hold again"),
                None => {}
            }
        }
    }
}

impl Sink<WebhookConfiguration> for One {
    fn parse(&self, raw: &str) -> serde_json::Result<WebhookConfiguration> {
        serde_json::from_str(raw)
    }
    fn unreadable_objects(&self) -> Option<&UnreadableObjects> {
        Some(&self.caches.unreadable)
    }
    fn replace(&self, objects: Vec<WebhookConfiguration>, _version: u64) {
        let found = objects.into_iter().next();
        self.set(found.map_or(Stored::Absent, Stored::There));
    }
    fn apply(&self, object: WebhookConfiguration) {
        self.set(Stored::There(object));
    }
    fn delete(&self, _object: WebhookConfiguration) {
        self.set(Stored::Absent);
    }
    fn bookmark(&self, _version: u64) {}
    fn unreadable(&self, _raw: &str) -> Option<WebhookConfiguration> {
        self.set(Stored::Unknown);
        None
    }
}
