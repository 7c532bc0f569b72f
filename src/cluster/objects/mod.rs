//! Caches the objects that the controllers of workloads read besides Pods: whole CollaSets, PodDecorations and
//! OperationJobs, and the ControllerRevisions, PersistentVolumeClaims and ResourceContexts of the first two. Each kind has
//! one watch. Admission does not use these caches.

pub(crate) mod cache_positions;
mod cached_kind;
mod decoration_object;
mod job_object;
pub mod object_cache;
pub(crate) mod object_requests;
mod readable_part;

use std::sync::Arc;

use crate::api::collaset::CollaSet;
use crate::domain::collaset::observed::{InstancePool, Pvc, Revision, pool_name};

pub use cached_kind::{
    CachedKind, CollaSetObject, PvcObject, ResourceContextObject, RevisionObject,
};
pub use decoration_object::{CachedDecoration, DecorationObject};
pub use job_object::{CachedJob, JobObject};
pub use object_cache::{ObjectCache, ObjectKey};

/// The caches of CollaSets, PodDecorations and their objects, and of OperationJobs.
#[derive(Debug, Default)]
pub struct ObjectCaches {
    /// CollaSets.
    pub sets: ObjectCache<CollaSet>,
    /// ControllerRevisions that a CollaSet or a PodDecoration controls, or that have no controller.
    pub revisions: ObjectCache<Revision>,
    /// PersistentVolumeClaims with `kusionstack.io/control=true` that a CollaSet controls or that have no controller.
    pub pvcs: ObjectCache<Pvc>,
    /// ResourceContexts.
    pub pools: ObjectCache<InstancePool>,
    /// PodDecorations, including those whose spec can't be read.
    pub decorations: ObjectCache<CachedDecoration>,
    /// OperationJobs, including those whose spec can't be read.
    pub jobs: ObjectCache<CachedJob>,
}

impl ObjectCaches {
    /// Names of the CollaSets of a namespace that include a Pod by its name (`podToInclude`).
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

    /// The OperationJobs of a namespace that name this Pod in `spec.targets`, finished or not, in the order of their
    /// names.
    pub fn jobs_naming(&self, namespace: &str, pod: &str) -> Vec<Arc<CachedJob>> {
        let mut jobs = self.jobs.objects_of(namespace);
        jobs.retain(|job| job.names(pod));
        jobs
    }
}
