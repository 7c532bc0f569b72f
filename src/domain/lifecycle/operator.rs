//! What an operator does in the lifecycle (contract 3.1): begin, finish and undo an operation, and check whether it may
//! work.

use super::LabelPatch;
use crate::api::keys::{self, Family};
use crate::domain::pod::Pod;

/// Lifecycle ID of a deletion by GraceDelete (contract 3.1).
pub const DELETION_ID: &str = "pod-delete";

/// Labels that begin the operation `type_` under `id`. If `deletes` is true, the labels also announce to cooperators
/// that the Pod will not come back. Empty if the operation has begun already. Another type under the same ID is a fresh
/// run (contract Q4).
///
/// The announcement has the value of the label `operating`, so that [`announces_deletion`] can tell which operation
/// made it. An announcement of another operation in flight stays. The exception is a deletion by GraceDelete, which
/// needs no announcement.
pub fn begin_labels(pod: &Pod, id: &str, type_: &str, deletes: bool, now_nanos: u64) -> LabelPatch {
    let mut labels = pod.metadata.labels.clone();
    let begin_time = labels.entry(Family::Operating.key(id));
    let begin_time = begin_time.or_insert_with(|| now_nanos.to_string()).clone();
    labels.insert(Family::OperationType.key(id), type_.to_owned());
    let belongs_to_other = |announcement: &String| {
        let operating = pod.metadata.labels.iter();
        let mut operating =
            operating.filter_map(|(key, begin_time)| Some((Family::parse(key)?, begin_time)));
        operating.any(|((family, other_id), begin_time)| {
            let is_deletion = other_id == DELETION_ID && id != DELETION_ID;
            family == Family::Operating && begin_time == announcement && !is_deletion
        })
    };
    // If the operation has begun already, its announcement is not changed: an announcement after the begin comes too
    // late.
    let is_kept =
        |announcement: &String| is_in_progress(pod, id, type_) || belongs_to_other(announcement);
    if deletes && !labels.get(keys::PREPARING_TO_DELETE).is_some_and(is_kept) {
        labels.insert(keys::PREPARING_TO_DELETE.to_owned(), begin_time);
    }
    LabelPatch::between(&pod.metadata.labels, &labels)
}

/// Labels that finish the operation under `id`. Before its rules allowed the operation, they withdraw it.
pub fn finish_labels(pod: &Pod, id: &str) -> LabelPatch {
    let mut labels = pod.metadata.labels.clone();
    labels.remove(&Family::Operating.key(id));
    LabelPatch::between(&pod.metadata.labels, &labels)
}

/// Labels that cancel the operation `type_` under `id` in any phase.
pub fn undo_labels(id: &str, type_: &str) -> LabelPatch {
    LabelPatch([(Family::UndoOperationType.key(id), Some(type_.to_owned()))].into())
}

/// Whether the operation `type_` under `id` has begun and is not finished.
pub fn is_in_progress(pod: &Pod, id: &str, type_: &str) -> bool {
    pod.label(&Family::Operating.key(id)).is_some()
        && pod.label(&Family::OperationType.key(id)) == Some(type_)
}

/// Whether the operation under `id` announced the deletion of the Pod before its rules allowed the operation. The
/// webhook ensures that such an announcement has the value of the operation's label `operating`.
pub fn announces_deletion(pod: &Pod, id: &str) -> bool {
    let announced = pod.label(keys::PREPARING_TO_DELETE);
    announced.is_some() && pod.label(&Family::Operating.key(id)) == announced
}

/// Whether the operation `type_` under `id` may be done at `now_nanos`, at least `delay_nanos` after its rules allowed
/// it. If the value of `operate` is not a time, an operation with a delay is never due.
pub fn is_operation_due(
    pod: &Pod,
    id: &str,
    type_: &str,
    delay_nanos: u64,
    now_nanos: u64,
) -> bool {
    let Some(allowed_at) = pod
        .label(&Family::Operate.key(id))
        .filter(|_| is_in_progress(pod, id, type_))
    else {
        return false;
    };
    delay_nanos == 0
        || allowed_at
            .parse::<u64>()
            .is_ok_and(|allowed_at| now_nanos.saturating_sub(allowed_at) >= delay_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(labels: &[(String, &str)]) -> Pod {
        let mut pod = Pod::default();
        pod.metadata.labels = labels
            .iter()
            .map(|(k, v)| (k.clone(), (*v).to_owned()))
            .collect();
        pod
    }

    #[test]
    fn beginning_twice_changes_nothing() {
        let mut pod = pod(&[]);
        begin_labels(&pod, "x", "delete", true, 7).apply(&mut pod.metadata.labels);
        assert!(is_in_progress(&pod, "x", "delete"));
        assert_eq!(pod.label(keys::PREPARING_TO_DELETE), Some("7"));
        assert!(begin_labels(&pod, "x", "delete", true, 8).is_empty());
    }

    #[test]
    fn announcement_is_that_of_the_operation_that_made_it() {
        let mut pod = pod(&[]);
        begin_labels(&pod, DELETION_ID, "delete", true, 7).apply(&mut pod.metadata.labels);
        begin_labels(&pod, "upgrade", "update", false, 8).apply(&mut pod.metadata.labels);
        assert!(announces_deletion(&pod, DELETION_ID) && !announces_deletion(&pod, "upgrade"));
        begin_labels(&pod, "collaset", "scale-in", true, 9).apply(&mut pod.metadata.labels);
        assert!(announces_deletion(&pod, "collaset") && !announces_deletion(&pod, "upgrade"));
        begin_labels(&pod, "third", "replace", true, 10).apply(&mut pod.metadata.labels);
        assert!(announces_deletion(&pod, "collaset"), "the first stays");
    }

    #[test]
    fn another_type_keeps_the_id_and_its_time() {
        let mut pod = pod(&[]);
        begin_labels(&pod, "x", "update", false, 7).apply(&mut pod.metadata.labels);
        let retype = begin_labels(&pod, "x", "scale-in", false, 8);
        assert_eq!(
            retype.0,
            [(Family::OperationType.key("x"), Some("scale-in".to_owned()))].into()
        );
    }

    #[test]
    fn allowed_means_operate_for_this_type_and_for_long_enough() {
        let labels = |since| {
            pod(&[
                (Family::Operating.key("x"), "1"),
                (Family::OperationType.key("x"), "update"),
                (Family::Operate.key("x"), since),
            ])
        };
        assert!(is_operation_due(&labels("100"), "x", "update", 0, 100));
        assert!(!is_operation_due(&labels("100"), "x", "update", 50, 149));
        assert!(is_operation_due(&labels("100"), "x", "update", 50, 150));
        assert!(
            !is_operation_due(&labels("100"), "x", "update", 50, 1),
            "a clock behind the webhook's"
        );
        assert!(!is_operation_due(&labels("100"), "x", "delete", 0, 200));
        assert!(!is_operation_due(
            &labels("soon"),
            "x",
            "update",
            50,
            u64::MAX
        ));
        assert!(!is_operation_due(
            &pod(&[(Family::Operate.key("x"), "1")]),
            "x",
            "update",
            0,
            9
        ));
    }

    #[test]
    fn finish_and_undo_are_one_label_each() {
        let pod = pod(&[
            (Family::Operating.key("x"), "1"),
            (Family::OperationType.key("x"), "update"),
        ]);
        assert_eq!(
            finish_labels(&pod, "x").0,
            [(Family::Operating.key("x"), None)].into()
        );
        assert!(finish_labels(&pod, "y").is_empty());
        assert_eq!(
            undo_labels("x", "update").0,
            [(
                Family::UndoOperationType.key("x"),
                Some("update".to_owned())
            )]
            .into()
        );
    }
}
