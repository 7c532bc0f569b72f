//! Delays the replacement of finished Pods. Without a delay, a template whose Pods fail at once would cause new Pods
//! without end. The DaemonSet controller uses the same delays.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::api::keys;
use crate::domain::pod::Pod;

/// First and longest delay.
const DELAY_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(15));
/// If a Pod lived at least this long before it finished, its instance begins again with the first delay, as the kubelet
/// does with a container. An instance whose Pod has another revision also begins again.
const LONG_RUN: Duration = Duration::from_mins(10);

/// What is remembered of finished Pods.
#[derive(Debug, Default)]
pub struct FinishedPodBackoff {
    /// The last finish of each instance ID.
    last: HashMap<i64, LastFinish>,
    /// The time until which each Pod stays as it is, by UID. One instance ID may have several finished Pods if they
    /// can't be deleted.
    until: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct LastFinish {
    revision: Option<String>,
    times: u32,
}

impl FinishedPodBackoff {
    /// Records finished Pods, each once. Returns the time until which each stays as it is, by UID. Times are in
    /// nanoseconds since 1970.
    pub fn record_finished_pods<'a>(
        &mut self,
        pods: impl Iterator<Item = &'a Pod>,
        id_of: impl Fn(&Pod) -> Option<i64>,
        now_nanos: u64,
    ) -> BTreeMap<String, u64> {
        let recorded = std::mem::take(&mut self.until);
        for pod in pods.filter(|pod| pod.is_finished() && !pod.is_terminating()) {
            let Some(id) = id_of(pod) else {
                continue;
            };
            let uid = &pod.metadata.uid;
            let until = recorded.get(uid).copied();
            let until = until.unwrap_or_else(|| self.record_finish(id, pod, now_nanos));
            // If the clock was set back, limit the delay.
            let until = until.min(now_nanos.saturating_add(to_nanos(DELAY_RANGE.1)));
            self.until.insert(uid.clone(), until);
        }
        self.until.clone()
    }

    /// Records the finish of a Pod. Returns the time until which the Pod stays as it is.
    fn record_finish(&mut self, id: i64, pod: &Pod, now_nanos: u64) -> u64 {
        let revision = pod.label(keys::REVISION).map(str::to_owned);
        let times = match self.last.get(&id) {
            Some(last) if last.revision == revision && !has_run_long(pod, now_nanos) => {
                (last.times + 1).min(20)
            }
            _ => 0,
        };
        self.last.insert(id, LastFinish { revision, times });
        let pause = DELAY_RANGE.1.min(DELAY_RANGE.0 * 2u32.pow(times));
        now_nanos.saturating_add(to_nanos(pause))
    }
}

fn to_nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn has_run_long(pod: &Pod, now_nanos: u64) -> bool {
    let created = pod.created_at().map(|at| at.as_nanosecond());
    created.is_some_and(|at| {
        i128::from(now_nanos) - at >= i128::try_from(LONG_RUN.as_nanos()).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn failed_pod(uid: &str, created: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "uid": uid, "creationTimestamp": created }, "status": { "phase": "Failed" },
        }))
        .unwrap()
    }

    #[test]
    fn delay_doubles_to_15_minutes_and_resets_after_long_run() {
        let mut backoff = FinishedPodBackoff::default();
        let mut pause = |uid: &str, now: u64| {
            let pod = failed_pod(uid, "1970-01-01T00:00:00Z");
            let until = backoff.record_finished_pods([&pod].into_iter(), |_| Some(0), now * SECOND);
            until[uid] / SECOND - now
        };
        assert_eq!([pause("a", 10), pause("b", 20), pause("c", 30)], [1, 2, 4]);
        assert_eq!(pause("c", 31), 3, "recorded once");
        assert_eq!(pause("other", 100_000), 1);
        assert_eq!(pause("other", 0), 900, "the clock was set back");
        for n in 0..20 {
            pause(&n.to_string(), 40);
        }
        assert_eq!(pause("last", 50), 900);
        assert_eq!(pause("long", 700), 1);
    }

    #[test]
    fn each_finished_pod_of_instance_is_counted_once() {
        let mut backoff = FinishedPodBackoff::default();
        let pods = ["a", "b"].map(|uid| failed_pod(uid, "1970-01-01T00:00:00Z"));
        let mut until =
            |now: u64| backoff.record_finished_pods(pods.iter(), |_| Some(0), now * SECOND);
        let first = until(10);
        assert_eq!([first["a"], first["b"]], [11 * SECOND, 12 * SECOND]);
        assert_eq!(until(11), first);
    }

    #[test]
    fn another_revision_resets_delay() {
        let mut backoff = FinishedPodBackoff::default();
        let mut pause = |uid: &str, revision: &str| {
            let mut pod = failed_pod(uid, "1970-01-01T00:00:00Z");
            let label = (keys::REVISION.to_owned(), revision.to_owned());
            pod.metadata.labels.extend([label]);
            backoff.record_finished_pods([&pod].into_iter(), |_| Some(0), SECOND)[uid] / SECOND - 1
        };
        assert_eq!(
            [pause("a", "1"), pause("b", "1"), pause("c", "2")],
            [1, 2, 1]
        );
    }

    #[test]
    fn instances_have_separate_delays_and_running_pods_none() {
        let mut backoff = FinishedPodBackoff::default();
        let (a, b) = (failed_pod("a", "1970-01-01T00:00:00Z"), Pod::default());
        let until = backoff.record_finished_pods([&a, &b].into_iter(), |_| Some(0), SECOND);
        assert_eq!(until.len(), 1);
        let c = failed_pod("c", "1970-01-01T00:00:00Z");
        let until = backoff.record_finished_pods([&c].into_iter(), |_| Some(1), SECOND);
        assert_eq!(until["c"], 2 * SECOND);
    }
}
