//! What a write of a Pod may not do (contract 3.4). Only changed labels and annotations are checked: a malformed label
//! that is already stored must not block an unrelated update.

use std::collections::BTreeSet;

use super::label_name::{NAME_RULE, is_label_name};
use super::lifecycle_write::is_ready_to_operate;
use super::operator::DELETION_ID;
use super::{ExpectedFinalizers, LifecycleWrite};
use crate::api::keys::{self, Family};
use crate::domain::pod::Pod;

/// Largest number of operations that may be in flight on one Pod. Every rule that covers the Pod decides about each
/// operation. A Pod that has more operations already is still handled.
pub const MAX_OPERATIONS_PER_POD: usize = 8;

/// An error in one field of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LifecycleError {
    /// `metadata.labels[<key>]` or `metadata.annotations[<key>]`.
    pub path: String,
    /// The error, and what the user can do.
    pub message: String,
}

/// The errors of the write that turns `old` (`None` for a CREATE) into `new`. Empty if the write is valid.
///
/// Callers may pass a request as it came, or the result of a [`LifecycleWrite`]. For a CREATE, pass the result:
/// [`LifecycleWrite::from_write`] strips labels that only the webhook writes, while this function reports them as
/// errors. A Pod that becomes managed is validated like a CREATE, because anybody could write its labels before.
pub fn validate(old: Option<&Pod>, new: &Pod) -> Vec<LifecycleError> {
    let old = old.filter(|old| old.is_managed());
    let write = ValidatedWrite { old, new };
    let mut errors = write.annotation_error().into_iter().collect::<Vec<_>>();
    let too_many = write.too_many_operations_error();
    for (key, value) in &new.metadata.labels {
        if old.and_then(|pod| pod.label(key)) != Some(value) {
            let error = write.label_error(key, value).or_else(|| {
                let too_many = too_many.as_ref()?;
                write.begins_operation(key).then(|| too_many.clone())
            });
            errors.extend(error.map(|message| field_error("labels", key, message)));
        }
    }
    errors
}

struct ValidatedWrite<'a> {
    old: Option<&'a Pod>,
    new: &'a Pod,
}

impl ValidatedWrite<'_> {
    fn annotation_error(&self) -> Option<LifecycleError> {
        let key = keys::AVAILABLE_CONDITIONS;
        if self
            .old
            .is_some_and(|old| old.annotation(key) == self.new.annotation(key))
        {
            return None;
        }
        let error = ExpectedFinalizers::from_pod(self.new).err()?;
        let form = r#"{"expectedFinalizers":{"<Kind>/<namespace>/<name>":"<finalizer>"}}"#;
        Some(field_error(
            "annotations",
            key,
            format!("{error}; write {form} or remove the annotation"),
        ))
    }

    /// The error for operations that the write begins, if the Pod has too many. `None` if the Pod does not have too
    /// many.
    fn too_many_operations_error(&self) -> Option<String> {
        let count = in_flight_ids(self.new).len();
        (count > MAX_OPERATIONS_PER_POD).then(|| {
            format!(
                "{count} operations would be in flight on the Pod, and at most {MAX_OPERATIONS_PER_POD} may: finish or undo some \
                 first"
            )
        })
    }

    /// Whether a label belongs to an operation that the Pod did not have before. False for the server's own deletion,
    /// which may always begin.
    fn begins_operation(&self, key: &str) -> bool {
        let Some((family, id)) = Family::parse(key) else {
            return false;
        };
        let had = || self.old.is_some_and(|old| in_flight_ids(old).contains(id));
        family != Family::OperationPermission && id != DELETION_ID && !had()
    }

    /// The error of a label that this write adds or changes.
    fn label_error(&self, key: &str, value: &str) -> Option<String> {
        if key == keys::SERVICE_AVAILABLE {
            return self.service_available_error();
        }
        let family = Family::ALL
            .into_iter()
            .find(|f| key.starts_with(f.prefix()))?;
        let noun = if family == Family::OperationPermission {
            "type"
        } else {
            "ID"
        };
        let Some(id) = key
            .strip_prefix(family.prefix())
            .and_then(|rest| rest.strip_prefix('/'))
        else {
            return Some(format!(
                "name the operation after a slash: {}/<{noun}>",
                family.prefix()
            ));
        };
        if !is_label_name(id) {
            return Some(format!("{id:?} is no {noun}: {NAME_RULE}"));
        }
        if !value.is_empty() && !is_label_name(value) {
            return Some(format!("{value:?} is no label value: {NAME_RULE}"));
        }
        if family == Family::OperationType && value.is_empty() {
            return Some(
                "the type is empty: name the operation, for example \"update\"".to_owned(),
            );
        }
        self.forged_label_error(family, id)
    }

    /// Row 12: the error of a write that adds `service-available`, which operators may try to add.
    fn service_available_error(&self) -> Option<String> {
        if self
            .old
            .is_some_and(|old| old.label(keys::SERVICE_AVAILABLE).is_some())
        {
            return None;
        }
        let reason = if self.old.is_none() {
            "the Pod is new".into()
        } else {
            let mut run = LifecycleWrite::from_write(self.old, self.new, 0);
            run.advance_all();
            run.service_label_obstacle()?
        };
        Some(format!(
            "{reason}: leave the label out, the lifecycle controller adds it once the Pod serves"
        ))
    }

    /// The error of a label that only the lifecycle writes: which label or state must come before it.
    fn forged_label_error(&self, family: Family, id: &str) -> Option<String> {
        let had = |f: Family| self.old.is_some_and(|old| old.label(&f.key(id)).is_some());
        let has = |f: Family| self.new.label(&f.key(id)).is_some();
        let permitted = |id: &str| {
            let type_ = self.new.label(&Family::OperationType.key(id));
            type_.is_some_and(|t| {
                self.new
                    .label(&Family::OperationPermission.key(t))
                    .is_some()
            })
        };
        let checked = |id: &str| {
            has_family_label(self.new, Family::Operating, id)
                && has_family_label(self.new, Family::PreChecked, id)
                && permitted(id)
        };
        if had(family) {
            return None;
        }
        let operating = Family::Operating.key(id);
        let (legitimate, missing) = match family {
            Family::Operating | Family::OperationType | Family::UndoOperationType => return None,
            Family::PreCheck => (has(Family::Operating), format!("{operating} is missing")),
            Family::PreChecked => {
                (checked(id), format!("it needs {operating} and the label operation-permission of its type"))
            }
            Family::OperationPermission => (
                self.is_pre_checked_with_type(id),
                format!("no ID of type {id:?} is pre-checked"),
            ),
            Family::Preparing => (checked(id), "its rules have not passed".to_owned()),
            Family::Operate if !checked(id) => (false, "its rules have not passed".to_owned()),
            Family::Operate => (
                is_ready_to_operate(self.new),
                "the Pod still serves, or a finalizer prot.podopslifecycle.kusionstack.io protects it".to_owned(),
            ),
            Family::Operated => (
                had(Family::Operate) && !has(Family::Operating) && has(Family::DoneOperationType),
                format!("the operation is not finished: remove {operating} once it may be operated and is done"),
            ),
            Family::DoneOperationType | Family::PostCheck | Family::PostChecked | Family::Completing => (
                has(Family::Operated) && has(Family::DoneOperationType),
                "the operation is not finished".to_owned(),
            ),
        };
        (!legitimate).then(|| {
            format!(
                "{missing}; only the lifecycle writes this label: leave it out, and begin an operation with {} and {}",
                Family::Operating.key("<ID>"),
                Family::OperationType.key("<ID>"),
            )
        })
    }

    fn is_pre_checked_with_type(&self, type_: &str) -> bool {
        self.new.metadata.labels.iter().any(|(key, value)| {
            value == type_
                && matches!(Family::parse(key), Some((Family::OperationType, id)) if has_family_label(self.new, Family::PreChecked, id))
        })
    }
}

/// The IDs that the Pod has labels for, without the ID of the server's own deletion.
fn in_flight_ids(pod: &Pod) -> BTreeSet<&str> {
    let parsed = pod.metadata.labels.keys();
    let parsed = parsed.filter_map(|key| Family::parse(key));
    parsed
        .filter(|(family, id)| *family != Family::OperationPermission && *id != DELETION_ID)
        .map(|(_, id)| id)
        .collect()
}

fn has_family_label(pod: &Pod, family: Family, id: &str) -> bool {
    pod.label(&family.key(id)).is_some()
}

fn field_error(map: &str, key: &str, message: String) -> LifecycleError {
    LifecycleError {
        path: format!("metadata.{map}[{key}]"),
        message,
    }
}
