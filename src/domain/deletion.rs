//! What the caller of a deletion wants besides that the Pod goes. Under GraceDelete another request deletes the Pod, later.

use serde::{Deserialize, Serialize};

use super::pod::Pod;
use crate::api::keys;

/// Options of a DELETE or of an eviction that outlast the refusal of the request. Fields as in `DeleteOptions` of the API
/// server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wishes {
    /// Seconds that the containers get to end; 0 takes the Pod out of the API at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<u32>,
    /// What becomes of objects that the Pod owns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub propagation_policy: Option<Propagation>,
}

/// A propagation policy that is not the API server's own choice for Pods, which is `Background`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// The Pod stays until they are gone.
    Foreground,
    /// They stay.
    Orphan,
}

impl Wishes {
    /// Read off the `DeleteOptions` of a request, as JSON. A field that says nothing more than the API server's default, or that
    /// the API server refuses, is left out.
    pub fn of(options: &serde_json::Value) -> Wishes {
        let grace = options["gracePeriodSeconds"].as_u64();
        let by_name = |policy: &serde_json::Value| Propagation::deserialize(policy).ok();
        let orphan = options["orphanDependents"] == true;
        Wishes {
            grace_period_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()),
            propagation_policy: by_name(&options["propagationPolicy"])
                .or_else(|| orphan.then_some(Propagation::Orphan)),
        }
    }

    /// What was written to the Pod when its deletion was asked for. An annotation that can't be read says nothing.
    pub fn stored(pod: &Pod) -> Wishes {
        let text = pod.annotation(keys::DELETE_OPTIONS);
        text.and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default()
    }

    /// These wishes and those of a later request. As for a Pod that is being deleted, a later request can shorten the grace
    /// period and not lengthen it.
    pub fn and(&self, later: &Wishes) -> Wishes {
        let grace = [self.grace_period_seconds, later.grace_period_seconds];
        Wishes {
            grace_period_seconds: grace.into_iter().flatten().min(),
            propagation_policy: later.propagation_policy.or(self.propagation_policy),
        }
    }

    /// The value of the annotation; `None` where there is nothing to keep.
    pub fn value(&self) -> Option<String> {
        let is_empty = *self == Wishes::default();
        (!is_empty).then(|| serde_json::json!(self).to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_read_and_stored_without_defaults() {
        let value = |options| Wishes::of(&options).value();
        assert_eq!(value(json!(null)), None);
        assert_eq!(value(json!({ "propagationPolicy": "Background" })), None);
        assert_eq!(value(json!({ "gracePeriodSeconds": -1 })), None);
        let stored = r#"{"gracePeriodSeconds":0,"propagationPolicy":"Foreground"}"#;
        let options =
            json!({ "gracePeriodSeconds": 0, "propagationPolicy": "Foreground", "dryRun": [] });
        assert_eq!(value(options).as_deref(), Some(stored));
        let orphan = Wishes::of(&json!({ "orphanDependents": true }));
        assert_eq!(orphan.propagation_policy, Some(Propagation::Orphan));

        let mut pod = Pod::default();
        for (text, grace) in [(stored, Some(0)), ("{", None), (r#"{"new":1}"#, None)] {
            let annotations = &mut pod.metadata.annotations;
            annotations.insert(keys::DELETE_OPTIONS.to_owned(), text.to_owned());
            assert_eq!(Wishes::stored(&pod).grace_period_seconds, grace, "{text}");
        }
    }

    #[test]
    fn later_request_shortens_the_grace_period_and_never_lengthens_it() {
        let grace = |seconds| Wishes {
            grace_period_seconds: seconds,
            ..Wishes::default()
        };
        for (first, later, both) in [
            (None, None, None),
            (None, Some(5), Some(5)),
            (Some(5), None, Some(5)),
            (Some(5), Some(3), Some(3)),
            (Some(5), Some(30), Some(5)),
        ] {
            assert_eq!(grace(first).and(&grace(later)), grace(both));
        }
    }
}
