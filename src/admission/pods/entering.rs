//! Pods that come under a rule by a change of their labels.
//!
//! A Pod is judged by what its rules see of it. What its spec went through before that no rule has held: a container that
//! is yet to restart, or a deadline that somebody set, would be lost to the budget later, without a claim.

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::writes;
use crate::admission::context::Context;
use crate::admission::gate;
use crate::admission::review::{Request, Verdict};
use crate::domain::inplace;
use crate::domain::pod::Pod;

/// How long after its grace period a container has surely been ended: as long as the ledger takes a restart for granted.
const SLACK: SignedDuration = SignedDuration::from_secs(75);
/// The grace period that Kubernetes writes into a Pod without one.
const GRACE_SECONDS: i64 = 30;

/// The refusal of an UPDATE by which a Pod comes under a budget that did not hold it, while something is outstanding that
/// ends or restarts it, or in the very write that does.
pub fn refused(context: &Context, request: &Request, old: &Pod, new: &Pod) -> Option<Verdict> {
    // Until its restarts have come, such a Pod does not count as available.
    if old.is_managed() && writes::is_held_throughout(old, new) {
        return None;
    }
    if !gate::are_labels_changed(old, new) {
        return None;
    }
    let index = &context.index;
    let entered = {
        let state = index.read();
        let mut covering = state.covering(new);
        let entry = covering.find(|entry| entry.snapshot.rules.loses(new, old));
        entry.map(|entry| format!("PodTransitionRule {}", entry.snapshot.rules.name))
    };
    // A replica that has yet to see all rules can't tell.
    let entered = entered.or_else(|| (!index.synced().all()).then(|| "a rule".to_owned()))?;
    let name = &new.metadata.name;
    let text = if writes::may_end(context, old, new) {
        format!(
            "Pod {name} can't come under {entered} by a write that also restarts or ends it; change the labels in a write of \
             their own, after the other"
        )
    } else {
        let raw = request.old_object.as_deref();
        let outstanding = inplace::outstanding(old, is_settled(raw, (context.now)()))?;
        format!(
            "Pod {name} can't come under {entered} now: {outstanding}; change the labels when that is over, or delete the Pod"
        )
    };
    Some(Verdict::deny(409, "Conflict", text).audit("held", "enters-changed"))
}

/// What tells how long ago a Pod was changed.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Touched {
    metadata: Metadata,
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    managed_fields: Vec<Managed>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Managed {
    time: Option<String>,
    subresource: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    termination_grace_period_seconds: Option<i64>,
}

/// Whether nobody has changed the Pod, its status aside, for so long that a container which had to restart has done so.
fn is_settled(pod: Option<&RawValue>, now: Timestamp) -> bool {
    let pod = pod.and_then(|raw| serde_json::from_str::<Touched>(raw.get()).ok());
    let pod = pod.unwrap_or_default();
    let of_spec = |managed: &&Managed| managed.subresource != "status";
    let times = pod.metadata.managed_fields.iter().filter(of_spec);
    let last = times
        .filter_map(|managed| managed.time.as_deref()?.parse::<Timestamp>().ok())
        .max();
    let seconds = pod
        .spec
        .termination_grace_period_seconds
        .unwrap_or(GRACE_SECONDS);
    let grace = SignedDuration::from_secs(seconds.max(0));
    last.is_some_and(|last| now.duration_since(last) > grace.saturating_add(SLACK))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn pod_is_settled_a_while_after_its_last_change_but_for_the_status() {
        let pod = json!({
            "metadata": { "managedFields": [
                { "time": "2026-01-01T00:00:00Z", "manager": "kubectl" },
                { "time": "2026-01-01T00:05:00Z", "manager": "kubelet", "subresource": "status" },
            ] },
            "spec": { "terminationGracePeriodSeconds": 10 },
        });
        let settled = |pod: &serde_json::Value, now: &str| {
            let raw: Box<RawValue> = serde_json::value::to_raw_value(pod).unwrap();
            is_settled(Some(&raw), now.parse().unwrap())
        };
        assert!(!settled(&pod, "2026-01-01T00:01:25Z"));
        assert!(settled(&pod, "2026-01-01T00:01:26Z"));
        assert!(
            !settled(&json!({}), "2026-01-01T00:01:26Z"),
            "nothing tells"
        );
    }
}
