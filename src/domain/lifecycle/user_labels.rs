//! Tells the labels of users from the labels of the lifecycle.

use crate::api::reserved_labels::is_lifecycle_label;
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
