//! The condition `ExpectedKnown`: whether the owners tell how many Pods they ask for.

use super::{ConditionFinding, join_names, new_finding};
use crate::api::int_or_percent::IntOrPercent;
use crate::domain::rules::RuleSet;

/// Owners that do not tell how many Pods they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnknownReplicasOwners {
    /// Owners that can't be read, each as a clause: `Kind name can't be read: cause`.
    pub unreadable: Vec<String>,
    /// Owners with a scale subresource that does not contain the number, each as `Kind name`.
    pub unset: Vec<String>,
    /// Owners without a scale subresource, each as `Kind name`.
    pub unknown: Vec<String>,
    /// Whether there are selected Pods, and none of them has an owner.
    pub ownerless: bool,
}

impl UnknownReplicasOwners {
    /// Whether the object denies every disruption of an available Pod because of these owners.
    pub fn denies_all(&self) -> bool {
        !self.unreadable.is_empty() || !self.unset.is_empty()
    }
}

/// Reasons of the condition `ExpectedKnown` for which every disruption of an available Pod is denied; see
/// [`UnknownReplicasOwners::denies_all`].
pub const DENYING_REASONS: [&str; 2] = [OWNER_UNREADABLE, REPLICAS_NOT_SET];
const OWNER_UNREADABLE: &str = "OwnerUnreadable";
const REPLICAS_NOT_SET: &str = "ReplicasNotSet";
const EXPECTED_UNKNOWN: &str = "ExpectedUnknown";

/// The condition `ExpectedKnown` of an object whose Pods have such owners. `None` if there are no such owners, or the
/// object has no limits.
pub fn expected_known_condition(
    rules: &RuleSet,
    owners: UnknownReplicasOwners,
) -> Option<ConditionFinding> {
    rules.availability_limits().next()?;
    if let Some(causes) = join_names(owners.unreadable) {
        let message = format!(
            "it is not known how many Pods there should be: {causes}. Every disruption of an available Pod of this rule is \
             denied until the owner can be read. Correct the cause, such as the APIService of the group or the server's role \
             (apply the current manifests/rbac.yaml), or take the owner reference off the Pods that name an owner that does \
             not exist"
        );
        return Some(new_finding("False", OWNER_UNREADABLE, message));
    }
    if let Some(owners) = join_names(owners.unset) {
        let message = format!(
            "the scale subresource of {owners} has no number of replicas, so every disruption of an available Pod of this \
             rule is denied. Set the number there, usually spec.replicas"
        );
        return Some(new_finding("False", REPLICAS_NOT_SET, message));
    }
    let ownerless = owners.ownerless;
    let subject = match join_names(owners.unknown) {
        // Names of objects contain no space, so the separator shows that there are several names.
        Some(subjects) if subjects.contains(", ") => {
            format!("{subjects} have no scale subresource")
        }
        Some(subject) => format!("{subject} has no scale subresource"),
        None if ownerless => "none of the selected Pods has an owner".to_owned(),
        None => return None,
    };
    let remedy = match (has_only_absolute_minimums(rules), ownerless) {
        (true, _) => "The rule still holds: its minAvailableValue is a number",
        (false, true) => "Use minAvailableValue with a number",
        (false, false) => {
            "Use minAvailableValue with a number, or give the kind a scale subresource"
        }
    };
    Some(new_finding(
        "False",
        EXPECTED_UNKNOWN,
        format!(
            "{subject}, so the Pods that live count as expected and each deletion makes the set smaller: maxUnavailable holds \
             other Pods only until the deletion of the first begins. {remedy}"
        ),
    ))
}

/// Whether all limits are absolute numbers of Pods that must be available. Such limits do not depend on the expected
/// Pods.
fn has_only_absolute_minimums(rules: &RuleSet) -> bool {
    rules.availability_limits().all(|limits| {
        limits.max_unavailable.is_none()
            && matches!(limits.min_available, Some(IntOrPercent::Int(_)))
    })
}

/// A warning for a user who applies an object whose limits depend on the number of expected Pods, if no owner tells
/// this number. `None` if an owner does, or if the server does not know the owners well enough.
pub fn expected_unknown_warning(rules: &RuleSet, owners: UnknownReplicasOwners) -> Option<String> {
    let finding = expected_known_condition(rules, owners)
        .filter(|finding| finding.reason == EXPECTED_UNKNOWN)?;
    (!has_only_absolute_minimums(rules))
        .then(|| format!("PodTransitionRule {}: {}", rules.name, finding.message))
}
