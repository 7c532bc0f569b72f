//! The operations of a Pod, as its stored labels have them.

use std::collections::BTreeMap;

use super::Phase;
use super::label_name::is_label_name;
use super::phase::OperationLabels;
use crate::api::keys::Family;
use crate::domain::pod::Pod;

/// The phase of each ID in the stored labels. Idle IDs are left out, so the map is empty if no operation is in flight.
pub fn stored_phases(pod: &Pod) -> BTreeMap<String, Phase> {
    let (ids, _) = labels_by_id(&pod.metadata.labels);
    let phases = ids
        .into_iter()
        .map(|(id, labels)| (id, Phase::from_labels(&labels)));
    phases.filter(|(_, phase)| *phase != Phase::Idle).collect()
}

/// Whether an ID has the label with the type of its operation. Without the label no rule is asked about the ID.
pub fn has_operation_type(pod: &Pod, id: &str) -> bool {
    pod.label(&Family::OperationType.key(id))
        .is_some_and(is_label_name)
}

/// IDs that wait in PreCheck and cannot leave it, because the label with their type is missing. Sorted.
pub fn ids_without_type(pod: &Pod) -> Vec<String> {
    let undone = |id: &str| pod.label(&Family::UndoOperationType.key(id)).is_some();
    let waiting = stored_phases(pod)
        .into_iter()
        .filter(|(_, phase)| *phase == Phase::PreCheck);
    waiting
        .map(|(id, _)| id)
        .filter(|id| !has_operation_type(pod, id) && !undone(id))
        .collect()
}

/// Whether an ID keeps the Pod off traffic. Its rules allowed it to take the Pod off.
pub fn is_held_offline(pod: &Pod) -> bool {
    stored_phases(pod).into_values().any(Phase::holds_offline)
}

/// The family and the ID of a label of the lifecycle. For a permission, the type takes the place of the ID. `None` for
/// any other label, and for a malformed key, which the API server refuses.
pub(super) fn lifecycle_label_owner(key: &str) -> Option<(Family, &str)> {
    Family::parse(key).filter(|(_, id)| is_label_name(id))
}

/// Labels by ID, and operation permissions by type.
pub(super) fn labels_by_id(
    labels: &BTreeMap<String, String>,
) -> (BTreeMap<String, OperationLabels>, BTreeMap<String, String>) {
    let (mut ids, mut permissions) = (BTreeMap::<String, OperationLabels>::new(), BTreeMap::new());
    for (key, value) in labels {
        match lifecycle_label_owner(key) {
            Some((Family::OperationPermission, type_)) => {
                permissions.insert(type_.to_owned(), value.clone());
            }
            Some((family, id)) => {
                ids.entry(id.to_owned())
                    .or_default()
                    .insert(family, value.clone());
            }
            None => {}
        }
    }
    (ids, permissions)
}
