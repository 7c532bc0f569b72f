//! Waits for a Pod: until it may be operated on, and until it serves again.

use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod as StoredPod;
use kube::api::{Api, PartialObjectMeta};
use tokio::time::Instant;

use super::pod::OperatedPod;
use super::stored::{self, Progress};
use crate::api::keys::{self, Family};
use crate::cli::why::{self, follow_mode};
use crate::domain::lifecycle;
use crate::domain::pod::Pod;

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    Done,
    /// The Pod was deleted, or another has its name.
    Gone,
    /// The operation was finished or cancelled by somebody else.
    Withdrawn,
    /// The operation is over, and a label of a user keeps the Pod off traffic.
    StaysOffline,
    /// The time is over. `is_over` says whether nothing of the operation is left.
    TimedOut {
        is_over: bool,
    },
}

/// Waits until the operation may be done: the Pod is off traffic, and its rules have allowed the operation.
pub async fn until_operate(
    target: &OperatedPod,
    id: &str,
    deadline: Option<Instant>,
) -> anyhow::Result<WaitEnd> {
    until(target, id, deadline, |pod| operate_state(pod, id)).await
}

/// Waits until the operation has ended and the Pod serves.
pub async fn until_serving(
    target: &OperatedPod,
    id: &str,
    deadline: Option<Instant>,
) -> anyhow::Result<WaitEnd> {
    until(target, id, deadline, |pod| serving_state(pod, id)).await
}

/// `None` while the operation has to wait.
fn operate_state(pod: &Pod, id: &str) -> Option<WaitEnd> {
    if pod.label(&Family::Operating.key(id)).is_none() {
        return Some(WaitEnd::Withdrawn);
    }
    let is_allowed = pod.label(&Family::Operate.key(id)).is_some();
    // The kubelet reports the closed readiness gate a moment after the label.
    (is_allowed && lifecycle::is_ready_to_operate(pod)).then_some(WaitEnd::Done)
}

/// `None` while something of the operation is left, or while the Pod is on its way back.
fn serving_state(pod: &Pod, id: &str) -> Option<WaitEnd> {
    if stored::progress(pod, id) != Progress::Absent {
        return None;
    }
    let has = |label| pod.label(label).is_some();
    let stays_offline = has(keys::STAY_OFFLINE).then_some(WaitEnd::StaysOffline);
    has(keys::SERVICE_AVAILABLE)
        .then_some(WaitEnd::Done)
        .or(stays_offline)
}

async fn until(
    target: &OperatedPod,
    id: &str,
    deadline: Option<Instant>,
    state: impl Fn(&Pod) -> Option<WaitEnd>,
) -> anyhow::Result<WaitEnd> {
    let first = target.read_existing(deadline).await?;
    if let Some(end) = state(&first) {
        return Ok(end);
    }
    let mut is_over = stored::progress(&first, id) == Progress::Absent;
    let pods: Api<PartialObjectMeta<StoredPod>> =
        Api::namespaced(target.client.clone(), &target.namespace);
    let mut changes = SelectAll::from_iter([follow_mode::watch_changes(pods, Some(&target.name))]);
    loop {
        let timed_out = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = timed_out => return Ok(WaitEnd::TimedOut { is_over }),
            change = follow_mode::next_change(follow_mode::BURST_WINDOW, &mut changes) => {
                anyhow::ensure!(change?, "the watch of the Pod has ended: run the command again");
            }
        }
        let pod = target.read(deadline).await?;
        let Some(pod) = pod.filter(|pod| pod.metadata.uid == first.metadata.uid) else {
            return Ok(WaitEnd::Gone);
        };
        if let Some(end) = state(&pod) {
            return Ok(end);
        }
        is_over = stored::progress(&pod, id) == Progress::Absent;
    }
}

/// Makes an error of an end other than the one that was waited for.
pub async fn require_done(target: &OperatedPod, id: &str, end: WaitEnd) -> anyhow::Result<()> {
    let OperatedPod {
        namespace, name, ..
    } = target;
    match end {
        WaitEnd::Done | WaitEnd::StaysOffline => Ok(()),
        WaitEnd::Gone => {
            anyhow::bail!("Pod {name} was deleted, which ends the operation {id}")
        }
        WaitEnd::Withdrawn => anyhow::bail!(
            "operation {id} of Pod {name} is not in progress: begin it, or somebody has finished or cancelled it"
        ),
        WaitEnd::TimedOut { is_over: true } => anyhow::bail!(
            "the time is over (--timeout): the operation {id} is over, but Pod {name} does not serve yet: {}",
            explain_wait(target).await
        ),
        WaitEnd::TimedOut { is_over: false } => anyhow::bail!(
            "the time is over (--timeout), and the operation {id} stays on the Pod: {}, or undo it with operating lifecycle \
             cancel pod/{name} -n {namespace} --id {id}",
            explain_wait(target).await
        ),
    }
}

/// What the Pod waits for, if this can be read, and how to see more.
pub async fn explain_wait(target: &OperatedPod) -> String {
    let OperatedPod {
        client,
        namespace,
        name,
        ..
    } = target;
    let why = match why::summarize_pod(client, namespace, name).await {
        Ok(Some(summary)) => format!("{summary}; "),
        _ => String::new(),
    };
    format!("{why}see operating why pod/{name} -n {namespace}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;

    fn pod(families: &[Family], others: &[&str], ready: &str) -> Pod {
        let mut labels = json!({});
        for family in families {
            labels[family.key("id")] = json!("1");
        }
        for key in others {
            labels[*key] = json!("1");
        }
        let gate: Value = json!([{ "conditionType": keys::SERVICE_READY }]);
        let pod = json!({
            "metadata": { "name": "web", "labels": labels },
            "spec": { "readinessGates": gate },
            "status": { "conditions": [
                { "type": "Ready", "status": ready },
                { "type": keys::SERVICE_READY, "status": "False" },
            ] },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn operation_waits_for_label_and_for_kubelet() {
        use Family::{Operate, Operating};
        for (pod, wanted) in [
            (pod(&[Operating], &[], "False"), None),
            (pod(&[Operating, Operate], &[], "True"), None),
            (
                pod(&[Operating, Operate], &[], "False"),
                Some(WaitEnd::Done),
            ),
            (pod(&[], &[], "False"), Some(WaitEnd::Withdrawn)),
        ] {
            assert_eq!(
                operate_state(&pod, "id"),
                wanted,
                "{:?}",
                pod.metadata.labels
            );
        }
    }

    #[test]
    fn operation_is_over_once_pod_serves_or_stays_offline() {
        let serving = [keys::SERVICE_AVAILABLE];
        let state = |families: &[Family], others: &[&str]| {
            serving_state(&pod(families, others, "True"), "id")
        };
        assert_eq!(state(&[], &serving), Some(WaitEnd::Done));
        assert_eq!(state(&[], &[]), None);
        assert_eq!(state(&[Family::Completing], &serving), None);
        assert_eq!(state(&[Family::Operating], &serving), None);
        let offline = [keys::STAY_OFFLINE];
        assert_eq!(state(&[], &offline), Some(WaitEnd::StaysOffline));
        assert_eq!(state(&[Family::Completing], &offline), None);
    }
}
