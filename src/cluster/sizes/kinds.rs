//! The kinds of owners that are watched.

use crate::cluster::path;
use crate::domain::pod::Owner;

/// A kind that owns Pods, directly or by ReplicaSets, and is watched. Owners of other kinds are read live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `apps/v1`.
    ReplicaSet,
    /// `apps/v1`.
    StatefulSet,
    /// `v1`.
    ReplicationController,
    /// `apps.kusionstack.io/v1alpha1`.
    CollaSet,
    /// `apps/v1`.
    Deployment,
    /// `apps/v1`.
    DaemonSet,
    /// `batch/v1`.
    Job,
}

impl Kind {
    /// All of them, in the order of their bits.
    pub const ALL: [Kind; 7] = [
        Kind::ReplicaSet,
        Kind::StatefulSet,
        Kind::ReplicationController,
        Kind::CollaSet,
        Kind::Deployment,
        Kind::DaemonSet,
        Kind::Job,
    ];

    /// The kind of an owner, if it is watched. The version does not matter: all versions of a group have the same
    /// objects.
    pub fn of(owner: &Owner) -> Option<Kind> {
        let group = owner.group();
        Kind::ALL
            .into_iter()
            .find(|kind| kind.name() == owner.kind && kind.group() == group)
    }

    /// Whether an owner of the kind may have a Pod of this name. A StatefulSet has the Pods `NAME-ORDINAL` alone, the ordinal
    /// in decimal, and a Deployment has none but those of its ReplicaSets: their controllers neither keep nor replace other
    /// Pods that refer to them.
    pub fn may_own(owner: &Owner, pod: &str) -> bool {
        match Kind::of(owner) {
            Some(Kind::StatefulSet) => {}
            Some(Kind::Deployment) => return false,
            _ => return true,
        }
        let ordinal = pod
            .strip_prefix(owner.name.as_str())
            .and_then(|rest| rest.strip_prefix('-'));
        ordinal.is_some_and(|ordinal| {
            let digits = ordinal.bytes().all(|b| b.is_ascii_digit());
            let padded = ordinal.len() > 1 && ordinal.starts_with('0');
            digits && !padded && ordinal.parse::<u32>().is_ok()
        })
    }

    /// Its bit in [`crate::cluster::index::Synced::workloads`].
    pub const fn bit(self) -> u8 {
        self as u8
    }

    /// `kind` of its objects.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::ReplicaSet => "ReplicaSet",
            Kind::StatefulSet => "StatefulSet",
            Kind::ReplicationController => "ReplicationController",
            Kind::CollaSet => "CollaSet",
            Kind::Deployment => "Deployment",
            Kind::DaemonSet => "DaemonSet",
            Kind::Job => "Job",
        }
    }

    /// API path of all its objects in all namespaces.
    pub const fn path(self) -> &'static str {
        match self {
            Kind::ReplicaSet => "/apis/apps/v1/replicasets",
            Kind::StatefulSet => "/apis/apps/v1/statefulsets",
            Kind::ReplicationController => "/api/v1/replicationcontrollers",
            Kind::CollaSet => "/apis/apps.kusionstack.io/v1alpha1/collasets",
            Kind::Deployment => "/apis/apps/v1/deployments",
            Kind::DaemonSet => "/apis/apps/v1/daemonsets",
            Kind::Job => "/apis/batch/v1/jobs",
        }
    }

    /// API path of one object.
    ///
    /// # Errors
    /// When `namespace` or `name` can be no segment of a path.
    pub fn object_path(self, namespace: &str, name: &str) -> Result<String, kube::Error> {
        let (version, plural) = self.path().rsplit_once('/').unwrap_or_default();
        path::object(version, Some(namespace), plural, name, None)
    }

    /// The plural in the path of its objects.
    pub fn plural(self) -> &'static str {
        self.path().rsplit_once('/').unwrap_or_default().1
    }

    /// `apiVersion` of its objects.
    pub fn api_version(self) -> String {
        let (version, _) = self.path().rsplit_once('/').unwrap_or_default();
        let version = version.trim_start_matches("/apis/");
        version.trim_start_matches("/api/").to_owned()
    }

    fn group(self) -> &'static str {
        let mut parts = self.path().trim_start_matches('/').split('/');
        match parts.next() {
            Some("apis") => parts.next().unwrap_or_default(),
            _ => "",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn owner(api_version: &str, kind: &str) -> Owner {
        Owner {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            ..Owner::default()
        }
    }

    #[test]
    fn kinds_are_told_by_group_and_kind() {
        let found = |version, kind| Kind::of(&owner(version, kind));
        assert_eq!(found("apps/v1", "Deployment"), Some(Kind::Deployment));
        assert_eq!(
            found("v1", "ReplicationController"),
            Some(Kind::ReplicationController)
        );
        assert_eq!(
            found("apps.kusionstack.io/v1alpha1", "CollaSet"),
            Some(Kind::CollaSet)
        );
        assert_eq!(found("batch/v1", "Job"), Some(Kind::Job));
        assert_eq!(found("batch.volcano.sh/v1alpha1", "Job"), None);
        assert_eq!(found("apps.kruise.io/v1alpha1", "StatefulSet"), None);
    }

    #[test]
    fn stateful_set_has_the_pods_of_its_name_and_an_ordinal() {
        let set = |name: &str| Owner {
            name: name.to_owned(),
            ..owner("apps/v1", "StatefulSet")
        };
        for pod in ["web-0", "web-7", "web-10"] {
            assert!(Kind::may_own(&set("web"), pod), "{pod}");
        }
        for pod in [
            "web", "web-", "web-01", "web-+1", "web--1", "web-a", "web-1a", "web2-1", "other-1",
        ] {
            assert!(!Kind::may_own(&set("web"), pod), "{pod}");
        }
        assert!(Kind::may_own(&set("web-0"), "web-0-0"));
        assert!(Kind::may_own(&owner("apps/v1", "ReplicaSet"), "any"));
        assert!(!Kind::may_own(&owner("apps/v1", "Deployment"), "web-1-a"));
        let others = owner("apps.kruise.io/v1beta1", "StatefulSet");
        assert!(Kind::may_own(&others, "any"));
    }

    #[test]
    fn an_object_is_found_below_its_namespace() {
        assert_eq!(
            Kind::Job.object_path("n", "a").unwrap(),
            "/apis/batch/v1/namespaces/n/jobs/a"
        );
        assert_eq!(
            Kind::ReplicationController.object_path("n", "a").unwrap(),
            "/api/v1/namespaces/n/replicationcontrollers/a"
        );
    }

    #[test]
    fn every_kind_is_told_by_its_own_api_version() {
        for kind in Kind::ALL {
            assert_eq!(
                Kind::of(&owner(&kind.api_version(), kind.name())),
                Some(kind)
            );
        }
    }

    #[test]
    fn bits_follow_the_order() {
        for (bit, kind) in (0u8..).zip(Kind::ALL) {
            assert_eq!(kind.bit(), bit);
        }
    }
}
