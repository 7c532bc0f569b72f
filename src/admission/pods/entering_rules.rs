//! Denies writes that bring a Pod under a budget while a disruption of it is outstanding.
//!
//! Before a change of labels brings a Pod under a budget, no rule has checked the changes of its spec. A container that
//! is yet to restart, or a deadline that somebody has set, would later disrupt the Pod without a claim.

use std::time::Duration;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::pod_updates;
use crate::admission::context::AdmissionContext;
use crate::admission::denial;
use crate::admission::review::{Request, Verdict};
use crate::domain::inplace;
use crate::domain::lifecycle::{are_user_labels_changed, restarts};
use crate::domain::pod::Pod;

/// Time after the grace period when a container has certainly ended.
const RESTART_SLACK: Duration = Duration::from_nanos(restarts::ASSUMED_AFTER_NANOS);
/// How a denial names a rule that this replica does not know.
pub const UNKNOWN_RULE: &str = "a rule";
/// The grace period that Kubernetes sets for a Pod without one, in seconds.
const GRACE_SECONDS: i64 = 30;

/// The rule object by which an UPDATE brings the Pod under a budget, as a denial names it.
pub fn entered_rule(context: &AdmissionContext, old: &Pod, new: &Pod) -> Option<String> {
    if !are_user_labels_changed(old, new) {
        return None;
    }
    let index = &context.index;
    let entered = {
        let state = index.read_state();
        let mut covering = state.rules_covering(new);
        let entry = covering.find(|entry| entry.snapshot.rules.loses_pod(new, old));
        entry.map(|entry| format!("PodTransitionRule {}", entry.snapshot.rules.name))
    };
    // A replica that has not seen all rules does not know whether a rule begins to hold the Pod.
    entered
        .or_else(|| (!index.listed_kinds().has_decision_kinds()).then(|| UNKNOWN_RULE.to_owned()))
}

/// Denies an UPDATE that brings the Pod under the rule `entered`, if a change that ends or restarts the Pod is
/// outstanding, or is part of the same UPDATE.
pub fn refuse_entry(
    context: &AdmissionContext,
    request: &Request,
    old: &Pod,
    new: &Pod,
    entered: &str,
) -> Option<Verdict> {
    let ((code, reason), why) = if pod_updates::may_end_on_entry(context, old, new) {
        let why = "this write also restarts or ends it; change the labels in a write of their own";
        (FORBIDDEN, why.to_owned())
    } else {
        outstanding_change(old, request.old_object.as_deref(), (context.earliest)())?
    };
    let name = &new.metadata.name;
    let text = format!("Pod {name} can't be put under {entered} now: {why}");
    Some(Verdict::deny(code, reason, text).with_audit("held", "enters-changed"))
}

const FORBIDDEN: (u16, &str) = (403, "Forbidden");

/// Why a change of the spec since the creation of the Pod may still disrupt it, with the code and reason of the answer.
/// `raw` is the Pod as the review contains it.
fn outstanding_change(
    old: &Pod,
    raw: Option<&RawValue>,
    now: Timestamp,
) -> Option<((u16, &'static str), String)> {
    if old.metadata.generation <= 1 || old.is_finished() {
        return None;
    }
    if let Some(seconds) = old.spec.active_deadline_seconds {
        let why = format!("it ends by activeDeadlineSeconds {seconds}; delete it instead");
        return Some((FORBIDDEN, why));
    }
    let resizes =
        !inplace::unfinished_resizes(old).is_empty() || inplace::is_resize_unobservable(old);
    let why = if !old.is_spec_observed() {
        "the kubelet has not seen the last change of its spec yet"
    } else if resizes {
        "the kubelet has not made a resize yet that restarts a container"
    } else if !is_settled(raw, now) {
        "its spec was changed a moment ago, and a container may still have to restart"
    } else {
        return None;
    };
    Some((
        denial::TOO_MANY_REQUESTS,
        format!("{why}; try again in a minute"),
    ))
}

/// The fields that tell how long ago the spec of a Pod was changed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SpecHistory {
    metadata: ManagedFieldsMetadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ManagedFieldsMetadata {
    managed_fields: Vec<ManagedFieldsEntry>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ManagedFieldsEntry {
    time: Option<String>,
    subresource: String,
    fields_v1: OwnedFields,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct OwnedFields {
    #[serde(rename = "f:spec")]
    spec: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    termination_grace_period_seconds: Option<i64>,
}

/// Whether the last change of the Pod's spec is so old that a container which had to restart has restarted. The state
/// of the container does not tell this: the kubelet reports a change as observed before it ends the container, and the
/// image that runs may be the wanted image under another name.
fn is_settled(pod: Option<&RawValue>, now: Timestamp) -> bool {
    let pod = pod.and_then(|raw| serde_json::from_str::<SpecHistory>(raw.get()).ok());
    let pod = pod.unwrap_or_default();
    let of_spec = |managed: &&ManagedFieldsEntry| {
        managed.subresource != "status" && managed.fields_v1.spec.is_some()
    };
    let managers = pod.metadata.managed_fields.iter().filter(of_spec);
    let last = managers
        .filter_map(|managed| managed.time.as_deref()?.parse::<Timestamp>().ok())
        .max();
    let grace = pod.spec.termination_grace_period_seconds;
    let grace = u64::try_from(grace.unwrap_or(GRACE_SECONDS)).unwrap_or(0);
    let ended = Duration::from_secs(grace).saturating_add(RESTART_SLACK);
    let since = last.and_then(|last| Duration::try_from(now.duration_since(last)).ok());
    since.is_some_and(|since| since > ended)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn raw(pod: &Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(pod).unwrap()
    }

    #[test]
    fn pod_is_settled_some_time_after_last_spec_change() {
        let spec = json!({ "f:spec": { "f:containers": {} } });
        let other = json!({ "f:metadata": { "f:annotations": {} } });
        let pod = json!({
            "metadata": { "managedFields": [
                { "time": "2026-01-01T00:00:00Z", "manager": "kubectl", "fieldsV1": spec },
                { "time": "2026-01-01T00:05:00Z", "manager": "note", "fieldsV1": other },
                { "time": "2026-01-01T00:05:00Z", "manager": "kubelet", "subresource": "status" },
            ] },
            "spec": { "terminationGracePeriodSeconds": 10 },
        });
        let settled = |pod: &Value, now: &str| is_settled(Some(&raw(pod)), now.parse().unwrap());
        assert!(!settled(&pod, "2026-01-01T00:01:25Z"));
        assert!(settled(&pod, "2026-01-01T00:01:26Z"));
        assert!(
            !settled(&json!({}), "2026-01-01T00:01:26Z"),
            "nothing tells"
        );
    }

    /// The code of the answer for a changed Pod that is settled except for `change`.
    fn outstanding_code(change: impl FnOnce(&mut Pod)) -> Option<u16> {
        let raw = raw(&json!({ "metadata": { "managedFields": [
            { "time": "2026-01-01T00:00:00Z", "fieldsV1": { "f:spec": {} } },
        ] } }));
        let mut pod: Pod = serde_json::from_value(json!({
            "metadata": { "generation": 2 },
            "spec": { "containers": [{
                "name": "app", "resources": { "limits": { "memory": "1Gi" } },
                "resizePolicy": [{ "resourceName": "memory", "restartPolicy": "RestartContainer" }],
            }] },
            "status": {
                "observedGeneration": 2,
                "containerStatuses": [{ "name": "app", "resources": { "limits": { "memory": "1Gi" } } }],
            },
        }))
        .unwrap();
        change(&mut pod);
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        outstanding_change(&pod, Some(&raw), now).map(|((code, _), _)| code)
    }

    #[test]
    fn outstanding_restart_is_derived_from_spec_and_kubelet_status() {
        assert_eq!(outstanding_code(|_| {}), None);
        assert_eq!(
            outstanding_code(|pod| pod.spec.active_deadline_seconds = Some(9)),
            Some(403)
        );
        assert_eq!(
            outstanding_code(|pod| pod.metadata.generation = 3),
            Some(429)
        );
        let created = outstanding_code(|pod| {
            pod.metadata.generation = 1;
            pod.spec.active_deadline_seconds = Some(9);
        });
        assert_eq!(created, None, "nobody has changed it");
        let deferred = |memory: &str| {
            let memory = memory.to_owned();
            outstanding_code(move |pod| {
                let message =
                    json!({ "type": "PodResizePending", "status": "True", "reason": "Deferred" });
                pod.status.conditions = vec![serde_json::from_value(message).unwrap()];
                pod.spec.containers[0].resources =
                    json!({ "limits": { "memory": memory, "cpu": "2" } });
            })
        };
        assert_eq!(deferred("2Gi"), Some(429));
        assert_eq!(deferred("1Gi"), None, "a resize that restarts nothing");
    }
}
