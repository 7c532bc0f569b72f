//! Describes for the conditions which finalizers Pods wait for.

use std::collections::BTreeSet;

use super::MAX_NAMES;
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// The finalizers that the Pod waits for. For a terminating Pod these are all finalizers; before that they are the
/// protection finalizers of cooperators.
pub fn blocking_finalizers(pod: &Pod) -> impl Iterator<Item = &str> {
    let finalizers = pod.metadata.finalizers.iter().map(String::as_str);
    let prefix = keys::PROTECTION_FINALIZER_PREFIX;
    finalizers.filter(move |f| pod.is_terminating() || f.starts_with(prefix))
}

/// Lists the finalizers that keep these terminating Pods, in parentheses after a space; empty if there are none.
pub fn list_blocking_finalizers<'a>(pods: impl IntoIterator<Item = &'a Pod>) -> String {
    let ending = pods.into_iter().filter(|pod| pod.is_terminating());
    let all: BTreeSet<&str> = ending.flat_map(blocking_finalizers).collect();
    let all: Vec<&str> = all.into_iter().collect();
    let noun = if all.len() == 1 {
        "finalizer"
    } else {
        "finalizers"
    };
    match all.is_empty() {
        true => String::new(),
        false => format!(" ({noun} {})", messages::list_names(&all, MAX_NAMES)),
    }
}

pub fn describe_finalizer_wait(pod: &Pod) -> String {
    let finalizers: Vec<_> = blocking_finalizers(pod).take(MAX_NAMES).collect();
    format!("waits until finalizer {} is removed", finalizers.join(", "))
}
