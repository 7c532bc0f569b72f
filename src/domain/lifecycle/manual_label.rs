//! The label `service-available`, written by hand on a Pod that is not Ready, or not for as long as its CollaSet says.
//!
//! With Kuperator the write is accepted. The new half of a pair that carries the label takes the place of its origin
//! (contract 6.6), and the controller takes the label off again, since the Pod is not Ready (contract 3.2). Here the label is
//! not even stored: a Pod that became Ready before the label was taken off would count as available, although its
//! cooperators have not put it on traffic. What the label was written for is noted in an annotation that nothing else reads.

use super::min_ready;
use crate::api::keys;
use crate::domain::pod::Pod;

/// Takes the label out of a write that sets it by hand on a Pod that is not Ready, or has not been for `minReadySeconds` at
/// `now_nanos` since 1970, and notes in the annotation [`keys::REPLACES`] which origin the Pod is to take the place of. Returns what
/// to tell the user, `None` if the write does no such thing. The label on a Pod that is Ready is judged as ever
/// ([`super::validate`]).
pub fn take_manual_label(old: &Pod, new: &mut Pod, now_nanos: u64) -> Option<String> {
    let key = keys::SERVICE_AVAILABLE;
    let asked = new.label(key)?;
    let is_ready = old.is_ready() || new.is_ready();
    let is_early = old.label(key).is_none() && min_ready::remaining_nanos(new, now_nanos).is_some();
    if old.label(key) == Some(asked) || (is_ready && !is_early) {
        return None;
    }
    let lacks = if is_early {
        "has not been Ready for minReadySeconds"
    } else {
        "is not Ready"
    };
    let name = new.metadata.name.clone();
    let origin = new.label(keys::REPLACE_PAIR_ORIGIN_NAME).map(str::to_owned);
    new.metadata.labels.remove(key);
    let told = format!("Pod {name} {lacks}, so its label {key} is not kept");
    let Some(origin) = origin else {
        return Some(format!(
            "{told}: the lifecycle controller adds it once the Pod serves"
        ));
    };
    let told = format!("{told}; it takes the place of Pod {origin} all the same");
    let annotations = &mut new.metadata.annotations;
    annotations.insert(keys::REPLACES.to_owned(), origin);
    Some(told)
}

/// Whether the new half of a pair takes the place of its origin: it serves, or somebody has said so by hand.
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
        let told = take_manual_label(&half(json!({})), &mut new, 0).unwrap();
        assert!(
            told.ends_with("takes the place of Pod web-1 all the same"),
            "{told}"
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
        let told = take_manual_label(&pod(false, json!({})), &mut new, 0).unwrap();
        assert!(told.contains("adds it once the Pod serves"), "{told}");
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
        for (seconds, kept) in [(59, false), (60, true)] {
            let mut new = pod(labelled("1"));
            let told =
                take_manual_label(&pod(json!({})), &mut new, nanos + seconds * 1_000_000_000);
            assert_eq!(
                new.label(keys::SERVICE_AVAILABLE).is_some(),
                kept,
                "{told:?}"
            );
            assert_eq!(told.is_none(), kept);
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
