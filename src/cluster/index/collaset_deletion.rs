//! Decides by the caches which Pods are deleted together with their CollaSet.

use super::IndexState;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

impl IndexState {
    /// Whether the controller of a Pod is a CollaSet that is not in the cache: the CollaSet is deleted, or this replica
    /// has not seen it yet. Admission reads from the API server which of the two is true
    /// ([`crate::cluster::deleted_collasets`]).
    pub fn is_collaset_absent(&self, pod: &Pod) -> bool {
        let owner = pod.controller().filter(|owner| owner.is_collaset());
        let namespace_index = self.namespace(&pod.metadata.namespace);
        owner.is_some_and(|owner| {
            namespace_index.is_none_or(|namespace_index| !namespace_index.has_workload(&owner.uid))
        })
    }

    /// Whether a Pod is deleted through the lifecycle, and very likely because its CollaSet is deleted. Then no budget
    /// holds the Pod. If this guess is wrong, admission denies the request.
    pub fn is_deleted_with_collaset(&self, pod: &Pod) -> bool {
        grace_delete::is_deletion_in_flight(pod) && self.is_collaset_absent(pod)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::super::Index;
    use super::*;
    use crate::api::keys;
    use crate::cluster::kind::WatchedKind;
    use crate::cluster::owner_sizes::parse_workload;

    fn pod(kind: &str, deleted: bool) -> Pod {
        let mut labels = json!({ (keys::CONTROL): keys::CONTROL_VALUE });
        if deleted {
            labels["operating.podopslifecycle.kusionstack.io/pod-delete"] = json!("1");
            labels["operation-type.podopslifecycle.kusionstack.io/pod-delete"] = json!("delete");
        }
        let owner = json!([{
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": kind, "name": "web", "uid": "set", "controller": true,
        }]);
        let metadata = json!({ "namespace": "n", "name": "web-1", "uid": "p", "labels": labels, "ownerReferences": owner });
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    #[test]
    fn pod_is_deleted_with_its_collaset_only() {
        let index = Index::default();
        index.apply_pod(pod("CollaSet", true));
        let set = json!({ "metadata": { "namespace": "n", "name": "web", "uid": "set" }, "spec": { "replicas": 1 } });
        let (namespace, uid, set) = parse_workload(WatchedKind::CollaSet, set).unwrap();
        index.set_workload(&namespace, uid.clone(), Some(set));
        let goes = |kind, deleted| {
            index
                .read_state()
                .is_deleted_with_collaset(&pod(kind, deleted))
        };
        assert!(!goes("CollaSet", true));
        index.set_workload(&namespace, uid, None);
        assert!(goes("CollaSet", true));
        assert!(!goes("CollaSet", false) && !goes("Rollout", true));
    }
}
