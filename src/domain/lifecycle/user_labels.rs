//! Tells the labels of users from the labels of the lifecycle.

use crate::api::keys;
use crate::domain::pod::Pod;

/// Whether labels differ that do not belong to the lifecycle.
pub fn are_user_labels_changed(old: &Pod, new: &Pod) -> bool {
    !user_labels(old).eq(user_labels(new))
}

/// The labels of a Pod that do not belong to the lifecycle.
fn user_labels(pod: &Pod) -> impl Iterator<Item = (&String, &String)> {
    let labels = pod.metadata.labels.iter();
    labels.filter(|(key, _)| !is_lifecycle_label(key))
}

/// Whether a label belongs to the lifecycle, including `service-available`.
pub fn is_lifecycle_label(key: &str) -> bool {
    let (prefix, _) = key.split_once('/').unwrap_or_default();
    let domain = keys::LIFECYCLE_DOMAIN.trim_matches(['.', '/']);
    prefix
        .strip_suffix(domain)
        .is_some_and(|family| family.is_empty() || family.ends_with('.'))
}
