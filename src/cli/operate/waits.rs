//! Waits for a Pod: until it may be operated on, and until it serves again.

use futures::stream::SelectAll;
use k8s_openapi::api::core::v1::Pod as StoredPod;
use kube::api::{Api, PartialObjectMeta};
use tokio::time::Instant;

use super::pod::OperatedPod;
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
    TimedOut,
}

/// Waits until the operation may be done: the Pod is off traffic, and its rules have allowed the operation.
pub async fn until_operate(
    target: &OperatedPod,
    id: &str,
    deadline: Option<Instant>,
) -> anyhow::Result<WaitEnd> {
    until(target, deadline, |pod| operate_state(pod, id)).await
}

/// Waits until the operation has ended and the Pod serves.
pub async fn until_serving(
    target: &OperatedPod,
    id: &str,
    deadline: Option<Instant>,
) -> anyhow::Result<WaitEnd> {
    until(target, deadline, |pod| {
        is_over(pod, id).then_some(WaitEnd::Done)
    })
    .await
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

/// Whether nothing of the operation is left and the Pod serves.
fn is_over(pod: &Pod, id: &str) -> bool {
    !is_ending(pod, id)
        && pod.label(&Family::Operating.key(id)).is_none()
        && pod.label(keys::SERVICE_AVAILABLE).is_some()
}

/// Whether the operation was finished, and the Pod is not back yet.
pub fn is_ending(pod: &Pod, id: &str) -> bool {
    let ending = [
        Family::Operated,
        Family::PostCheck,
        Family::PostChecked,
        Family::Completing,
    ];
    let mut ending = ending.iter();
    pod.label(&Family::Operating.key(id)).is_none()
        && ending.any(|family| pod.label(&family.key(id)).is_some())
}

async fn until(
    target: &OperatedPod,
    deadline: Option<Instant>,
    state: impl Fn(&Pod) -> Option<WaitEnd>,
) -> anyhow::Result<WaitEnd> {
    let first = target.read_existing().await?;
    if let Some(end) = state(&first) {
        return Ok(end);
    }
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
            () = timed_out => return Ok(WaitEnd::TimedOut),
            change = follow_mode::next_change(follow_mode::BURST_WINDOW, &mut changes) => {
                anyhow::ensure!(change?, "the watch of the Pod has ended: run the command again");
            }
        }
        let pod = target.read().await?;
        let Some(pod) = pod.filter(|pod| pod.metadata.uid == first.metadata.uid) else {
            return Ok(WaitEnd::Gone);
        };
        if let Some(end) = state(&pod) {
            return Ok(end);
        }
    }
}

/// Makes an error of an end other than the one that was waited for.
pub async fn require_done(target: &OperatedPod, id: &str, end: WaitEnd) -> anyhow::Result<()> {
    let OperatedPod {
        client,
        namespace,
        name,
    } = target;
    match end {
        WaitEnd::Done => Ok(()),
        WaitEnd::Gone => {
            anyhow::bail!("Pod {name} was deleted, which ends the operation {id}")
        }
        WaitEnd::Withdrawn => anyhow::bail!(
            "operation {id} of Pod {name} is not in progress: begin it, or somebody has finished or cancelled it"
        ),
        WaitEnd::TimedOut => {
            let why = why::summarize_pod(client, namespace, name).await;
            let why = match why {
                Ok(Some(summary)) => format!("{summary}; "),
                _ => String::new(),
            };
            anyhow::bail!(
                "the time is over (--timeout), and the operation {id} stays on the Pod: {why}see operating why pod/{name} \
                 -n {namespace}, or undo it with operating lifecycle cancel pod/{name} -n {namespace} --id {id}"
            )
        }
    }
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
    fn operation_is_over_once_pod_serves() {
        let serving = [keys::SERVICE_AVAILABLE];
        assert!(is_over(&pod(&[], &serving, "True"), "id"));
        assert!(!is_over(&pod(&[], &[], "False"), "id"));
        assert!(!is_over(
            &pod(&[Family::Completing], &serving, "True"),
            "id"
        ));
        assert!(!is_over(&pod(&[Family::Operating], &serving, "True"), "id"));
    }

    #[test]
    fn operation_that_begins_again_is_not_ending() {
        assert!(is_ending(&pod(&[Family::PostCheck], &[], "False"), "id"));
        let again = pod(&[Family::PostCheck, Family::Operating], &[], "False");
        assert!(!is_ending(&again, "id"));
    }
}
