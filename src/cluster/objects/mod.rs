//! What the controllers of workloads look at besides Pods: CollaSets whole, and the ControllerRevisions,
//! PersistentVolumeClaims and ResourceContexts behind them. One watch per kind. Admission needs none of it.

mod cached_kind;
pub mod positions;
pub mod store;
pub mod write;

use crate::api::collaset::CollaSet;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision, pool_name};

pub use cached_kind::{CachedKind, ClaimObject, PoolObject, RevisionObject, SetObject};
use store::Store;

/// The caches.
#[derive(Debug, Default)]
pub struct Objects {
    /// CollaSets.
    pub sets: Store<CollaSet>,
    /// ControllerRevisions that a CollaSet controls, or nobody.
    pub revisions: Store<Revision>,
    /// PersistentVolumeClaims with `kusionstack.io/control=true` that a CollaSet controls, or nobody.
    pub claims: Store<Pvc>,
    /// ResourceContexts.
    pub pools: Store<InstancePool>,
}

impl Objects {
    /// Names of the CollaSets of a namespace that ask for a Pod by its name (`podToInclude`).
    pub fn sets_including(&self, namespace: &str, pod: &str) -> Vec<String> {
        self.sets.names_where(namespace, |set| {
            let scale = set.spec.scale_strategy.as_ref();
            scale.is_some_and(|s| s.pod_to_include.iter().any(|name| name == pod))
        })
    }

    /// Names of the CollaSets of a namespace that take their instance IDs from the ResourceContext of this name.
    pub fn sets_using(&self, namespace: &str, pool: &str) -> Vec<String> {
        self.sets
            .names_where(namespace, |set| pool_name(set) == pool)
    }
}
