//! Why a Pod stays as it is although a PodDecoration has another revision.

use super::ObservedPod;
use super::facts::{DecorationVerdict, OperationFacts};
use crate::api::collaset::CollaSet;
use crate::api::keys;
use crate::api::poddecoration::PodDecoration;
use crate::domain::collaset::observed::set_name;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdateScope};
use crate::domain::decoration::stored::StoredDecoration;
use crate::domain::lifecycle::operator::DELETION_ID;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Why no update reaches the Pod any more. `None` if the Pod stays.
pub fn leaving_reason(
    observed: &ObservedPod,
    set: &CollaSet,
    operations: &[OperationFacts],
) -> Option<String> {
    let pod = &observed.pod;
    let mut operations = operations.iter();
    let removal = operations.find(|o| o.id == DELETION_ID || o.type_ == "scale-in");
    if pod.is_terminating() {
        return Some("the Pod is terminating".to_owned());
    }
    if pod.is_finished() {
        return Some("the Pod has ended".to_owned());
    }
    if set.metadata.deletion_timestamp.is_some() {
        return Some(format!("CollaSet {} is being deleted", set_name(set)));
    }
    if let Some(removal) = removal {
        return Some(format!("operation {} removes the Pod", removal.id));
    }
    let is_labelled = pod.label(keys::TO_DELETE).is_some();
    is_labelled.then(|| "the Pod is to be deleted".to_owned())
}

/// The verdict and the reason if Kuperator held back changes of the PodDecoration in this set. Such a change reaches
/// only the Pods in the scope of the set's rollout, and no object says which Pods a partition of the set has chosen.
pub fn held_back(
    stored: &StoredDecoration,
    set: &CollaSet,
    pod: &Pod,
) -> Option<(DecorationVerdict, String)> {
    let name = set_name(set);
    let generation = stored.decoration.held_back.get(name)?;
    let is_by_label = ResolvedStrategy::from_spec(&set.spec).scope == UpdateScope::ByLabel;
    let is_included = is_by_label && pod.label(keys::UPDATE_INCLUDED).is_some();
    if Some(*generation) != set.metadata.generation || is_included {
        return None;
    }
    let reason = format!(
        "Kuperator held changes of it back because of the updateStrategy of CollaSet {name}: Pods outside of the rollout \
         of the CollaSet stay as they are until the spec of the CollaSet or of the PodDecoration changes"
    );
    let verdict = match is_by_label || stored.is_rolled_out {
        true => DecorationVerdict::Stays,
        false => DecorationVerdict::MayStay,
    };
    Some((verdict, reason))
}

/// The verdict and the reason for a Pod without the updated revision under a partition. The Pod surely stays only if
/// nothing is left to do.
pub fn partition_reason(
    object: &PodDecoration,
    stored: &StoredDecoration,
    partition: usize,
) -> (DecorationVerdict, String) {
    let status = object.status.clone().unwrap_or_default();
    let without = status.matched_pods.saturating_sub(status.updated_pods);
    let without = usize::try_from(without).unwrap_or(0);
    let kept = messages::count_pods(partition);
    let updated = &status.updated_revision;
    let keeps = format!("spec.updateStrategy.rollingUpdate.partition keeps {kept} as they are");
    match stored.is_rolled_out {
        true => (
            DecorationVerdict::Stays,
            format!(
                "{keeps}, and this Pod is one of them: lower it to update more Pods to {updated}"
            ),
        ),
        false => (
            DecorationVerdict::MayStay,
            format!("{keeps}, and this Pod is one of {without} without revision {updated}"),
        ),
    }
}

/// The reason for a Pod that is selected, and that the selector of the rollout does not match.
pub fn selector_reason(updated: Option<&str>) -> String {
    format!(
        "spec.updateStrategy.rollingUpdate.selector does not match the Pod, so revision {} does not reach it",
        updated.unwrap_or_default()
    )
}
