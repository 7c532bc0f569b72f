//! What the labels of a Pod say about one operation, and which requests they allow. The decisions do no I/O.

use anyhow::{bail, ensure};

use crate::api::keys::{self, Family};
use crate::domain::collaset::LIFECYCLE_ID;
use crate::domain::lifecycle::operator::{self, DELETION_ID};
use crate::domain::lifecycle::{LabelPatch, stored_phases};
use crate::domain::operationjob::lifecycle_action::ID_PREFIX;
use crate::domain::pod::Pod;

/// How far an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The Pod has no such operation.
    Absent,
    /// The operation has begun and is not finished.
    Begun,
    /// The operation was finished, and the server brings the Pod back.
    Ending,
}

/// How far the operation is.
pub fn progress(pod: &Pod, id: &str) -> Progress {
    let ending = [
        Family::Operated,
        Family::PostCheck,
        Family::PostChecked,
        Family::Completing,
    ];
    let has = |family: &Family| pod.label(&family.key(id)).is_some();
    match () {
        () if has(&Family::Operating) => Progress::Begun,
        () if ending.iter().any(has) => Progress::Ending,
        () => Progress::Absent,
    }
}

/// The type of the operation, also while it ends.
pub fn stored_type<'a>(pod: &'a Pod, id: &str) -> Option<&'a str> {
    let types = [Family::OperationType, Family::DoneOperationType];
    let mut types = types.iter().filter_map(|family| pod.label(&family.key(id)));
    types.next()
}

/// Says that the Pod has no such operation, and which it has.
pub fn absence(pod: &Pod, id: &str) -> String {
    let name = &pod.metadata.name;
    let ids: Vec<String> = stored_phases(pod).into_keys().collect();
    match ids.is_empty() {
        true => format!("Pod {name} has no operation {id}, and no other"),
        false => format!(
            "Pod {name} has no operation {id}; it has {}",
            ids.join(", ")
        ),
    }
}

/// Refuses an ID under which a controller operates on Pods.
///
/// # Errors
/// The owner of the ID.
pub fn check_id(id: &str) -> anyhow::Result<()> {
    let owner = match id {
        LIFECYCLE_ID => "CollaSets",
        DELETION_ID => "deletions",
        id if id.starts_with(ID_PREFIX) => "OperationJobs",
        _ => return Ok(()),
    };
    bail!("--id {id} belongs to the controller of {owner}: choose another ID")
}

/// Whether the operation can begin or go on.
///
/// # Errors
/// The reason against it, and the remedy.
pub fn check_begin(pod: &Pod, id: &str, type_: &str, even_if_serving: bool) -> anyhow::Result<()> {
    let name = &pod.metadata.name;
    ensure!(
        pod.is_managed(),
        "Pod {name} has no label kusionstack.io/control: \"true\", so it has no lifecycle: set the label in the template \
         of its workload"
    );
    ensure!(
        !pod.is_terminating() && !pod.is_finished(),
        "Pod {name} is terminating or has finished: no operation can begin on it"
    );
    let is_begun = progress(pod, id) == Progress::Begun;
    let type_key = Family::OperationType.key(id);
    let other = pod.label(&type_key).filter(|other| *other != type_);
    if let Some(other) = other.filter(|_| is_begun) {
        bail!(
            "operation {id} of Pod {name} has the type {other}: choose another --id, or finish or cancel it first"
        );
    }
    ensure!(
        is_begun || even_if_serving || pod.has_service_ready_gate(),
        "Pod {name} has no readiness gate {}, so it keeps its traffic during the operation. The webhook sets the gate when \
         a Pod is created: make the Pod again, or operate while it serves with --even-if-serving",
        keys::SERVICE_READY
    );
    Ok(())
}

/// The labels that finish the operation. `was_sent` says that an earlier request for this had no answer.
///
/// # Errors
/// If the Pod has no such operation.
pub fn finish(pod: &Pod, id: &str, was_sent: bool) -> anyhow::Result<LabelPatch> {
    if progress(pod, id) == Progress::Absent && !was_sent {
        bail!("{}", absence(pod, id));
    }
    Ok(operator::finish_labels(pod, id))
}

/// The labels that cancel the operation. `was_sent` is as for [`finish`].
///
/// # Errors
/// If the Pod has no such operation.
pub fn cancel(pod: &Pod, id: &str, was_sent: bool) -> anyhow::Result<LabelPatch> {
    match (stored_type(pod, id), progress(pod, id)) {
        (Some(type_), _) => Ok(operator::undo_labels(id, type_)),
        // Without a type no rule is asked, so the operation still waits and can be withdrawn.
        (None, Progress::Begun) => Ok(operator::finish_labels(pod, id)),
        _ if was_sent => Ok(LabelPatch::default()),
        _ => bail!("{}", absence(pod, id)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    fn pod(labels: &[(Family, &str)]) -> Pod {
        let mut stored = json!({ "kusionstack.io/control": "true" });
        for (family, value) in labels {
            stored[family.key("id")] = json!(value);
        }
        let gates = json!([{ "conditionType": keys::SERVICE_READY }]);
        let pod = json!({
            "metadata": { "name": "web", "labels": stored },
            "spec": { "readinessGates": gates },
        });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn operation_that_begins_again_is_not_ending() {
        let ending = [(Family::PostCheck, "1")];
        assert_eq!(progress(&pod(&ending), "id"), Progress::Ending);
        let again = [(Family::PostCheck, "1"), (Family::Operating, "2")];
        assert_eq!(progress(&pod(&again), "id"), Progress::Begun);
    }

    #[test]
    fn finish_of_unknown_id_names_known_ones() {
        let begun = pod(&[(Family::Operating, "1"), (Family::OperationType, "upgrade")]);
        let error = finish(&begun, "other", false).unwrap_err().to_string();
        assert_eq!(error, "Pod web has no operation other; it has id");
        assert!(!finish(&begun, "id", false).unwrap().is_empty());
        let ending = pod(&[(Family::PostCheck, "1")]);
        assert!(finish(&ending, "id", false).unwrap().is_empty());
        // The answer to the first request was lost.
        assert!(finish(&pod(&[]), "id", true).unwrap().is_empty());
    }

    #[test]
    fn operation_without_type_is_withdrawn_by_cancel() {
        let untyped = pod(&[(Family::Operating, "1")]);
        let labels = cancel(&untyped, "id", false).unwrap();
        assert_eq!(labels.0, [(Family::Operating.key("id"), None)].into());
        assert!(cancel(&pod(&[]), "id", false).is_err());
    }

    #[test]
    fn pod_without_gate_is_refused_unless_asked_for() {
        let mut serving = pod(&[]);
        assert!(check_begin(&serving, "id", "upgrade", false).is_ok());
        serving.spec.readiness_gates = Default::default();
        let error = check_begin(&serving, "id", "upgrade", false).unwrap_err();
        assert!(error.to_string().contains("--even-if-serving"), "{error}");
        assert!(check_begin(&serving, "id", "upgrade", true).is_ok());
    }

    #[test]
    fn ids_of_controllers_are_refused() {
        for id in ["collaset", "pod-delete", "operationjob-x"] {
            assert!(check_id(id).is_err(), "{id}");
        }
        assert!(check_id("collaset-1").is_ok());
    }
}
