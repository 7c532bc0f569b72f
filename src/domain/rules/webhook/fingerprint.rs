//! Detects whether a webhook rule has changed since an answer was given.

use crate::api::podtransitionrule::{Stage, WebhookRule};

/// Hash of all that the meaning of an answer depends on: the endpoint, the parameters, the effective failure policy,
/// and the stage. It is FNV-1a of the JSON, as 16 hexadecimal digits. All versions that read the rule in the same way
/// give the same hash.
pub fn fingerprint(rule: &WebhookRule, stage: Option<&Stage>, fail: bool) -> String {
    let text = serde_json::json!([rule, stage, fail]).to_string();
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
