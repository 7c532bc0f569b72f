//! The options of a deletion request. With GraceDelete they are stored on the Pod, because another request deletes the
//! Pod later.

use serde::{Deserialize, Serialize};

use super::pod::Pod;
use crate::api::keys;

/// Options of a DELETE or of an eviction that stay valid after the request was denied. The fields are as in
/// `DeleteOptions` of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DeletionOptions {
    /// Seconds that the containers get to end. With 0, the Pod disappears from the API at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<u32>,
    /// What happens to objects that the Pod owns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
    /// Value of the label [`keys::TO_DELETE`] for which the options were written. With another value of the label they
    /// are void.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub to_delete: String,
}

/// A propagation policy other than `Background`, which is the API server's default for Pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// The Pod stays until the owned objects are gone.
    Foreground,
    /// The owned objects stay.
    Orphan,
}

impl DeletionOptions {
    /// Reads the options of a DELETE of `pod`, both as JSON. The API server fills in the grace period before it calls
    /// the webhook: the Pod's own value, or 0 for a Pod without a node (`CheckGracefulDelete` of its strategy for
    /// Pods). Such a value is left out, because it may be different later.
    pub fn from_delete(options: &serde_json::Value, pod: &serde_json::Value) -> DeletionOptions {
        let requested = DeletionOptions::from_eviction(options);
        let spec = &pod["spec"];
        let is_placed = spec["nodeName"]
            .as_str()
            .is_some_and(|node| !node.is_empty());
        let pod_grace_period = spec["terminationGracePeriodSeconds"].as_u64();
        let grace_period = requested.grace_period_seconds;
        let is_explicit = is_placed && grace_period.map(u64::from) != pod_grace_period;
        DeletionOptions {
            grace_period_seconds: grace_period.filter(|_| is_explicit),
            ..requested
        }
    }

    /// Reads the `DeleteOptions` of an eviction, as JSON. A field is left out if it only repeats the API server's
    /// default, or if the API server refuses it.
    pub fn from_eviction(options: &serde_json::Value) -> DeletionOptions {
        let grace_period = options["gracePeriodSeconds"].as_u64();
        let by_name = |policy: &serde_json::Value| Propagation::deserialize(policy).ok();
        let orphan = options["orphanDependents"] == true;
        DeletionOptions {
            grace_period_seconds: grace_period.and_then(|seconds| u32::try_from(seconds).ok()),
            propagation_policy: by_name(&options["propagationPolicy"])
                .or_else(|| orphan.then_some(Propagation::Orphan)),
            to_delete: String::new(),
        }
    }

    /// The options that were stored on the Pod when its deletion was requested. An annotation is ignored if it can't be
    /// read, or if it was written for an earlier value of the label.
    pub fn from_pod(pod: &Pod) -> DeletionOptions {
        let text = pod.annotation(keys::DELETE_OPTIONS);
        let stored = text.and_then(|text| serde_json::from_str::<DeletionOptions>(text).ok());
        let label = pod.label(keys::TO_DELETE);
        let stored = stored.filter(|stored| label == Some(&*stored.to_delete));
        stored.map_or_else(DeletionOptions::default, |stored| DeletionOptions {
            to_delete: String::new(),
            ..stored
        })
    }

    /// Combines these options with those of a later request. As with a Pod that is being deleted, a later request can
    /// shorten the grace period and not extend it.
    pub fn merge_later(&self, later: &DeletionOptions) -> DeletionOptions {
        let grace_periods = [self.grace_period_seconds, later.grace_period_seconds];
        DeletionOptions {
            grace_period_seconds: grace_periods.into_iter().flatten().min(),
            propagation_policy: later.propagation_policy.or(self.propagation_policy),
            to_delete: String::new(),
        }
    }

    /// The value of the annotation for this value of the label. `None` if there is nothing to store.
    pub fn annotation_value(&self, to_delete: &str) -> Option<String> {
        let is_empty = *self == DeletionOptions::default();
        let stored = DeletionOptions {
            to_delete: to_delete.to_owned(),
            ..self.clone()
        };
        (!is_empty).then(|| serde_json::json!(stored).to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_read_and_stored_without_defaults() {
        let value = |options| DeletionOptions::from_eviction(&options).annotation_value("7");
        assert_eq!(value(json!(null)), None);
        assert_eq!(value(json!({ "propagationPolicy": "Background" })), None);
        assert_eq!(value(json!({ "gracePeriodSeconds": -1 })), None);
        let stored = r#"{"gracePeriodSeconds":0,"propagationPolicy":"Foreground","toDelete":"7"}"#;
        let options =
            json!({ "gracePeriodSeconds": 0, "propagationPolicy": "Foreground", "dryRun": [] });
        assert_eq!(value(options).as_deref(), Some(stored));
        let orphan = DeletionOptions::from_eviction(&json!({ "orphanDependents": true }));
        assert_eq!(orphan.propagation_policy, Some(Propagation::Orphan));

        let mut pod = Pod::default();
        let labels = &mut pod.metadata.labels;
        labels.insert(keys::TO_DELETE.to_owned(), "7".to_owned());
        let former = r#"{"gracePeriodSeconds":0,"toDelete":"6"}"#;
        for (text, grace) in [
            (stored, Some(0)),
            (former, None),
            ("{", None),
            (r#"{"gracePeriodSeconds":0}"#, None),
        ] {
            let annotations = &mut pod.metadata.annotations;
            annotations.insert(keys::DELETE_OPTIONS.to_owned(), text.to_owned());
            assert_eq!(
                DeletionOptions::from_pod(&pod).grace_period_seconds,
                grace,
                "{text}"
            );
        }
    }

    #[test]
    fn defaulted_grace_period_is_not_stored() {
        let grace = |seconds: u64, spec: serde_json::Value| {
            let options = json!({ "gracePeriodSeconds": seconds });
            DeletionOptions::from_delete(&options, &json!({ "spec": spec })).grace_period_seconds
        };
        let placed = json!({ "nodeName": "a", "terminationGracePeriodSeconds": 30 });
        assert_eq!(grace(30, placed.clone()), None);
        assert_eq!(grace(5, placed.clone()), Some(5));
        assert_eq!(grace(0, placed), Some(0));
        assert_eq!(
            grace(0, json!({ "terminationGracePeriodSeconds": 30 })),
            None
        );
    }

    #[test]
    fn later_request_shortens_the_grace_period_and_never_lengthens_it() {
        let grace = |seconds| DeletionOptions {
            grace_period_seconds: seconds,
            ..DeletionOptions::default()
        };
        for (first, later, both) in [
            (None, None, None),
            (None, Some(5), Some(5)),
            (Some(5), None, Some(5)),
            (Some(5), Some(3), Some(3)),
            (Some(5), Some(30), Some(5)),
        ] {
            assert_eq!(grace(first).merge_later(&grace(later)), grace(both));
        }
    }
}
