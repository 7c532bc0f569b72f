//! GraceDelete (contract 4.4): a deletion goes through the operation `pod-delete`, so that the Pod goes off traffic
//! first.

use serde_json::{Map, Value, json};

use super::deletion::DeletionOptions;
use super::lifecycle::operator;
use super::pod::Pod;
use crate::api::keys::{self, Family};

pub use super::lifecycle::operator::DELETION_ID;

/// Operation type of a deletion.
pub const DELETION_TYPE: &str = "delete";

/// The text in a denial that users and scripts look for (contract 4.4).
pub const UNDERWAY_MESSAGE: &str =
    "pod deletion process is underway and being managed by PodOpsLifecycle";

/// Age from which [`keys::DELETE_TIMESTAMP`] is written again (contract 4.4).
pub const REFRESH_NANOS: u64 = 5_000_000_000;

/// Whether the lifecycle can take the Pod off traffic first: the Pod is managed and has the readiness gate.
pub fn has_lifecycle(pod: &Pod) -> bool {
    pod.is_managed() && pod.has_service_ready_gate()
}

/// Whether an operation that deletes the Pod has reached Operate: `pod-delete`, or another operation whose operator
/// announced the deletion, such as the scale-in of a CollaSet (contract Q22). While `pod-delete` waits for its rules,
/// its own announcement permits nothing.
pub fn permits_deletion(pod: &Pod) -> bool {
    types_in_operate(pod).any(|id| match id {
        DELETION_ID => operator::is_in_progress(pod, id, DELETION_TYPE),
        id => operator::announces_deletion(pod, id),
    })
}

/// Whether an operation on the Pod has reached Operate: its rules allowed it to take the Pod off traffic.
pub fn is_operation_allowed(pod: &Pod) -> bool {
    types_in_operate(pod).next().is_some()
}

fn types_in_operate(pod: &Pod) -> impl Iterator<Item = &str> {
    let ids = pod.metadata.labels.keys().filter_map(|key| {
        Family::parse(key).and_then(|(family, id)| (family == Family::Operate).then_some(id))
    });
    ids.filter(|id| {
        pod.label(&Family::Operating.key(id)).is_some()
            && pod.label(&Family::UndoOperationType.key(id)).is_none()
    })
}

/// Whether the deletion of the Pod through the lifecycle has begun.
pub fn is_deletion_in_flight(pod: &Pod) -> bool {
    operator::is_in_progress(pod, DELETION_ID, DELETION_TYPE)
}

/// Whether the deletion of the Pod has not passed its rules yet.
pub fn awaits_rules(pod: &Pod) -> bool {
    pod.label(&Family::Preparing.key(DELETION_ID)).is_none()
}

/// Whether the Pod has the label `to-delete`.
pub fn is_deletion_requested(pod: &Pod) -> bool {
    pod.label(keys::TO_DELETE).is_some()
}

/// Whether a client asked for the deletion of a Pod after the Pod got the label `to-delete`. If the CollaSet wrote the
/// label, the set is then not the only client that wants the deletion.
pub fn is_deletion_requested_again(pod: &Pod) -> bool {
    let nanos = |text: &str| text.parse::<u64>().ok();
    let labelled_at = pod.label(keys::TO_DELETE).and_then(nanos);
    let requested_at = pod.annotation(keys::DELETE_TIMESTAMP).and_then(nanos);
    labelled_at
        .zip(requested_at)
        .is_some_and(|(labelled_at, requested_at)| requested_at >= labelled_at)
}

/// A request for the deletion of a Pod.
#[derive(Clone, Debug, Default)]
pub struct DeletionRequest {
    /// UID of the ReplicaSet that makes the request to scale in.
    pub scaled_in_by: Option<String>,
    pub options: DeletionOptions,
}

/// UID of the ReplicaSet that is the only client that asked for the deletion of a Pod. The ReplicaSet may choose
/// another Pod later, and may not be the controller of this Pod any more. An annotation with the value of an earlier
/// label `to-delete` is ignored.
pub fn scale_in_replica_set(pod: &Pod) -> Option<&str> {
    let (label, uid) = pod.annotation(keys::SCALED_IN_BY)?.split_once(' ')?;
    (pod.label(keys::TO_DELETE) == Some(label)).then_some(uid)
}

/// When the deletion of a Pod was requested last, in nanoseconds since 1970, with a precision of [`REFRESH_NANOS`].
pub fn deletion_requested_at(pod: &Pod) -> Option<u64> {
    pod.annotation(keys::DELETE_TIMESTAMP)?.parse().ok()
}

/// The `metadata` that a deletion request at `now_nanos` writes to the Pod. `None` if nothing changes.
pub fn deletion_request_metadata(
    pod: &Pod,
    request: &DeletionRequest,
    now_nanos: u64,
) -> Option<Value> {
    let requested_at = deletion_requested_at(pod);
    // A time in the future, from another clock, counts as fresh.
    let is_fresh = requested_at
        .is_some_and(|requested_at| now_nanos.saturating_sub(requested_at) < REFRESH_NANOS);
    let now = now_nanos.to_string();
    let mut annotations = Map::new();
    let mut set = |key: &str, value: Option<String>| {
        if pod.annotation(key) != value.as_deref() {
            annotations.insert(key.to_owned(), json!(value));
        }
    };
    let is_requested = is_deletion_requested(pod);
    let stored_options = match is_requested {
        true => DeletionOptions::from_pod(pod),
        false => DeletionOptions::default(), // the annotation belongs to a deletion that was withdrawn
    };
    let label = pod.label(keys::TO_DELETE).unwrap_or(&now);
    set(
        keys::DELETE_OPTIONS,
        stored_options
            .merge_later(&request.options)
            .annotation_value(label),
    );
    // Once another client has asked, the ReplicaSet does not decide about the deletion any more.
    let scaled_in_by = request.scaled_in_by.clone();
    set(
        keys::SCALED_IN_BY,
        scaled_in_by
            .filter(|_| !is_requested || self::scale_in_replica_set(pod).is_some())
            .map(|uid| format!("{label} {uid}")),
    );
    if !is_fresh || !is_requested || !annotations.is_empty() {
        annotations.insert(keys::DELETE_TIMESTAMP.to_owned(), json!(now));
    }
    match is_requested {
        true if annotations.is_empty() => None,
        true => Some(json!({ "annotations": annotations })),
        false => Some(json!({
            "labels": { (keys::TO_DELETE): now },
            "annotations": annotations,
        })),
    }
}

/// The denial for a client that deletes the Pod: the deletion is in progress, what is left, and how to keep the Pod.
pub fn deletion_denial(pod: &Pod) -> String {
    let remaining_finalizers: Vec<_> = pod
        .metadata
        .finalizers
        .iter()
        .filter(|f| f.starts_with(keys::PROTECTION_FINALIZER_PREFIX))
        .map(String::as_str)
        .collect();
    let mut text = UNDERWAY_MESSAGE.to_owned();
    if !remaining_finalizers.is_empty() {
        text += &format!(" with finalizers: [{}]", remaining_finalizers.join(" "));
    }
    let state = if !awaits_rules(pod) {
        if remaining_finalizers.is_empty() {
            "goes off traffic now"
        } else {
            "goes off traffic once its cooperators have removed these"
        }
    } else if pod.label(&Family::PreCheck.key(DELETION_ID)).is_some() {
        "waits until its PodTransitionRules let it pass, see their status"
    } else {
        "goes off traffic first"
    };
    format!(
        "{text}; Pod {} {state}, and is then deleted; removing its label {} keeps it",
        pod.metadata.name,
        keys::TO_DELETE
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn pod(metadata: Value) -> Pod {
        let mut pod = json!({
            "metadata": { "name": "web-1", "labels": { (keys::CONTROL): keys::CONTROL_VALUE } },
            "spec": { "readinessGates": [{ "conditionType": keys::SERVICE_READY }] },
        });
        json_patch::merge(&mut pod, &json!({ "metadata": metadata }));
        serde_json::from_value(pod).unwrap()
    }

    fn labels(labels: &[(String, &str)]) -> Pod {
        let pairs: serde_json::Map<_, _> =
            labels.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
        pod(json!({ "labels": pairs }))
    }

    fn operating(id: &str, type_: &str, operate: bool, more: &[(String, &str)]) -> Pod {
        let mut pairs = vec![
            (Family::Operating.key(id), "1"),
            (Family::OperationType.key(id), type_),
        ];
        if operate {
            pairs.push((Family::Operate.key(id), "2"));
        }
        pairs.extend(more.iter().cloned());
        labels(&pairs)
    }

    #[test]
    fn only_managed_pods_with_readiness_gate_have_lifecycle() {
        assert!(has_lifecycle(&pod(json!({}))));
        assert!(!has_lifecycle(&pod(
            json!({ "labels": { (keys::CONTROL): "yes" } })
        )));
        let mut without_gate = pod(json!({}));
        without_gate.spec.readiness_gates.clear();
        assert!(!has_lifecycle(&without_gate));
    }

    #[test]
    fn allowed_deleting_operation_permits_deletion() {
        let announced = [(keys::PREPARING_TO_DELETE.to_owned(), "1")];
        assert!(permits_deletion(&operating(
            DELETION_ID,
            DELETION_TYPE,
            true,
            &[]
        )));
        assert!(permits_deletion(&operating(
            "collaset", "scale-in", true, &announced
        )));
        assert!(!permits_deletion(&operating(
            DELETION_ID,
            DELETION_TYPE,
            false,
            &announced
        )));
        assert!(!permits_deletion(&operating(
            "collaset", "scale-in", false, &announced
        )));
        assert!(
            !permits_deletion(&operating("collaset", "update", true, &[])),
            "an update in place does not delete"
        );
        assert!(!permits_deletion(&operating(
            DELETION_ID,
            "other",
            true,
            &[]
        )));
        let undone = (Family::UndoOperationType.key(DELETION_ID), DELETION_TYPE);
        assert!(!permits_deletion(&operating(
            DELETION_ID,
            DELETION_TYPE,
            true,
            &[undone]
        )));
        let stale = (Family::Operate.key(DELETION_ID), "1");
        assert!(!permits_deletion(&labels(&[stale, announced[0].clone()])));
        assert!(is_operation_allowed(&operating(
            "collaset",
            "update",
            true,
            &[]
        )));
        assert!(!is_operation_allowed(&pod(json!({}))));
    }

    #[test]
    fn announcement_of_a_waiting_deletion_permits_no_other_operation() {
        let since = [
            (Family::Operating.key(DELETION_ID), "7"),
            (Family::OperationType.key(DELETION_ID), DELETION_TYPE),
            (keys::PREPARING_TO_DELETE.to_owned(), "7"),
        ];
        assert!(!permits_deletion(&operating(
            "upgrade", "update", true, &since
        )));
    }

    #[test]
    fn deletion_is_up_to_the_replicaset_until_another_asks() {
        let owner =
            json!([{ "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true }]);
        let by_set = DeletionRequest {
            scaled_in_by: Some("rs".to_owned()),
            ..DeletionRequest::default()
        };
        let requested = |first: &DeletionRequest| {
            let mut metadata = deletion_request_metadata(&pod(json!({})), first, 1).unwrap();
            metadata["ownerReferences"] = owner.clone();
            metadata
        };
        let chosen = requested(&by_set);
        assert_eq!(scale_in_replica_set(&pod(chosen.clone())), Some("rs"));
        assert_eq!(
            deletion_request_metadata(&pod(chosen.clone()), &by_set, 2),
            None
        );
        let other =
            deletion_request_metadata(&pod(chosen), &DeletionRequest::default(), 2).unwrap();
        assert_eq!(other["annotations"][keys::SCALED_IN_BY], Value::Null);
        assert_eq!(other["annotations"][keys::DELETE_TIMESTAMP], "2");
        // A later request of the ReplicaSet does not change this.
        let firm = pod(requested(&DeletionRequest::default()));
        assert_eq!(deletion_request_metadata(&firm, &by_set, 2), None);
    }

    #[test]
    fn options_of_earlier_requests_are_kept() {
        let with = |grace| DeletionRequest {
            options: DeletionOptions {
                grace_period_seconds: grace,
                ..DeletionOptions::default()
            },
            ..DeletionRequest::default()
        };
        let first = deletion_request_metadata(&pod(json!({})), &with(Some(5)), 1).unwrap();
        let options = r#"{"gracePeriodSeconds":5,"toDelete":"1"}"#;
        assert_eq!(first["annotations"][keys::DELETE_OPTIONS], options);
        let requested = pod(first);
        assert_eq!(deletion_request_metadata(&requested, &with(None), 2), None);
        let sooner = deletion_request_metadata(&requested, &with(Some(0)), 2).unwrap();
        let sooner = &sooner["annotations"][keys::DELETE_OPTIONS];
        assert_eq!(sooner, r#"{"gracePeriodSeconds":0,"toDelete":"1"}"#);
        let stray = pod(json!({ "annotations": { (keys::DELETE_OPTIONS): options } }));
        let anew = deletion_request_metadata(&stray, &with(None), 2).unwrap();
        assert_eq!(anew["annotations"][keys::DELETE_OPTIONS], Value::Null);
    }

    #[test]
    fn repeated_request_within_five_seconds_writes_nothing() {
        let now = 100 * REFRESH_NANOS;
        let first =
            deletion_request_metadata(&pod(json!({})), &DeletionRequest::default(), now).unwrap();
        assert_eq!(first["labels"][keys::TO_DELETE], now.to_string());
        let requested = pod(first);
        assert_eq!(
            deletion_request_metadata(&requested, &DeletionRequest::default(), now),
            None
        );
        assert_eq!(
            deletion_request_metadata(
                &requested,
                &DeletionRequest::default(),
                now + REFRESH_NANOS - 1
            ),
            None
        );
        assert_eq!(
            deletion_request_metadata(&requested, &DeletionRequest::default(), now - REFRESH_NANOS),
            None
        );
        let repeated =
            deletion_request_metadata(&requested, &DeletionRequest::default(), now + REFRESH_NANOS)
                .unwrap();
        assert_eq!(
            repeated,
            json!({ "annotations": { (keys::DELETE_TIMESTAMP): (now + REFRESH_NANOS).to_string() } })
        );
        // A label and a time that were written by hand stay unchanged.
        let by_hand = deletion_request_metadata(
            &labels(&[(keys::TO_DELETE.to_owned(), "x")]),
            &DeletionRequest::default(),
            now,
        )
        .unwrap();
        assert!(by_hand.get("labels").is_none());
    }

    #[test]
    fn refusal_has_known_text_and_remaining_work() {
        assert_eq!(
            deletion_denial(&pod(json!({}))),
            "pod deletion process is underway and being managed by PodOpsLifecycle; Pod web-1 goes off traffic first, and is \
             then deleted; removing its label collaset.kusionstack.io/to-delete keeps it"
        );
        let mut waiting = operating(
            DELETION_ID,
            DELETION_TYPE,
            false,
            &[(Family::Preparing.key(DELETION_ID), "2")],
        );
        assert!(
            deletion_denial(&waiting).contains("PodOpsLifecycle; Pod web-1 goes off traffic now")
        );
        waiting.metadata.finalizers = ["other", "prot.podopslifecycle.kusionstack.io/a"]
            .map(str::to_owned)
            .into();
        assert!(
            deletion_denial(&waiting)
                .contains("PodOpsLifecycle with finalizers: [prot.podopslifecycle.kusionstack.io/a]; Pod web-1 goes off traffic once")
        );
        let held_pod = operating(
            DELETION_ID,
            DELETION_TYPE,
            false,
            &[(Family::PreCheck.key(DELETION_ID), "2")],
        );
        assert!(
            deletion_denial(&held_pod).contains("waits until its PodTransitionRules let it pass")
        );
    }
}
