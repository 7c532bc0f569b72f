//! How long a Pod must have been Ready before it is available, as its CollaSet asks (`spec.minReadySeconds`).
//!
//! The time starts when the condition Ready becomes True, as for a Deployment
//! (<https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#min-ready-seconds>). It starts again if the
//! Pod loses Ready.

use jiff::Timestamp;

use crate::api::keys;
use crate::domain::pod::Pod;

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds until a Pod has been Ready for long enough. `None` if it has been, or if it is not Ready. `now` is in
/// nanoseconds since 1970. A Pod whose annotation cannot be read does not wait.
pub fn remaining_nanos(pod: &Pod, now: u64) -> Option<u64> {
    let seconds = min_ready_seconds(pod).filter(|seconds| *seconds > 0)?;
    if !pod.is_ready() {
        return None;
    }
    let until = ready_since(pod)?.saturating_add(seconds.saturating_mul(SECOND));
    Some(until.saturating_sub(now)).filter(|remaining| *remaining > 0)
}

/// Whether the label `service-available` is older than the present readiness, and the Pod has not been Ready for long
/// enough since. This happens if the Pod lost Ready for so short a time that the controller did not remove the label.
/// The label holds nanoseconds since 1970. A label that a client wrote by hand may hold another value, and is never
/// stale.
pub fn is_label_stale(pod: &Pod, now: u64) -> bool {
    let labelled_at = pod.label(keys::SERVICE_AVAILABLE);
    let labelled_at: Option<u64> = labelled_at.and_then(|text| text.parse().ok());
    let times = labelled_at.zip(ready_since(pod));
    times.is_some_and(|(labelled_at, ready_at)| labelled_at < ready_at)
        && remaining_nanos(pod, now).is_some()
}

/// When the condition Ready changed last, in nanoseconds since 1970.
fn ready_since(pod: &Pod) -> Option<u64> {
    let ready = pod.status.conditions.iter().find(|c| c.type_ == "Ready")?;
    let time: Timestamp = ready.last_transition_time.as_deref()?.parse().ok()?;
    u64::try_from(time.as_nanosecond()).ok()
}

/// Seconds for which the Pod must have been Ready, from its annotation. `None` without the annotation, or if it is no
/// number.
pub fn min_ready_seconds(pod: &Pod) -> Option<u64> {
    pod.annotation(keys::MIN_READY_SECONDS)?.parse().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::domain::lifecycle::controller_step;

    fn ready(seconds: &str, status: &str) -> Pod {
        let since = "2026-01-01T00:00:00Z";
        let condition = json!({ "type": "Ready", "status": status, "lastTransitionTime": since });
        serde_json::from_value(json!({
            "metadata": { "annotations": { keys::MIN_READY_SECONDS: seconds } },
            "status": { "conditions": [condition] },
        }))
        .unwrap()
    }

    #[test]
    fn time_counts_from_ready() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let since = u64::try_from(since.as_nanosecond()).unwrap();
        let pod = ready("30", "True");
        assert_eq!(
            remaining_nanos(&pod, since + 10 * SECOND),
            Some(20 * SECOND)
        );
        assert_eq!(remaining_nanos(&pod, since + 30 * SECOND), None);
        assert_eq!(remaining_nanos(&ready("30", "False"), since), None);
    }

    /// The Pod lost Ready for so short a time that the controller did not see it.
    #[test]
    fn label_older_than_last_readiness_is_removed() {
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let since = u64::try_from(since.as_nanosecond()).unwrap();
        let step = |labelled: u64, now: u64| {
            let mut pod = ready("30", "True");
            let labels = &mut pod.metadata.labels;
            labels.insert(keys::CONTROL.into(), keys::CONTROL_VALUE.into());
            labels.insert(keys::SERVICE_AVAILABLE.into(), labelled.to_string());
            let step = controller_step(&pod, now);
            let removed = step.labels.0.get(keys::SERVICE_AVAILABLE) == Some(&None);
            (removed, step.requeue_after_nanos)
        };
        let now = since + 10 * SECOND;
        assert_eq!(step(since - SECOND, now), (true, Some(20 * SECOND)));
        assert_eq!(step(since - SECOND, since + 30 * SECOND), (false, None));
        // `minReadySeconds` was raised later: the Pod stays available.
        assert_eq!(step(since + SECOND, now), (false, None));
    }

    #[test]
    fn annotation_that_cannot_be_read_holds_nothing_up() {
        for text in ["0", "", "-1", "soon", "99999999999999999999999"] {
            assert_eq!(remaining_nanos(&ready(text, "True"), 0), None, "{text}");
        }
        let largest = u64::MAX.to_string();
        assert!(remaining_nanos(&ready(&largest, "True"), 0).is_some());
    }
}
