//! Handles a label `service-available` that a client writes by hand on a Pod that is not Ready, or has not been Ready
//! for `minReadySeconds`.
//!
//! Kuperator accepts the write. The new Pod of a replace pair that has the label replaces its origin (contract 6.6),
//! and the controller removes the label again, because the Pod is not Ready (contract 3.2). Operating does not store
//! the label: if the Pod became Ready before the removal, it would count as available although its cooperators have not
//! put it on traffic. Instead, the webhook records the intention in an annotation that has no other effect.

use super::min_ready;
use crate::api::keys;
use crate::domain::pod::Pod;

/// Removes the label from a write that sets it by hand on a Pod that is not Ready, or has not been Ready for
/// `minReadySeconds` at `now_nanos` since 1970. The annotation [`keys::REPLACES`] then records which origin the Pod
/// replaces. Returns the warning for the user, or `None` if the write does not set the label in this way.
/// [`super::validate()`] checks the label on other Pods.
pub fn take_manual_label(old: &Pod, new: &mut Pod, now_nanos: u64) -> Option<String> {
    let key = keys::SERVICE_AVAILABLE;
    let value = new.label(key)?;
    let is_ready = old.is_ready() || new.is_ready();
    let is_early = old.label(key).is_none() && min_ready::remaining_nanos(new, now_nanos).is_some();
    if old.label(key) == Some(value) || (is_ready && !is_early) {
        return None;
    }
    let problem = if is_early {
        "has not been Ready for minReadySeconds"
    } else {
        "is not Ready"
    };
    let name = new.metadata.name.clone();
    let origin = new.label(keys::REPLACE_PAIR_ORIGIN_NAME).map(str::to_owned);
    new.metadata.labels.remove(key);
    let warning = format!("Pod {name} {problem}, so its label {key} is not kept");
    let Some(origin) = origin else {
        return Some(format!(
            "{warning}: the lifecycle controller adds it once the Pod serves"
        ));
    };
    let warning = format!("{warning}; it still replaces Pod {origin}");
    let annotations = &mut new.metadata.annotations;
    annotations.insert(keys::REPLACES.to_owned(), origin);
    Some(warning)
}

/// Whether the new Pod of a replace pair replaces its origin: it is available, or a client wrote the label by hand.
pub fn replaces_origin(new: &Pod, origin: &Pod) -> bool {
    new.is_available() || new.annotation(keys::REPLACES) == Some(&origin.metadata.name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn pod(ready: bool, labels: Value) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": { "name": "web-2", "labels": labels },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        }))
        .unwrap()
    }

    fn labelled(value: &str) -> Value {
        json!({ (keys::SERVICE_AVAILABLE): value })
    }

    #[test]
    fn manual_label_is_dropped_and_noted_on_new_half_only() {
        let half = |mut labels: Value| {
            labels[keys::REPLACE_PAIR_ORIGIN_NAME] = json!("web-1");
            pod(false, labels)
        };
        let mut new = half(labelled("true"));
        let warning = take_manual_label(&half(json!({})), &mut new, 0).unwrap();
        assert!(
            warning.ends_with("it still replaces Pod web-1"),
            "{warning}"
        );
        assert_eq!(new.label(keys::SERVICE_AVAILABLE), None);
        let origin = |name: &str| {
            let mut pod = pod(true, json!({}));
            pod.metadata.name = name.to_owned();
            pod
        };
        assert!(
            replaces_origin(&new, &origin("web-1")) && !replaces_origin(&new, &origin("web-7"))
        );

        let mut new = pod(false, labelled("true"));
        let warning = take_manual_label(&pod(false, json!({})), &mut new, 0).unwrap();
        assert!(warning.contains("adds it once the Pod serves"), "{warning}");
        assert_eq!(new, pod(false, json!({})));
    }

    #[test]
    fn label_by_hand_does_not_cut_min_ready_seconds_short() {
        let since = "2026-01-01T00:00:00Z";
        let pod = |labels: Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": { "name": "web-2", "labels": labels, "annotations": { keys::MIN_READY_SECONDS: "60" } },
                "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": since }] },
            }))
            .unwrap()
        };
        let since: jiff::Timestamp = since.parse().unwrap();
        let nanos = u64::try_from(since.as_nanosecond()).unwrap();
        for (seconds, is_kept) in [(59, false), (60, true)] {
            let mut new = pod(labelled("1"));
            let warning =
                take_manual_label(&pod(json!({})), &mut new, nanos + seconds * 1_000_000_000);
            assert_eq!(
                new.label(keys::SERVICE_AVAILABLE).is_some(),
                is_kept,
                "{warning:?}"
            );
            assert_eq!(warning.is_none(), is_kept);
        }
    }

    #[test]
    fn label_on_ready_pod_or_existing_label_stays() {
        for (old, new) in [
            (pod(true, json!({})), pod(true, labelled("1"))),
            (pod(false, json!({})), pod(true, labelled("1"))),
            (pod(true, labelled("1")), pod(false, labelled("2"))),
            (pod(false, labelled("1")), pod(false, labelled("1"))),
            (pod(false, labelled("1")), pod(false, json!({}))),
        ] {
            let mut after = new.clone();
            assert_eq!(take_manual_label(&old, &mut after, 0), None);
            assert_eq!(after, new);
        }
    }
}
