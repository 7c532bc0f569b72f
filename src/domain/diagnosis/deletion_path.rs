//! Whether a deletion or an eviction of the Pod goes through the lifecycle. The feature gate `GraceDeleteWebhook`
//! decides this, and only the server knows the gate. Its answer to a dry run shows the gate.

use super::facts::DryRunDeletion;
use crate::api::keys;
use crate::domain::grace_delete;
use crate::domain::pod::Pod;

/// What a deletion or an eviction of the Pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionPath {
    /// It deletes the Pod, unless a budget holds it.
    Direct,
    /// It begins the operation `pod-delete`, which waits for the rules of PreCheck.
    Lifecycle,
    /// It is not known what the deletion does.
    Unknown,
}

/// How a deletion of the Pod goes, by the API server's answer to a dry-run deletion.
pub fn deletion_path(pod: &Pod, dry_run: Option<&DryRunDeletion>) -> DeletionPath {
    if !grace_delete::has_lifecycle(pod) {
        return DeletionPath::Direct;
    }
    // If the deletion is permitted with the feature gate too, the answer proves nothing about the gate.
    let passes_anyway =
        grace_delete::permits_deletion(pod) || pod.annotation(keys::BYPASS).is_some();
    match dry_run {
        Some(dry_run) if is_lifecycle_refusal(dry_run) => DeletionPath::Lifecycle,
        Some(DryRunDeletion::Allowed) if !passes_anyway => DeletionPath::Direct,
        _ => DeletionPath::Unknown,
    }
}

/// The API server's message if it refuses the deletion of the Pod. `None` also if the refused deletion begins the
/// lifecycle of the Pod, because the lifecycle deletes the Pod later.
pub fn lasting_refusal(dry_run: Option<&DryRunDeletion>) -> Option<&str> {
    match dry_run? {
        dry_run if is_lifecycle_refusal(dry_run) => None,
        DryRunDeletion::Denied { message, .. } => Some(message),
        _ => None,
    }
}

/// Whether the server refuses a deletion only until the lifecycle has taken the Pod off traffic.
pub fn is_lifecycle_refusal(dry_run: &DryRunDeletion) -> bool {
    matches!(dry_run, DryRunDeletion::Denied { message, .. } if message.contains(grace_delete::UNDERWAY_MESSAGE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_grace_delete_answer_determines_deletion_path() {
        let pod = |annotations: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "web-0", "labels": { (keys::CONTROL): keys::CONTROL_VALUE }, "annotations": annotations,
                },
                "spec": { "readinessGates": [{ "conditionType": keys::SERVICE_READY }] },
            }))
            .unwrap()
        };
        let plain = pod(json!({}));
        let denied = |message: String| DryRunDeletion::Denied { code: 429, message };
        assert_eq!(
            deletion_path(&plain, Some(&denied(grace_delete::deletion_denial(&plain)))),
            DeletionPath::Lifecycle
        );
        assert_eq!(
            deletion_path(&plain, Some(&DryRunDeletion::Allowed)),
            DeletionPath::Direct
        );
        assert_eq!(
            deletion_path(&plain, Some(&denied("legal hold".to_owned()))),
            DeletionPath::Unknown
        );
        assert_eq!(deletion_path(&plain, None), DeletionPath::Unknown);
        let bypassing = pod(json!({ (keys::BYPASS): "incident" }));
        assert_eq!(
            deletion_path(&bypassing, Some(&DryRunDeletion::Allowed)),
            DeletionPath::Unknown
        );
    }
}
