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
pub struct WebhookRegistration {
    all: RwLock<Vec<(RequiredConfiguration, StoredConfiguration)>>,
    /// Whether the log was told last that something is lacking.
    lacking: AtomicBool,
}

/// What the log is told.
#[derive(Debug, PartialEq)]
pub enum RegistrationChange {
    /// The registration has become lacking: the clause of [`Needed::gap`].
    Lacking(String),
    /// It is whole again.
    Whole,
}

/// What is stored under a name.
#[derive(Debug, PartialEq)]
pub enum StoredConfiguration {
    /// Not yet listed, or the server may not read it.
    Unknown,
    /// Nothing.
    Absent,
    /// This.
    There(WebhookConfiguration),
}

impl WebhookRegistration {
    /// What the API server does not send of a namespace with these labels: a clause. `None` if all is sent, and if the
    /// stored configurations are not known.
    pub fn describe_gap(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let all = self.all.read();
        all.iter().find_map(|(needed, stored)| match stored {
            StoredConfiguration::Unknown => None,
            StoredConfiguration::Absent => needed.configuration_gap(None, labels),
            StoredConfiguration::There(found) => needed.configuration_gap(Some(found), labels),
        })
    }

    /// Whether namespaces with rules are sent in full, as far as is known.
    pub fn is_complete(&self) -> bool {
        self.find_gap().is_none()
    }

    /// What is not sent of namespaces with rules.
    fn find_gap(&self) -> Option<String> {
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
        marks.find_map(|labels| self.describe_gap(&labels))
    }

    /// Adds a configuration of which nothing is known yet; returns its place.
    pub fn expect_configuration(&self, needed: RequiredConfiguration) -> usize {
        let mut all = self.all.write();
        all.push((needed, StoredConfiguration::Unknown));
        all.len() - 1
    }

    /// Returns whether that is news.
    pub fn set_stored(&self, place: usize, now: StoredConfiguration) -> bool {
        let mut all = self.all.write();
        let Some((_, stored)) = all.get_mut(place).filter(|(_, stored)| *stored != now) else {
            return false;
        };
        *stored = now;
        true
    }

    /// What a change is to the log, each time once: whether namespaces with rules are sent in full.
    pub fn take_change(&self) -> Option<RegistrationChange> {
        match self.find_gap() {
            Some(gap) => {
                let known = self.lacking.swap(true, Ordering::Relaxed);
                (!known).then_some(RegistrationChange::Lacking(gap))
            }
            None => {
                let all = self.all.read();
                let is_known = all
                    .iter()
                    .all(|(_, stored)| *stored != StoredConfiguration::Unknown);
                let lacked = is_known && self.lacking.swap(false, Ordering::Relaxed);
                lacked.then_some(RegistrationChange::Whole)
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
        let there = || StoredConfiguration::There(serde_json::from_value(stored.clone()).unwrap());
        let needed = RequiredConfiguration::from_installed(
            "ValidatingWebhookConfiguration",
            "ours",
            stored.clone(),
        );
        let registration = WebhookRegistration::default();
        let place = registration.expect_configuration(needed.unwrap());
        let told = |stored: StoredConfiguration| {
            assert!(registration.set_stored(place, stored));
            registration.take_change()
        };
        let lacking = || {
            let gap = "ValidatingWebhookConfiguration ours does not exist";
            Some(RegistrationChange::Lacking(gap.to_owned()))
        };
        assert_eq!(told(there()), None);
        assert_eq!(told(StoredConfiguration::Absent), lacking());
        assert_eq!(told(StoredConfiguration::Unknown), None);
        assert_eq!(told(StoredConfiguration::Absent), None);
        assert_eq!(told(there()), Some(RegistrationChange::Whole));
        assert_eq!(told(StoredConfiguration::Unknown), None);
        assert_eq!(told(there()), None);
        assert_eq!(told(StoredConfiguration::Absent), lacking());
    }
}
