//! The kinds of objects that this replica watches.

use super::request_path;
use crate::domain::pod::Owner;

/// A kind that this replica watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WatchedKind {
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
    /// `apps.kusionstack.io/v1alpha1`.
    PodDecoration,
    /// `apps.kusionstack.io/v1alpha1`.
    OperationJob,
}

impl WatchedKind {
    /// The kinds that own Pods, directly or through ReplicaSets. Owners of other kinds are read live.
    pub const OWNER_KINDS: [WatchedKind; 7] = [
        WatchedKind::ReplicaSet,
        WatchedKind::StatefulSet,
        WatchedKind::ReplicationController,
        WatchedKind::CollaSet,
        WatchedKind::Deployment,
        WatchedKind::DaemonSet,
        WatchedKind::Job,
    ];

    /// The kinds that the controllers of CollaSets, PodDecorations and OperationJobs read besides Pods.
    pub const COLLASET_KINDS: [WatchedKind; 6] = [
        WatchedKind::CollaSet,
        WatchedKind::ControllerRevision,
        WatchedKind::PersistentVolumeClaim,
        WatchedKind::ResourceContext,
        WatchedKind::PodDecoration,
        WatchedKind::OperationJob,
    ];

    /// The kinds that decisions rest on. Nothing is admitted before all of them have been listed.
    pub fn decision_kinds() -> impl Iterator<Item = WatchedKind> {
        let own = [
            WatchedKind::Pod,
            WatchedKind::PodTransitionRule,
            WatchedKind::Namespace,
        ];
        own.into_iter().chain(WatchedKind::OWNER_KINDS)
    }

    /// The kind of an owner, if it is watched. The API version is ignored: all versions of a group have the same
    /// objects.
    pub fn from_owner(owner: &Owner) -> Option<WatchedKind> {
        let group = owner.group();
        WatchedKind::OWNER_KINDS
            .into_iter()
            .find(|kind| kind.name() == owner.kind && kind.group() == group)
    }

    /// Whether an owner of this kind may have a Pod of this name. A StatefulSet has only Pods `NAME-ORDINAL` with a
    /// decimal ordinal, and a Deployment has only the Pods of its ReplicaSets. Their controllers neither keep nor
    /// replace other Pods that refer to them.
    pub fn may_own(owner: &Owner, pod: &str) -> bool {
        match WatchedKind::from_owner(owner) {
            Some(WatchedKind::StatefulSet) => {}
            Some(WatchedKind::Deployment) => return false,
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

    /// The `kind` of the objects.
    pub const fn name(self) -> &'static str {
        match self {
            WatchedKind::Pod => "Pod",
            WatchedKind::PodTransitionRule => "PodTransitionRule",
            WatchedKind::Namespace => "Namespace",
            WatchedKind::ReplicaSet => "ReplicaSet",
            WatchedKind::StatefulSet => "StatefulSet",
            WatchedKind::ReplicationController => "ReplicationController",
            WatchedKind::CollaSet => "CollaSet",
            WatchedKind::Deployment => "Deployment",
            WatchedKind::DaemonSet => "DaemonSet",
            WatchedKind::Job => "Job",
            WatchedKind::ControllerRevision => "ControllerRevision",
            WatchedKind::PersistentVolumeClaim => "PersistentVolumeClaim",
            WatchedKind::ResourceContext => "ResourceContext",
            WatchedKind::PodDisruptionBudget => "PodDisruptionBudget",
            WatchedKind::PodDecoration => "PodDecoration",
            WatchedKind::OperationJob => "OperationJob",
        }
    }

    /// The API path of all objects of this kind in all namespaces.
    pub const fn path(self) -> &'static str {
        match self {
            WatchedKind::Pod => "/api/v1/pods",
            WatchedKind::PodTransitionRule => {
                "/apis/apps.kusionstack.io/v1alpha1/podtransitionrules"
            }
            WatchedKind::Namespace => "/api/v1/namespaces",
            WatchedKind::ReplicaSet => "/apis/apps/v1/replicasets",
            WatchedKind::StatefulSet => "/apis/apps/v1/statefulsets",
            WatchedKind::ReplicationController => "/api/v1/replicationcontrollers",
            WatchedKind::CollaSet => "/apis/apps.kusionstack.io/v1alpha1/collasets",
            WatchedKind::Deployment => "/apis/apps/v1/deployments",
            WatchedKind::DaemonSet => "/apis/apps/v1/daemonsets",
            WatchedKind::Job => "/apis/batch/v1/jobs",
            WatchedKind::ControllerRevision => "/apis/apps/v1/controllerrevisions",
            WatchedKind::PersistentVolumeClaim => "/api/v1/persistentvolumeclaims",
            WatchedKind::ResourceContext => "/apis/apps.kusionstack.io/v1alpha1/resourcecontexts",
            WatchedKind::PodDisruptionBudget => "/apis/policy/v1/poddisruptionbudgets",
            WatchedKind::PodDecoration => "/apis/apps.kusionstack.io/v1alpha1/poddecorations",
            WatchedKind::OperationJob => "/apis/apps.kusionstack.io/v1alpha1/operationjobs",
        }
    }

    /// The API path of one object.
    ///
    /// # Errors
    /// If `namespace` or `name` cannot be a segment of a path.
    pub fn object_path(self, namespace: &str, name: &str) -> Result<String, kube::Error> {
        let (version, plural) = self.path().rsplit_once('/').unwrap_or_default();
        request_path::build_object_path(version, Some(namespace), plural, name, None)
    }

    /// The plural name in the path of the objects.
    pub fn plural(self) -> &'static str {
        self.path().rsplit_once('/').unwrap_or_default().1
    }

    /// The `apiVersion` of the objects.
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

/// A set of kinds. The bit of a kind is its discriminant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindSet(u32);

impl KindSet {
    /// Adds a kind.
    pub fn insert(&mut self, kind: WatchedKind) {
        self.0 |= 1 << kind as u32;
    }

    /// Whether the kind is in the set.
    pub fn contains(self, kind: WatchedKind) -> bool {
        self.0 & (1 << kind as u32) != 0
    }
}

impl FromIterator<WatchedKind> for KindSet {
    fn from_iter<I: IntoIterator<Item = WatchedKind>>(kinds: I) -> KindSet {
        let mut set = KindSet::default();
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
        let found = |version, kind| WatchedKind::from_owner(&owner(version, kind));
        assert_eq!(
            found("apps/v1", "Deployment"),
            Some(WatchedKind::Deployment)
        );
        assert_eq!(
            found("v1", "ReplicationController"),
            Some(WatchedKind::ReplicationController)
        );
        assert_eq!(
            found("apps.kusionstack.io/v1alpha1", "CollaSet"),
            Some(WatchedKind::CollaSet)
        );
        assert_eq!(found("batch/v1", "Job"), Some(WatchedKind::Job));
        assert_eq!(found("batch.volcano.sh/v1alpha1", "Job"), None);
        assert_eq!(found("apps.kruise.io/v1alpha1", "StatefulSet"), None);
    }

    #[test]
    fn stateful_set_may_own_pods_named_by_ordinal() {
        let set = |name: &str| Owner {
            name: name.to_owned(),
            ..owner("apps/v1", "StatefulSet")
        };
        for pod in ["web-0", "web-7", "web-10"] {
            assert!(WatchedKind::may_own(&set("web"), pod), "{pod}");
        }
        for pod in [
            "web", "web-", "web-01", "web-+1", "web--1", "web-a", "web-1a", "web2-1", "other-1",
        ] {
            assert!(!WatchedKind::may_own(&set("web"), pod), "{pod}");
        }
        assert!(WatchedKind::may_own(&set("web-0"), "web-0-0"));
        assert!(WatchedKind::may_own(&owner("apps/v1", "ReplicaSet"), "any"));
        assert!(!WatchedKind::may_own(
            &owner("apps/v1", "Deployment"),
            "web-1-a"
        ));
        let others = owner("apps.kruise.io/v1beta1", "StatefulSet");
        assert!(WatchedKind::may_own(&others, "any"));
    }

    #[test]
    fn object_is_found_below_its_namespace() {
        assert_eq!(
            WatchedKind::Job.object_path("n", "a").unwrap(),
            "/apis/batch/v1/namespaces/n/jobs/a"
        );
        assert_eq!(
            WatchedKind::ReplicationController
                .object_path("n", "a")
                .unwrap(),
            "/api/v1/namespaces/n/replicationcontrollers/a"
        );
    }

    #[test]
    fn every_kind_is_told_by_its_own_api_version() {
        for kind in WatchedKind::OWNER_KINDS {
            assert_eq!(
                WatchedKind::from_owner(&owner(&kind.api_version(), kind.name())),
                Some(kind)
            );
        }
    }

    #[test]
    fn set_contains_the_kinds_that_were_inserted() {
        let kinds: KindSet = WatchedKind::decision_kinds().collect();
        assert!(WatchedKind::decision_kinds().all(|kind| kinds.contains(kind)));
        assert!(!kinds.contains(WatchedKind::PodDisruptionBudget));
        assert!(!KindSet::default().contains(WatchedKind::Pod));
    }
}
