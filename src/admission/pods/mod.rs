//! Reviews Pods: [`PodMutator`] advances the lifecycle, and [`PodValidator`] denies requests that would violate a rule.

mod entering_rules;
mod mutate;
mod pod_updates;
mod replacement;
mod service_ready;
mod validate;
mod wait_messages;

use serde_json::value::RawValue;

pub use mutate::PodMutator;
pub use validate::PodValidator;

use super::review::{Request, Verdict};
use crate::domain::lifecycle::LifecycleError;
use crate::domain::pod::Pod;

/// Parses the Pod of a review. A Pod without namespace or name, as in a CREATE, gets those of the request.
fn parse_pod(request: &Request, raw: Option<&RawValue>) -> Result<Pod, Verdict> {
    let Some(raw) = raw else {
        return Err(Verdict::deny(
            400,
            "BadRequest",
            "the review carries no Pod",
        ));
    };
    let mut pod: Pod = serde_json::from_str(raw.get())
        .map_err(|e| Verdict::deny(422, "Invalid", format!("the Pod can't be read: {e}")))?;
    if pod.metadata.namespace.is_empty() {
        pod.metadata.namespace.clone_from(&request.namespace);
    }
    if pod.metadata.name.is_empty() {
        pod.metadata.name.clone_from(&request.name);
    }
    Ok(pod)
}

/// The verdict on invalid fields. The message has the path and the remedy of each field.
fn deny_invalid_pod(pod: &Pod, errors: &[LifecycleError]) -> Verdict {
    let list: Vec<_> = errors
        .iter()
        .map(|e| format!("{}: {}", e.path, e.message))
        .collect();
    Verdict::deny(
        422,
        "Invalid",
        format!("Pod {} is invalid: {}", pod.metadata.name, list.join("; ")),
    )
}
