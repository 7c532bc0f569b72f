//! The server's own webhook configurations as they are stored, cached for the status of rules: what the API server does
//! not send, nobody holds. Nothing of the guarantee rests on this cache.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::api::keys;
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::domain::rules::registration::{RequiredConfiguration, WebhookConfiguration};

/// The cache. Empty until [`Registration::expect`] names what should be there.
#[derive(Debug, Default)]
pub struct Registration {
    all: RwLock<Vec<(RequiredConfiguration, Stored)>>,
    /// Whether the log was told last that something is lacking.
    lacking: AtomicBool,
}

/// What the log is told.
#[derive(Debug, PartialEq)]
pub enum News {
    /// The registration has become lacking: the clause of [`Needed::gap`].
    Lacking(String),
    /// It is whole again.
    Whole,
}

/// What is stored under a name.
#[derive(Debug, PartialEq)]
pub enum Stored {
    /// Not yet listed, or the server may not read it.
    Unknown,
    /// Nothing.
    Absent,
    /// This.
    There(WebhookConfiguration),
}

impl Registration {
    /// What the API server does not send of a namespace with these labels: a clause. `None` if all is sent, and if the
    /// stored configurations are not known.
    pub fn gap(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let all = self.all.read();
        all.iter().find_map(|(needed, stored)| match stored {
            Stored::Unknown => None,
            Stored::Absent => needed.configuration_gap(None, labels),
            Stored::There(found) => needed.configuration_gap(Some(found), labels),
        })
    }

    /// Whether namespaces with rules are sent in full, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.lack().is_none()
    }

    /// What is not sent of namespaces with rules.
    fn lack(&self) -> Option<String> {
        let marks = [NamespaceEnforcement::Ruled, NamespaceEnforcement::Strict].into_iter();
        let mut marks = marks.filter_map(|mark| {
            Some(
                [(
                    keys::NAMESPACE_HAS_RULES.to_owned(),
                    mark.label_value()?.to_owned(),
                )]
                .into(),
            )
        });
        marks.find_map(|labels| self.gap(&labels))
    }

    /// Adds a configuration of which nothing is known yet; returns its place.
    pub fn expect(&self, needed: RequiredConfiguration) -> usize {
        let mut all = self.all.write();
        all.push((needed, Stored::Unknown));
        all.len() - 1
    }

    /// Returns whether that is news.
    pub fn set(&self, place: usize, now: Stored) -> bool {
        let mut all = self.all.write();
        let Some((_, stored)) = all.get_mut(place).filter(|(_, stored)| *stored != now) else {
            return false;
        };
        *stored = now;
        true
    }

    /// What a change is to the log, each time once: whether namespaces with rules are sent in full.
    pub fn news(&self) -> Option<News> {
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
        let needed = RequiredConfiguration::from_installed(
            "ValidatingWebhookConfiguration",
            "ours",
            stored.clone(),
        );
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
