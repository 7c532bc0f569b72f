//! Withdraws the operation of a run that ends before its command.

use std::time::Duration;

use super::deadline;
use super::pod::OperatedPod;
use crate::api::keys::Family;
use crate::domain::lifecycle::{LabelPatch, operator};
use crate::domain::pod::Pod;

/// How long the request is repeated.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// Cancels the operation that has this value of the label `operating`. Returns `false` if the Pod does not have it.
pub async fn withdraw(
    target: &OperatedPod,
    id: &str,
    type_: &str,
    time: &str,
) -> anyhow::Result<bool> {
    let decide = |pod: &Pod, _| Ok(withdrawal(pod, id, type_, time));
    let changed = target.change_labels(deadline(ANSWER_WAIT), decide).await?;
    Ok(changed.by_us)
}

/// Empty if another operation has the ID.
fn withdrawal(pod: &Pod, id: &str, type_: &str, time: &str) -> LabelPatch {
    match pod.label(&Family::Operating.key(id)) == Some(time) {
        true => operator::undo_labels(id, type_),
        false => LabelPatch::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_operation_is_withdrawn() {
        let mut pod = Pod::default();
        let label = (Family::Operating.key("id"), "1".to_owned());
        pod.metadata.labels = [label].into();
        assert!(!withdrawal(&pod, "id", "upgrade", "1").is_empty());
        assert!(withdrawal(&pod, "id", "upgrade", "2").is_empty());
    }
}
