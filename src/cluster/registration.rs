//! The server's own webhook configurations as they are stored, cached for the status of rules: what the API server does
//! not send, nobody holds. Nothing of the guarantee rests on this cache.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::Client;
use parking_lot::RwLock;
use tokio_util::sync::CancellationToken;

use super::index::{Change, Index};
use super::sources;
use super::watch::{Relist, Sink, Source};
use crate::domain::rules::registration::{Configuration, Needed};

/// The cache. Empty unless [`start`] has been called.
#[derive(Debug, Default)]
pub struct Registration(RwLock<Vec<(Needed, Stored)>>);

/// What is stored under a name.
#[derive(Debug, PartialEq)]
enum Stored {
    /// Not yet listed, or the server may not read it.
    Unknown,
    /// Nothing.
    Absent,
    /// This.
    There(Configuration),
}

impl Registration {
    /// What the API server does not send of a namespace with these labels: a clause. `None` if all is sent, and if the
    /// stored configurations are not known.
    pub fn gap(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let all = self.0.read();
        all.iter().find_map(|(needed, stored)| match stored {
            Stored::Unknown => None,
            Stored::Absent => needed.gap(None, labels),
            Stored::There(found) => needed.gap(Some(found), labels),
        })
    }

    /// Adds a configuration of which nothing is known yet; returns its place.
    fn expect(&self, needed: Needed) -> usize {
        let mut all = self.0.write();
        all.push((needed, Stored::Unknown));
        all.len() - 1
    }

    /// Returns whether that is news.
    fn set(&self, place: usize, now: Stored) -> bool {
        let mut all = self.0.write();
        let Some((_, stored)) = all.get_mut(place).filter(|(_, stored)| *stored != now) else {
            return false;
        };
        *stored = now;
        true
    }
}

/// Watches the configurations, each by its name: the server may read no others.
pub fn start(client: &Client, index: &Arc<Index>, needed: Vec<Needed>, stop: &CancellationToken) {
    for needed in needed {
        let source = Source {
            path: match needed.kind {
                "MutatingWebhookConfiguration" => {
                    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
                }
                _ => "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
            },
            labels: None,
            fields: Some(format!("metadata.name={}", needed.name)),
        };
        let sink = One {
            index: Arc::clone(index),
            place: index.registration.expect(needed),
        };
        let (sink, relist) = (Arc::new(sink), Relist::default());
        sources::spawn::<Configuration, _>(client, source, sink, relist, stop);
    }
}

struct One {
    index: Arc<Index>,
    place: usize,
}

impl One {
    fn set(&self, stored: Stored) {
        if self.index.registration.set(self.place, stored) {
            self.index.tell(Change::Registration);
        }
    }
}

impl Sink<Configuration> for One {
    fn replace(&self, objects: Vec<Configuration>, _version: u64) {
        let found = objects.into_iter().next();
        self.set(found.map_or(Stored::Absent, Stored::There));
    }
    fn apply(&self, object: Configuration) {
        self.set(Stored::There(object));
    }
    fn delete(&self, _object: Configuration) {
        self.set(Stored::Absent);
    }
    fn bookmark(&self, _version: u64) {}
    fn unreadable(&self, _raw: &str) -> Option<Configuration> {
        self.index.count_unreadable();
        self.set(Stored::Unknown);
        None
    }
}
