//! Detects Pods that still serve, and will stop because of a change that was made before.
//!
//! If a rule covers the Pod at the time of the change, the change has a claim. There is no claim if the rule was
//! created later or was bypassed. In these cases the disruption must be detected from the Pod itself.

use super::inplace;
use super::pod::{Owner, Pod};

/// A disruption that will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingDisruption {
    /// The kubelet ends the Pod after `spec.activeDeadlineSeconds`. The API server does not allow anybody to raise or
    /// remove the field.
    Deadline,
    /// The kubelet restarts a container for a resize.
    Resize {
        /// Whether the kubelet has deferred the resize because the node has no room.
        deferred: bool,
    },
}

/// The disruption that will come for a Pod. `None` if there is none.
///
/// A deadline counts only if it was set after the creation of the Pod. No field shows when it was set, so the deadline
/// counts if the spec has changed since the creation. Pods of CollaSets are excepted, because CollaSets often change
/// their Pods in place.
pub fn pending_disruption(pod: &Pod) -> Option<PendingDisruption> {
    let is_of_collaset = pod.controller().is_some_and(Owner::is_collaset);
    if pod.spec.active_deadline_seconds.is_some() && pod.metadata.generation > 1 && !is_of_collaset
    {
        return Some(PendingDisruption::Deadline);
    }
    let has_unfinished_resize =
        !inplace::unfinished_resizes(pod).is_empty() || inplace::is_resize_unobservable(pod);
    has_unfinished_resize.then(|| PendingDisruption::Resize {
        deferred: inplace::is_resize_deferred(pod),
    })
}

/// Whether a Pod counts as available: it serves, and no disruption of it is announced.
pub fn counts_as_available(pod: &Pod) -> bool {
    pod.is_available() && pending_disruption(pod).is_none()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn disruption_of(patch: &Value) -> Option<PendingDisruption> {
        let mut pod = json!({
            "metadata": { "namespace": "n", "name": "web-1", "uid": "u1", "generation": 2 },
            "spec": { "containers": [{
                "name": "app", "resources": { "limits": { "memory": "1Gi" } },
                "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
            }] },
            "status": {
                "observedGeneration": 2, "phase": "Running",
                "containerStatuses": [{ "name": "app", "resources": { "limits": { "memory": "1Gi" } } }],
            },
        });
        json_patch::merge(&mut pod, patch);
        pending_disruption(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn deadline_that_was_set_later_is_announced() {
        let deadline = json!({ "activeDeadlineSeconds": 600 });
        assert_eq!(disruption_of(&json!({})), None);
        assert_eq!(
            disruption_of(&json!({ "spec": deadline })),
            Some(PendingDisruption::Deadline)
        );
        let created = json!({ "metadata": { "generation": 1 }, "spec": deadline });
        assert_eq!(disruption_of(&created), None);
        let owner = json!([{
            "apiVersion": "apps.kusionstack.io/v1alpha1", "kind": "CollaSet", "name": "web", "uid": "u",
            "controller": true,
        }]);
        let of_set = json!({ "metadata": { "ownerReferences": owner }, "spec": deadline });
        assert_eq!(disruption_of(&of_set), None);
    }

    #[test]
    fn restarting_resize_is_announced_until_done() {
        let resized = |memory: &str, cpu: &str| {
            let condition = json!([{ "type": "PodResizeInProgress", "status": "True" }]);
            disruption_of(&json!({
                "spec": { "containers": [{
                    "name": "app", "resources": { "limits": { "memory": memory, "cpu": cpu } },
                    "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
                }] },
                "status": { "conditions": condition },
            }))
        };
        let resize = PendingDisruption::Resize { deferred: false };
        assert_eq!(resized("2Gi", "1"), Some(resize));
        assert_eq!(resized("1Gi", "2"), None, "it restarts nothing");
    }
}
