//! The server's own webhook configurations as they are stored, cached for the status of rules: what the API server does
//! not send, nobody holds. Nothing of the guarantee rests on this cache.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kube::Client;
use parking_lot::RwLock;
use tracing::{info, warn};

use super::index::{Change, Index};
use super::sources;
use super::unread::Unread;
use super::watch::{CatchUp, Sink, Source};
use crate::api::keys;
use crate::domain::rules::mark::Mark;
use crate::domain::rules::registration::{Configuration, Needed, REMEDY};
use crate::tasks::Supervisor;

/// The cache. Empty unless [`start`] has been called.
#[derive(Debug, Default)]
pub struct Registration {
    all: RwLock<Vec<(Needed, Stored)>>,
    /// Whether the log was told last that something is lacking.
    lacking: AtomicBool,
}

/// What the log is told.
#[derive(Debug, PartialEq)]
enum News {
    /// The registration has become lacking: the clause of [`Needed::gap`].
    Lacking(String),
    /// It is whole again.
    Whole,
}

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
        let all = self.all.read();
        all.iter().find_map(|(needed, stored)| match stored {
            Stored::Unknown => None,
            Stored::Absent => needed.gap(None, labels),
            Stored::There(found) => needed.gap(Some(found), labels),
        })
    }

    /// Whether namespaces with rules are sent in full, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.lack().is_none()
    }

    /// What is not sent of namespaces with rules.
    fn lack(&self) -> Option<String> {
        let marks = [Mark::Ruled, Mark::Strict].into_iter();
        let mut marks = marks.filter_map(|mark| {
            Some(
                [(
                    keys::NAMESPACE_HAS_RULES.to_owned(),
                    mark.value()?.to_owned(),
                )]
                .into(),
            )
        });
        marks.find_map(|labels| self.gap(&labels))
    }

    /// Adds a configuration of which nothing is known yet; returns its place.
    fn expect(&self, needed: Needed) -> usize {
        let mut all = self.all.write();
        all.push((needed, Stored::Unknown));
        all.len() - 1
    }

    /// Returns whether that is news.
    fn set(&self, place: usize, now: Stored) -> bool {
        let mut all = self.all.write();
        let Some((_, stored)) = all.get_mut(place).filter(|(_, stored)| *stored != now) else {
            return false;
        };
        *stored = now;
        true
    }

    /// What a change is to the log, each time once: whether namespaces with rules are sent in full.
    fn news(&self) -> Option<News> {
        match self.lack() {
            Some(gap) => {
                let known = self.lacking.swap(true, Ordering::Relaxed);
                (!known).then_some(News::Lacking(gap))
            }
            None => {
                let all = self.all.read();
                let is_known = all.iter().all(|(_, stored)| *stored != Stored::Unknown);
                let lacked = is_known && self.lacking.swap(false, Ordering::Relaxed);
                lacked.then_some(News::Whole)
            }
        }
    }
}

/// Who is told of every configuration that is stored.
pub type Told = Arc<dyn Fn(&Configuration) + Send + Sync>;

/// Watches the configurations, each by its name: the server may read no others.
pub fn start(
    client: &Client,
    index: &Arc<Index>,
    needed: Vec<Needed>,
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
            index: Arc::clone(index),
            told: Arc::clone(told),
            place: index.registration.expect(needed),
        };
        let (sink, catch_up) = (Arc::new(sink), CatchUp::default());
        sources::spawn::<Configuration, _>(client, index, source, sink, catch_up, supervisor);
    }
}

struct One {
    index: Arc<Index>,
    told: Told,
    place: usize,
}

impl One {
    fn set(&self, stored: Stored) {
        if let Stored::There(configuration) = &stored {
            (self.told)(configuration);
        }
        if self.index.registration.set(self.place, stored) {
            self.index.tell(Change::Registration);
            match self.index.registration.news() {
                Some(News::Lacking(gap)) => warn!(
                    gap,
                    "the API server does not send all that the rules hold; {REMEDY}"
                ),
                Some(News::Whole) => info!("the API server sends all that the rules hold again"),
                None => {}
            }
        }
    }
}

impl Sink<Configuration> for One {
    fn parse(&self, raw: &str) -> serde_json::Result<Configuration> {
        serde_json::from_str(raw)
    }
    fn unread(&self) -> Option<&Unread> {
        Some(&self.index.unread)
    }
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
        self.set(Stored::Unknown);
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn lacking_and_whole_registration_are_told_once_each() {
        let stored = json!({ "webhooks": [{
            "name": "delete", "failurePolicy": "Fail",
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"] }],
        }] });
        let there = || Stored::There(serde_json::from_value(stored.clone()).unwrap());
        let needed = Needed::read("ValidatingWebhookConfiguration", "ours", stored.clone());
        let registration = Registration::default();
        let place = registration.expect(needed.unwrap());
        let told = |stored: Stored| {
            assert!(registration.set(place, stored));
            registration.news()
        };
        let lacking = || {
            let gap = "ValidatingWebhookConfiguration ours does not exist";
            Some(News::Lacking(gap.to_owned()))
        };
        assert_eq!(told(there()), None);
        assert_eq!(told(Stored::Absent), lacking());
        assert_eq!(told(Stored::Unknown), None);
        assert_eq!(told(Stored::Absent), None);
        assert_eq!(told(there()), Some(News::Whole));
        assert_eq!(told(Stored::Unknown), None);
        assert_eq!(told(there()), None);
        assert_eq!(told(Stored::Absent), lacking());
    }
}
