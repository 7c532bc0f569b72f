//! Sets the readiness condition in the same write of the status that advances an operation, so that the Pod goes off
//! traffic or comes back at once. If this webhook does not set the condition, the controller does it in a write of its
//! own.

use jiff::Timestamp;
use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, ReplaceOperation};
use serde_json::{Value, json};

use crate::admission::review::Request;
use crate::api::keys;
use crate::domain::lifecycle::follow_readiness;
use crate::domain::pod::Pod;

/// Sets the condition in `pod`, which is the object of the request after its patch, by [`follow_readiness`]. Returns
/// the patch of the condition; `None` if the condition stays unchanged.
pub fn service_ready_patch(
    request: &Request,
    pod: &mut Pod,
    now: Timestamp,
) -> Option<PatchOperation> {
    let nanos = u64::try_from(now.as_nanosecond()).unwrap_or(0);
    let ready = follow_readiness(pod, nanos)?;
    let condition = json!({
        "type": keys::SERVICE_READY,
        "status": if ready { "True" } else { "False" },
        "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "message": "updated by PodOpsLifecycle",
    });
    let object = request.object.as_deref();
    let object = object.and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    Some(condition_patch(&object.unwrap_or_default(), condition))
}

/// The patch that sets a condition in an object.
fn condition_patch(object: &Value, condition: Value) -> PatchOperation {
    let path = |tokens: &[&str]| PointerBuf::from_tokens(tokens.iter().copied());
    let add = |path, value| PatchOperation::Add(AddOperation { path, value });
    let Some(status) = object.get("status") else {
        return add(path(&["status"]), json!({ "conditions": [condition] }));
    };
    let Some(all) = status.get("conditions").and_then(Value::as_array) else {
        return add(path(&["status", "conditions"]), json!([condition]));
    };
    let position = all.iter().position(|c| c["type"] == condition["type"]);
    match position.map(|index| index.to_string()) {
        Some(index) => PatchOperation::Replace(ReplaceOperation {
            path: path(&["status", "conditions", &index]),
            value: condition,
        }),
        None => add(path(&["status", "conditions", "-"]), condition),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn condition_is_set_for_any_existing_status() {
        let condition = json!({ "type": "a", "status": "True" });
        let other = json!({ "type": "b", "status": "True" });
        for (before, after) in [
            (json!({}), json!([condition])),
            (json!({ "status": {} }), json!([condition])),
            (
                json!({ "status": { "conditions": null } }),
                json!([condition]),
            ),
            (
                json!({ "status": { "conditions": [other] } }),
                json!([other, condition]),
            ),
            (
                json!({ "status": { "conditions": [{ "type": "a", "status": "False", "reason": "x" }, other] } }),
                json!([condition, other]),
            ),
        ] {
            let mut object = before.clone();
            json_patch::patch(&mut object, &[condition_patch(&before, condition.clone())]).unwrap();
            assert_eq!(object["status"]["conditions"], after, "{before}");
        }
    }
}
