//! Which way a deletion or an eviction of the Pod goes. The feature gate `GraceDeleteWebhook` decides, which only the server
//! knows: its answer to a dry-run tells.

use super::facts::Trial;
use crate::api::keys;
use crate::domain::grace;
use crate::domain::pod::Pod;

/// What a deletion or an eviction of the Pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It takes the Pod away, unless a budget holds it.
    Direct,
    /// It begins operation `pod-delete`, for which the rules of PreCheck are asked.
    Lifecycle,
    /// That is not known.
    Unknown,
}

/// The way of a Pod, by what the API server says to a dry-run deletion.
pub fn way(pod: &Pod, trial: Option<&Trial>) -> Way {
    if !grace::concerns(pod) {
        return Way::Direct;
    }
    // What may be done under the gate too proves nothing.
    let passes_anyway = grace::permits(pod) || pod.annotation(keys::BYPASS).is_some();
    match trial {
        Some(trial) if begins_lifecycle(trial) => Way::Lifecycle,
        Some(Trial::Allowed) if !passes_anyway => Way::Direct,
        _ => Way::Unknown,
    }
}

/// Whether the server refuses a deletion only until the lifecycle has taken the Pod off traffic.
pub fn begins_lifecycle(trial: &Trial) -> bool {
    matches!(trial, Trial::Denied { message, .. } if message.contains(grace::UNDERWAY))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_answer_that_the_gate_decides_tells_the_way() {
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
        let denied = |message: String| Trial::Denied { code: 429, message };
        assert_eq!(
            way(&plain, Some(&denied(grace::refusal(&plain)))),
            Way::Lifecycle
        );
        assert_eq!(way(&plain, Some(&Trial::Allowed)), Way::Direct);
        assert_eq!(
            way(&plain, Some(&denied("legal hold".to_owned()))),
            Way::Unknown
        );
        assert_eq!(way(&plain, None), Way::Unknown);
        let bypassing = pod(json!({ (keys::BYPASS): "incident" }));
        assert_eq!(way(&bypassing, Some(&Trial::Allowed)), Way::Unknown);
    }
}
