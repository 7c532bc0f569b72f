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

/// The phase of one ID in the stored labels.
pub fn stored_phase(pod: &Pod, id: &str) -> Phase {
    let owners = pod
        .metadata
        .labels
        .keys()
        .filter_map(|key| lifecycle_label_owner(key));
    let families = owners
        .filter(|(_, owner)| *owner == id)
        .map(|(family, _)| family);
    let families: Vec<Family> = families
        .filter(|family| *family != Family::OperationPermission)
        .collect();
    Phase::from_families(|family| families.contains(family))
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

/// Whether an ID has taken the Pod off traffic and has not begun to bring it back. Other than [`is_held_offline`], this
/// is also true after the webhook has missed the end of the operation, and only the label `operating` is gone.
pub(super) fn was_taken_off(pod: &Pod) -> bool {
    let (ids, _) = labels_by_id(&pod.metadata.labels);
    ids.into_values().any(|labels| {
        let works = [Family::Preparing, Family::Operate];
        Phase::from_labels(&labels).holds_offline()
            || works.iter().any(|family| labels.contains_key(family))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(families: &[Family]) -> Pod {
        let mut pod = Pod::default();
        let labels = families.iter();
        let labels = labels.map(|family| (family.key("x"), "1".to_owned()));
        pod.metadata.labels = labels.collect();
        pod
    }

    /// All sets of families, with a label of another ID beside each.
    #[test]
    fn phase_of_one_id_is_that_of_all_phases() {
        for chosen in 0..1_u32 << Family::ALL.len() {
            let families = Family::ALL.into_iter().enumerate();
            let families = families.filter(|(bit, _)| chosen & (1 << bit) != 0);
            let families: Vec<Family> = families.map(|(_, family)| family).collect();
            let mut pod = pod(&families);
            let labels = &mut pod.metadata.labels;
            labels.insert(Family::Completing.key("y"), "1".to_owned());
            let expected = stored_phases(&pod).get("x").copied();
            let found = stored_phase(&pod, "x");
            assert_eq!(found, expected.unwrap_or(Phase::Idle), "{families:?}");
        }
    }

    #[test]
    fn pod_is_off_from_preparing_until_completing() {
        let (operating, checked) = (Family::Operating, Family::PreChecked);
        for (families, off) in [
            (vec![], false),
            (vec![operating, Family::PreCheck], false),
            (vec![operating, checked], false),
            (vec![operating, checked, Family::Preparing], true),
            (vec![operating, checked, Family::Operate], true),
            (vec![Family::Operated, Family::PostCheck], true),
            (vec![Family::Operated, Family::Completing], false),
        ] {
            let pod = pod(&families);
            assert_eq!(was_taken_off(&pod), off, "{families:?}");
            assert_eq!(is_held_offline(&pod), off, "{families:?}");
        }
    }

    #[test]
    fn missed_end_of_an_operation_leaves_the_pod_off() {
        for family in [Family::Preparing, Family::Operate] {
            let pod = pod(&[Family::PreChecked, family]);
            assert!(was_taken_off(&pod) && !is_held_offline(&pod), "{family:?}");
        }
    }
}
