//! The kinds of objects that this replica watches.

use super::path;
use crate::domain::pod::Owner;

/// A kind that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `v1`; only managed Pods are watched.
    Pod,
    /// `apps.kusionstack.io/v1alpha1`.
    PodTransitionRule,
    /// `v1`.
    Namespace,
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
    /// `apps/v1`.
    ControllerRevision,
    /// `v1`; only those with the control label are watched.
    PersistentVolumeClaim,
    /// `apps.kusionstack.io/v1alpha1`.
    ResourceContext,
    /// `policy/v1`.
    PodDisruptionBudget,
}

impl Kind {
    /// The kinds that own Pods, directly or by ReplicaSets. Owners of other kinds are read live.
    pub const OWNERS: [Kind; 7] = [
        Kind::ReplicaSet,
        Kind::StatefulSet,
        Kind::ReplicationController,
        Kind::CollaSet,
        Kind::Deployment,
        Kind::DaemonSet,
        Kind::Job,
    ];

    /// The kinds that the controller of CollaSets reads besides Pods.
    pub const OF_COLLASETS: [Kind; 4] = [
        Kind::CollaSet,
        Kind::ControllerRevision,
        Kind::PersistentVolumeClaim,
        Kind::ResourceContext,
    ];

    /// The kinds that decisions rest on: nothing is admitted before all of them have been listed.
    pub fn of_decisions() -> impl Iterator<Item = Kind> {
        let own = [Kind::Pod, Kind::PodTransitionRule, Kind::Namespace];
        own.into_iter().chain(Kind::OWNERS)
    }

    /// The kind of an owner, if it is watched. The version does not matter: all versions of a group have the same
    /// objects.
    pub fn of_owner(owner: &Owner) -> Option<Kind> {
        let group = owner.group();
        Kind::OWNERS
            .into_iter()
            .find(|kind| kind.name() == owner.kind && kind.group() == group)
    }

    /// Whether an owner of the kind may have a Pod of this name. A StatefulSet has the Pods `NAME-ORDINAL` alone, the ordinal
    /// in decimal, and a Deployment has none but those of its ReplicaSets: their controllers neither keep nor replace other
    /// Pods that refer to them.
    pub fn may_own(owner: &Owner, pod: &str) -> bool {
        match Kind::of_owner(owner) {
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

    /// `kind` of its objects.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Pod => "Pod",
            Kind::PodTransitionRule => "PodTransitionRule",
            Kind::Namespace => "Namespace",
            Kind::ReplicaSet => "ReplicaSet",
            Kind::StatefulSet => "StatefulSet",
            Kind::ReplicationController => "ReplicationController",
            Kind::CollaSet => "CollaSet",
            Kind::Deployment => "Deployment",
            Kind::DaemonSet => "DaemonSet",
            Kind::Job => "Job",
            Kind::ControllerRevision => "ControllerRevision",
            Kind::PersistentVolumeClaim => "PersistentVolumeClaim",
            Kind::ResourceContext => "ResourceContext",
            Kind::PodDisruptionBudget => "PodDisruptionBudget",
        }
    }

    /// API path of all its objects in all namespaces.
    pub const fn path(self) -> &'static str {
        match self {
            Kind::Pod => "/api/v1/pods",
            Kind::PodTransitionRule => "/apis/apps.kusionstack.io/v1alpha1/podtransitionrules",
            Kind::Namespace => "/api/v1/namespaces",
            Kind::ReplicaSet => "/apis/apps/v1/replicasets",
            Kind::StatefulSet => "/apis/apps/v1/statefulsets",
            Kind::ReplicationController => "/api/v1/replicationcontrollers",
            Kind::CollaSet => "/apis/apps.kusionstack.io/v1alpha1/collasets",
            Kind::Deployment => "/apis/apps/v1/deployments",
            Kind::DaemonSet => "/apis/apps/v1/daemonsets",
            Kind::Job => "/apis/batch/v1/jobs",
            Kind::ControllerRevision => "/apis/apps/v1/controllerrevisions",
            Kind::PersistentVolumeClaim => "/api/v1/persistentvolumeclaims",
            Kind::ResourceContext => "/apis/apps.kusionstack.io/v1alpha1/resourcecontexts",
            Kind::PodDisruptionBudget => "/apis/policy/v1/poddisruptionbudgets",
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

/// A set of kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kinds(u16);

impl Kinds {
    /// Adds a kind.
    pub fn insert(&mut self, kind: Kind) {
        self.0 |= 1 << kind as u16;
    }

    /// Whether the kind is in the set.
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & (1 << kind as u16) != 0
    }
}

impl FromIterator<Kind> for Kinds {
    fn from_iter<I: IntoIterator<Item = Kind>>(kinds: I) -> Kinds {
        let mut set = Kinds::default();
        kinds.into_iter().for_each(|kind| set.insert(kind));
        set
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
        let found = |version, kind| Kind::of_owner(&owner(version, kind));
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
        for kind in Kind::OWNERS {
            assert_eq!(
                Kind::of_owner(&owner(&kind.api_version(), kind.name())),
                Some(kind)
            );
        }
    }

    #[test]
    fn set_contains_the_kinds_that_were_inserted() {
        let kinds: Kinds = Kind::of_decisions().collect();
        assert!(Kind::of_decisions().all(|kind| kinds.contains(kind)));
        assert!(!kinds.contains(Kind::PodDisruptionBudget));
        assert!(!Kinds::default().contains(Kind::Pod));
    }
}
