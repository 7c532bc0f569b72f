//! The JSON form of an OperationJob, and the form that its cache keeps.

use std::collections::HashSet;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};

use super::ObjectCaches;
use super::cached_kind::CachedKind;
use super::object_cache::ObjectCache;
use super::readable_part::{ReadablePart, read_object};
use crate::api::keys;
use crate::api::operationjob::{OperationJob, Progress};
use crate::cluster::changes::Change;
use crate::cluster::kind::WatchedKind;
use crate::domain::operationjob::names::extra_info;
use crate::domain::pod::{Pod, PodMetadata};

/// An OperationJob in the cache. One that can't be read stays in the cache, so that its finalizer can still be removed.
#[derive(Clone, Debug, PartialEq)]
pub struct CachedJob {
    /// The OperationJob without `managedFields`. If its spec or status can't be read, it has only its metadata.
    pub object: Arc<OperationJob>,
    /// Why the spec or the status can't be read. `None` if both were read.
    pub unreadable: Option<String>,
    pods: ConcernedPods,
}

/// The Pods whose changes an unfinished job must see. All sets of a finished job are empty.
#[derive(Clone, Debug, Default, PartialEq)]
struct ConcernedPods {
    /// Names of the targets and of the new Pods.
    names: HashSet<String>,
    /// UIDs of the Pods that the job operates on.
    uids: HashSet<String>,
    /// UIDs of the new Pods.
    new_uids: HashSet<String>,
}

impl ConcernedPods {
    fn from_job(job: &OperationJob) -> ConcernedPods {
        let details = job.status.iter().flat_map(|status| &status.target_details);
        let stored = |key| {
            let values = details.clone().filter_map(move |d| d.extra_info.get(key));
            values.cloned()
        };
        let targets = job.spec.targets.iter().map(|target| target.name.clone());
        ConcernedPods {
            names: targets.chain(stored(extra_info::NEW_POD)).collect(),
            uids: stored(extra_info::POD_UID).collect(),
            new_uids: stored(extra_info::NEW_POD_UID).collect(),
        }
    }
}

impl CachedJob {
    fn new(object: OperationJob, unreadable: Option<String>) -> CachedJob {
        let pods = match is_unfinished(&object) {
            true => ConcernedPods::from_job(&object),
            false => ConcernedPods::default(),
        };
        CachedJob {
            object: Arc::new(object),
            unreadable,
            pods,
        }
    }

    /// Whether a change of the Pod may let the job go on: the Pod is a target, the Pod that the job operates on, or its
    /// new Pod. False for every Pod if the job is finished and does not have its finalizer.
    pub fn concerns(&self, pod: &Pod) -> bool {
        let replaced = pod.annotation(keys::REPLACED_UID);
        self.pods.names.contains(&pod.metadata.name)
            || self.concerns_uid(&pod.metadata.uid)
            || replaced.is_some_and(|uid| self.pods.uids.contains(uid))
    }

    /// As [`CachedJob::concerns`], for a Pod of which only the UID is known because the Pod is gone.
    pub fn concerns_uid(&self, uid: &str) -> bool {
        self.pods.uids.contains(uid) || self.pods.new_uids.contains(uid)
    }

    /// Whether `spec.targets` names this Pod, whether or not the job is finished.
    pub fn names(&self, pod: &str) -> bool {
        let mut targets = self.object.spec.targets.iter();
        targets.any(|target| target.name == pod)
    }
}

/// Whether the job has targets to operate on, or something that it asked of a Pod to withdraw.
fn is_unfinished(job: &OperationJob) -> bool {
    let progress = job
        .status
        .as_ref()
        .and_then(|status| status.progress.as_ref());
    let has_ended = progress.is_some_and(Progress::is_final);
    let mut finalizers = job.metadata.finalizers.iter().flatten();
    !has_ended || finalizers.any(|finalizer| finalizer == keys::PROTECTED_FINALIZER)
}

/// An OperationJob.
#[derive(Debug)]
pub struct JobObject {
    metadata: PodMetadata,
    cached: CachedJob,
}

impl<'de> Deserialize<'de> for JobObject {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let ReadablePart {
            metadata,
            object,
            unreadable,
        } = read_object(d, "the controller operates on no further Pod")?;
        Ok(JobObject {
            metadata,
            cached: CachedJob::new(object, unreadable),
        })
    }
}

impl CachedKind for JobObject {
    type Cached = CachedJob;
    const LABEL_SELECTOR: Option<&'static str> = None;
    const KIND: WatchedKind = WatchedKind::OperationJob;

    fn object_cache(objects: &ObjectCaches) -> &ObjectCache<CachedJob> {
        &objects.jobs
    }

    fn metadata(&self) -> &PodMetadata {
        &self.metadata
    }

    fn into_cached(self) -> Option<CachedJob> {
        Some(self.cached)
    }

    /// The OperationJob itself. Other jobs of the namespace are not affected.
    fn affected(metadata: &PodMetadata, _: &ObjectCaches) -> Vec<Change> {
        vec![Change::OperationJob(
            metadata.namespace.clone(),
            metadata.name.clone(),
        )]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    /// A job with the target `web-1`, these finalizers and this status.
    fn read(finalizers: &[&str], status: &Value) -> CachedJob {
        let object = json!({
            "metadata": {
                "namespace": "n", "name": "restart", "uid": "u", "resourceVersion": "7", "generation": 3,
                "managedFields": [{ "manager": "kubectl" }], "finalizers": finalizers,
            },
            "spec": { "action": "Replace", "targets": [{ "name": "web-1" }] },
            "status": status,
        });
        let object: JobObject = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(object.object_key().version, 7);
        object.into_cached().unwrap()
    }

    fn status(progress: &str) -> Value {
        json!({
            "progress": progress,
            "targetDetails": [{ "name": "web-1", "extraInfo": {
                "PodUID": "old", "NewPod": "web-2", "NewPodUID": "new",
            } }],
        })
    }

    fn pod(name: &str, uid: &str, annotations: &Value) -> Pod {
        let metadata = json!({ "name": name, "uid": uid, "annotations": annotations });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn job_is_cached_without_managed_fields() {
        let cached = read(&[], &json!({ "progress": "Pending" }));
        assert_eq!(cached.unreadable, None);
        assert_eq!(cached.object.metadata.generation, Some(3));
        assert_eq!(cached.object.metadata.managed_fields, None);
    }

    #[test]
    fn unreadable_job_stays_with_its_metadata() {
        let cached = read(&["a/b"], &json!({ "totalPodCount": "two" }));
        let fault = cached.unreadable.as_deref().unwrap();
        assert!(fault.contains("two"), "{fault}");
        let metadata = &cached.object.metadata;
        assert_eq!(metadata.generation, Some(3));
        assert_eq!(metadata.finalizers, Some(vec!["a/b".to_owned()]));
        assert_eq!(metadata.managed_fields, None);
    }

    #[test]
    fn new_job_concerns_its_targets() {
        let cached = read(&[], &json!(null));
        assert!(cached.concerns(&pod("web-1", "any", &json!(null))));
        assert!(!cached.concerns(&pod("web-2", "new", &json!(null))));
    }

    #[test]
    fn unfinished_job_concerns_the_pods_that_it_stored() {
        let cached = read(&[], &status("Processing"));
        for (name, uid) in [("web-1", "any"), ("other", "old"), ("web-2", "any")] {
            assert!(cached.concerns(&pod(name, uid, &json!(null))), "{name}");
        }
        let replaces = |uid: &str| json!({ (keys::REPLACED_UID): uid });
        assert!(cached.concerns(&pod("other", "any", &replaces("old"))));
        for uid in ["new", "any"] {
            assert!(!cached.concerns(&pod("other", "any", &replaces(uid))));
        }
        assert!(cached.concerns_uid("old") && cached.concerns_uid("new"));
        assert!(!cached.concerns_uid("any"));
    }

    #[test]
    fn finished_job_concerns_pods_until_its_finalizer_is_removed() {
        for progress in ["Succeeded", "Failed"] {
            let target = pod("web-1", "old", &json!(null));
            let released = read(&["a/b"], &status(progress));
            assert!(!released.concerns(&target) && !released.concerns_uid("old"));
            assert!(released.names("web-1"), "it still names its target");
            let held = read(&[keys::PROTECTED_FINALIZER], &status(progress));
            assert!(held.concerns(&target) && held.concerns_uid("old"));
        }
    }
}
