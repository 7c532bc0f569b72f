//! Caches the stored webhook configurations of this server for the status of rules: requests that the API server does
//! not send to the server are not held. The guarantee does not depend on this cache.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::RwLock;

use crate::api::keys;
use crate::domain::rules::enforcement::NamespaceEnforcement;
use crate::domain::rules::registration::{RequiredConfiguration, WebhookConfiguration};

/// The cache. It is empty until [`WebhookRegistration::expect_configuration`] names the required configurations.
#[derive(Debug, Default)]
pub struct WebhookRegistration {
    all: RwLock<Vec<(RequiredConfiguration, StoredConfiguration)>>,
    /// Whether the last reported state was that something is missing.
    lacking: AtomicBool,
}

/// A change of the registration that is logged.
#[derive(Debug, PartialEq)]
pub enum RegistrationChange {
    /// Something is missing now: the text of [`RequiredConfiguration::configuration_gap`].
    Lacking(String),
    /// The registration is complete again.
    Complete,
}

/// The stored configuration of a name.
#[derive(Debug, PartialEq)]
pub enum StoredConfiguration {
    /// It has not been listed yet, or the server has no right to read it.
    Unknown,
    Absent,
    Stored(WebhookConfiguration),
}

impl WebhookRegistration {
    /// Describes requests for a namespace with these labels that the API server does not send to this server, as a
    /// clause. `None` if it sends all of them, and if the stored configurations are not known.
    pub fn describe_gap(&self, labels: &BTreeMap<String, String>) -> Option<String> {
        let all = self.all.read();
        all.iter().find_map(|(needed, stored)| match stored {
            StoredConfiguration::Unknown => None,
            StoredConfiguration::Absent => needed.configuration_gap(None, labels),
            StoredConfiguration::Stored(found) => needed.configuration_gap(Some(found), labels),
        })
    }

    /// Whether the API server sends all requests for namespaces with rules, as far as this is known.
    pub fn is_complete(&self) -> bool {
        self.find_gap().is_none()
    }

    /// Describes requests for namespaces with rules that the API server does not send.
    fn find_gap(&self) -> Option<String> {
        let levels = [NamespaceEnforcement::Ruled, NamespaceEnforcement::Strict].into_iter();
        let mut labels = levels.filter_map(|level| {
            Some(
                [(
                    keys::NAMESPACE_ENFORCEMENT.to_owned(),
                    level.label_value()?.to_owned(),
                )]
                .into(),
            )
        });
        labels.find_map(|labels| self.describe_gap(&labels))
    }

    /// Adds a required configuration whose stored state is not known yet. Returns its index.
    pub fn expect_configuration(&self, needed: RequiredConfiguration) -> usize {
        let mut all = self.all.write();
        all.push((needed, StoredConfiguration::Unknown));
        all.len() - 1
    }

    /// Sets the stored state of the configuration at an index. Returns whether it has changed.
    pub fn set_stored(&self, index: usize, now: StoredConfiguration) -> bool {
        let mut all = self.all.write();
        let Some((_, stored)) = all.get_mut(index).filter(|(_, stored)| *stored != now) else {
            return false;
        };
        *stored = now;
        true
    }

    /// The change since the last call, if there is one, for the log: whether the API server sends all requests for
    /// namespaces with rules.
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
                lacked.then_some(RegistrationChange::Complete)
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
    fn incomplete_and_complete_registration_are_logged_once_each() {
        let stored = json!({ "webhooks": [{
            "name": "delete", "failurePolicy": "Fail",
            "rules": [{ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"] }],
        }] });
        let there = || StoredConfiguration::Stored(serde_json::from_value(stored.clone()).unwrap());
        let needed = RequiredConfiguration::from_installed(
            "ValidatingWebhookConfiguration",
            "ours",
            stored.clone(),
        );
        let registration = WebhookRegistration::default();
        let index = registration.expect_configuration(needed.unwrap());
        let told = |stored: StoredConfiguration| {
            assert!(registration.set_stored(index, stored));
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
        assert_eq!(told(there()), Some(RegistrationChange::Complete));
        assert_eq!(told(StoredConfiguration::Unknown), None);
        assert_eq!(told(there()), None);
        assert_eq!(told(StoredConfiguration::Absent), lacking());
    }
}
