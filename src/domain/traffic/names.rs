//! The key and the finalizer of an employer, by which a Pod is marked.

use md5::{Digest, Md5};

use crate::api::keys;
use crate::api::labels::{dns_label_problem, dns_name_problem};

/// The kind of the employers that every server can manage.
pub const SERVICE: &str = "Service";

/// An employer: an object whose traffic is managed, such as a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EmployerName {
    /// Namespace.
    pub namespace: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
}

impl EmployerName {
    /// Creates the name of an employer.
    pub fn new(kind: &str, namespace: &str, name: &str) -> EmployerName {
        EmployerName {
            namespace: namespace.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    }

    /// The key in the annotation `pod.kusionstack.io/available-conditions`: `<Kind>/<namespace>/<name>`.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.kind, self.namespace, self.name)
    }

    /// The employer of a key. `None` if the key has another form, or if no object can have this kind, namespace and name.
    pub fn from_key(key: &str) -> Option<EmployerName> {
        let [kind, namespace, name] = key.split('/').collect::<Vec<_>>()[..] else {
            return None;
        };
        // Whoever may write a Pod chooses its keys, and the leader keeps names for a while.
        let can_be = dns_label_problem(&kind.to_ascii_lowercase()).is_none()
            && dns_label_problem(namespace).is_none()
            && dns_name_problem(name).is_none();
        can_be.then(|| EmployerName::new(kind, namespace, name))
    }

    /// The finalizer by which the employer protects a Pod. As in Kuperator, it is made of the name alone, so employers
    /// of several kinds with one name have the same finalizer.
    pub fn finalizer(&self) -> String {
        let digest = Md5::digest(self.name.as_bytes());
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let part = hex.get(8..24).unwrap_or_default();
        format!("{}/{part}", keys::PROTECTION_FINALIZER_PREFIX)
    }
}

/// Whether a finalizer says that members and marks must be removed before the employer goes, in the present form or in
/// that of earlier versions of Kuperator.
pub fn is_clean_finalizer(finalizer: &str) -> bool {
    finalizer.starts_with(keys::OLD_CLEAN_FINALIZER_PREFIX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The values are those of Kuperator.
    #[test]
    fn finalizers_are_those_of_kuperator() {
        for (name, finalizer) in [
            (
                "web",
                "prot.podopslifecycle.kusionstack.io/9705eb7ac2c98403",
            ),
            (
                "resource-consist-ut-svc-1",
                "prot.podopslifecycle.kusionstack.io/7ba82bbc976edd3f",
            ),
        ] {
            let employer = EmployerName::new("Service", "shop", name);
            assert_eq!(employer.finalizer(), finalizer);
        }
    }

    #[test]
    fn key_names_its_employer() {
        let employer = EmployerName::new("Service", "shop", "web");
        assert_eq!(employer.key(), "Service/shop/web");
        assert_eq!(
            EmployerName::from_key("Service/shop/web").unwrap(),
            employer
        );
        for other in ["web", "shop/web", "apps/Service/shop/web"] {
            assert_eq!(EmployerName::from_key(other), None);
        }
    }

    /// Whoever may write a Pod chooses the keys in its annotation.
    #[test]
    fn key_that_no_object_can_have_names_no_employer() {
        let longest = format!("Service/shop/{}", "n".repeat(253));
        assert!(EmployerName::from_key(&longest).is_some());
        for name in ["web.shop", "0-web"] {
            assert!(EmployerName::from_key(&format!("Load-Balancer2/shop/{name}")).is_some());
        }
        let too_long = format!("{longest}n");
        for other in [
            &*too_long,
            "Service/shop/Web",
            "Service/shop/",
            "Service/shop/../web",
            "Service/shop/web\u{1b}[31m",
            "Service//web",
            "Service/sh.op/web",
            "/shop/web",
            "Evil\u{1b}[31mred/shop/web",
        ] {
            assert_eq!(EmployerName::from_key(other), None, "{other:?}");
        }
    }
}
