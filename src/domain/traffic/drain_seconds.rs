//! The drain time that an employer asks for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::keys;

/// Longest drain time that an employer can ask for: an hour.
const MAX_DRAIN_SECONDS: u64 = 3_600;

/// The drain time that the annotation `resource-consist.kusionstack.io/drain-seconds` asks for; `None` without it.
///
/// # Errors
/// If the value is no such number of seconds. Then the default of the adapter counts.
pub fn asked_drain_time(
    annotations: &BTreeMap<String, String>,
) -> Result<Option<Duration>, String> {
    let key = keys::CONSIST_DRAIN_SECONDS;
    let Some(text) = annotations.get(key) else {
        return Ok(None);
    };
    let seconds = text.trim().parse::<u64>().ok();
    let asked = seconds.filter(|seconds| *seconds <= MAX_DRAIN_SECONDS);
    let asked = asked.map(|seconds| Some(Duration::from_secs(seconds)));
    asked.ok_or_else(|| {
        format!(
            "annotation {key}: {text:?} is not a number of seconds from 0 to {MAX_DRAIN_SECONDS}; the default of the \
             adapter is used"
        )
    })
}
