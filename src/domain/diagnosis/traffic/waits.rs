//! Since when a Pod waits for its traffic: for metrics, and to recognise a report that is out of date.

use jiff::{SignedDuration, Timestamp};

use super::super::stamps::{parse_stamp, parse_time};
use super::pod_needs::{is_leaving, missing_keys};
use crate::api::keys::{self, Family};
use crate::domain::lifecycle::{Phase, stored_phases};
use crate::domain::pod::Pod;

/// Where traffic should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A finalizer of a cooperator must be removed before an operation goes on, or before the Pod is gone.
    Off,
    /// A finalizer of a cooperator must be added before the Pod is available.
    On,
}

/// What a Pod waits for, and since when. `None` if it does not wait, or if the time is not known.
pub fn traffic_wait(pod: &Pod) -> Option<(Direction, Timestamp)> {
    let finalizers = &pod.metadata.finalizers;
    let is_protected = finalizers
        .iter()
        .any(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX));
    if is_protected && is_leaving(pod) {
        return leaves_since(pod).map(|since| (Direction::Off, since));
    }
    let may_miss = pod.annotation(keys::AVAILABLE_CONDITIONS).is_some();
    if may_miss && !pod.is_terminating() && !missing_keys(pod).is_empty() {
        return ready_since(pod).map(|since| (Direction::On, since));
    }
    None
}

/// The begin of the deletion, or of the operation that has prepared longest.
fn leaves_since(pod: &Pod) -> Option<Timestamp> {
    if let Some(due) = &pod.metadata.deletion_timestamp {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        return Some(parse_time(due)? - SignedDuration::from_secs(grace));
    }
    let preparing = stored_phases(pod)
        .into_iter()
        .filter(|(_, phase)| *phase == Phase::Preparing);
    let stamps =
        preparing.filter_map(|(id, _)| parse_stamp(pod.label(&Family::Preparing.key(&id))));
    stamps.min()
}

/// When the kubelet reported the Pod Ready, or when the lifecycle let it back to its traffic if that was later.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let gates = ["Ready", keys::SERVICE_READY];
    let conditions = pod.status.conditions.iter();
    let gates = conditions.filter(|condition| gates.contains(&condition.type_.as_str()));
    let since = gates.filter_map(|c| parse_time(c.last_transition_time.as_deref()?));
    since.max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    const FINALIZER: &str = "prot.podopslifecycle.kusionstack.io/9705eb7ac2c98403";

    /// A managed Pod that has been Ready for a minute and expects a finalizer, with this part merged into it.
    fn wait_of(part: Value) -> Option<(Direction, Timestamp)> {
        let entries = json!({ "expectedFinalizers": { "Service/shop/web": FINALIZER } });
        let ready =
            |type_, at| json!({ "type": type_, "status": "True", "lastTransitionTime": at });
        let mut pod = json!({
            "metadata": {
                "namespace": "shop", "name": "web-0", "uid": "u",
                "labels": { (keys::CONTROL): keys::CONTROL_VALUE },
                "annotations": { (keys::AVAILABLE_CONDITIONS): entries.to_string() },
            },
            "status": { "conditions": [
                ready("Ready", "2026-01-01T12:00:05Z"), ready(keys::SERVICE_READY, "2026-01-01T12:00:00Z"),
            ] },
        });
        json_patch::merge(&mut pod, &part);
        traffic_wait(&serde_json::from_value(pod).unwrap())
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn pod_waits_for_traffic_to_go_on_since_it_is_ready() {
        let since = at("2026-01-01T12:00:05Z");
        assert_eq!(wait_of(json!({})), Some((Direction::On, since)));
        let protected = json!({ "metadata": { "finalizers": [FINALIZER] } });
        assert_eq!(wait_of(protected), None);
        let unready = json!({ "status": { "conditions": [] } });
        assert_eq!(wait_of(unready), None, "the kubelet comes first");
    }

    #[test]
    fn pod_waits_for_traffic_to_go_off_since_its_operation_prepares() {
        let begin = at("2026-01-01T12:00:00Z");
        let stamp = format!("{}000000000", begin.as_second());
        let labels = json!({
            (Family::Operating.key("x")): stamp, (Family::OperationType.key("x")): "x",
            (Family::Preparing.key("x")): stamp,
        });
        let preparing = |finalizers: Value| {
            wait_of(json!({ "metadata": { "labels": labels, "finalizers": finalizers } }))
        };
        assert_eq!(preparing(json!([FINALIZER])), Some((Direction::Off, begin)));
        assert_eq!(preparing(json!([])), None);
    }

    #[test]
    fn deleted_pod_waits_since_its_deletion_began() {
        let deleted = |finalizers: Value| {
            wait_of(json!({ "metadata": {
                "finalizers": finalizers, "deletionTimestamp": "2026-01-01T12:00:30Z", "deletionGracePeriodSeconds": 30,
            } }))
        };
        let begin = at("2026-01-01T12:00:00Z");
        assert_eq!(deleted(json!([FINALIZER])), Some((Direction::Off, begin)));
        let foreign = json!(["example.com/keep"]);
        assert_eq!(deleted(foreign), None);
    }
}
