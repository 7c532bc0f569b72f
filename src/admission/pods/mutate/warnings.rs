//! The warnings of writes of Pods that are admitted but lack something.

use super::PodMutator;
use crate::admission::pods::parse_pod;
use crate::admission::review::Request;
use crate::api::keys::{self, Family};
use crate::domain::lifecycle::ids_without_type;
use crate::domain::messages;
use crate::domain::pod::Pod;
use crate::domain::pod_size;
use crate::domain::rules::{SkipAnnotation, unreadable_skips_message};

impl PodMutator {
    /// The warning for a request that sets a skip annotation which cannot be parsed.
    pub(super) fn skip_warning(&self, request: &Request) -> Option<String> {
        let key = keys::SKIP_RULE_CONDITIONS;
        let raw = request.object.as_deref()?;
        if self.0.index.skips() == SkipAnnotation::Ignored || !raw.get().contains(key) {
            return None;
        }
        let new = parse_pod(request, Some(raw)).ok()?;
        let problem = unreadable_skips_message(&new)?;
        let old = request.old_object.as_deref();
        let old = old.and_then(|raw| parse_pod(request, Some(raw)).ok());
        let is_old = old.is_some_and(|old| old.annotation(key) == new.annotation(key));
        (!is_old).then(|| format!("Pod {}: {problem}", new.metadata.name))
    }
}

/// The warnings for operations that this request leaves or brings without a type.
pub fn untyped_warnings(request: &Request) -> Vec<String> {
    let raw = request.object.as_deref();
    let prefix = Family::Operating.prefix();
    if !raw.is_some_and(|raw| raw.get().contains(prefix)) {
        return Vec::new();
    }
    let Ok(new) = parse_pod(request, raw) else {
        return Vec::new();
    };
    if !new.is_managed() || new.is_terminating() {
        return Vec::new();
    }
    let old = request.old_object.as_deref();
    let old = old.and_then(|raw| parse_pod(request, Some(raw)).ok());
    let ids_before = old.map_or_else(Vec::new, |old| ids_without_type(&old));
    let name = &new.metadata.name;
    let new_ids = ids_without_type(&new)
        .into_iter()
        .filter(|id| !ids_before.contains(id));
    new_ids
        .map(|id| format!("Pod {name}: {}", messages::missing_operation_type(&id)))
        .collect()
}

/// The warning for a managed Pod that becomes too large to be cached.
pub fn size_warning(old: Option<&Pod>, new: &Pod) -> Option<String> {
    let bytes = new.pod_bytes();
    let is_new = bytes > pod_size::MAX_POD_BYTES
        && old.is_none_or(|old| old.pod_bytes() <= pod_size::MAX_POD_BYTES);
    is_new.then(|| {
        let excess = pod_size::excess_message(bytes);
        match new.metadata.name.as_str() {
            "" => format!("the Pod {excess}"),
            name => format!("Pod {name} {excess}"),
        }
    })
}
