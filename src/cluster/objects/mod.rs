//! What the controllers of workloads look at besides Pods: CollaSets whole, and the ControllerRevisions,
//! PersistentVolumeClaims and ResourceContexts behind them. One watch per kind. Admission needs none of it.

pub mod cache_positions;
mod cached_kind;
pub mod object_cache;
pub mod object_requests;

use crate::api::collaset::CollaSet;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision, pool_name};

pub use cached_kind::{
    CachedKind, CollaSetObject, PvcObject, ResourceContextObject, RevisionObject,
};
use object_cache::ObjectCache;

/// The caches.
#[derive(Debug, Default)]
pub struct ObjectCaches {
    /// CollaSets.
    pub sets: ObjectCache<CollaSet>,
    /// ControllerRevisions that a CollaSet controls, or nobody.
    pub revisions: ObjectCache<Revision>,
    /// PersistentVolumeClaims with `kusionstack.io/control=true` that a CollaSet controls, or nobody.
    pub claims: ObjectCache<Pvc>,
    /// ResourceContexts.
    pub pools: ObjectCache<InstancePool>,
}

impl ObjectCaches {
    /// Names of the CollaSets of a namespace that ask for a Pod by its name (`podToInclude`).
    pub fn collasets_including(&self, namespace: &str, pod: &str) -> Vec<String> {
        self.sets.names_where(namespace, |set| {
            let scale = set.spec.scale_strategy.as_ref();
            scale.is_some_and(|s| s.pod_to_include.iter().any(|name| name == pod))
        })
    }

    /// Names of the CollaSets of a namespace that take their instance IDs from the ResourceContext of this name.
    pub fn collasets_using_context(&self, namespace: &str, pool: &str) -> Vec<String> {
        self.sets
            .names_where(namespace, |set| pool_name(set) == pool)
    }
}
