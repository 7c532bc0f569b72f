//! Compares the status with the stored status, and decides what is written and how soon.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::super::rule_endpoints;
use super::conditions::{find_conditions, to_status_value};
use super::details::wait_details;
use super::wait_view::WaitView;
use super::{StatusUrgency, StatusView};
use crate::api::podtransitionrule::RuleState;
use crate::api::size_limits::{self, MAX_TARGETS_BYTES};
use crate::domain::rules::conditions::LedgerStorage;

/// Maximum number of selected Pods in `targets`; `selectedPods` counts all.
const MAX_TARGETS: usize = 100;

/// The status fields as a merge patch, with the urgency of the write; `None` if they are equal to what is stored.
pub fn rule_status_patch(view: &StatusView<'_>, now: Timestamp) -> Option<(Value, StatusUrgency)> {
    let status = view.entry.object.status.as_ref();
    let stored_states = status.map_or(&[][..], |s| &s.rule_states);
    let states = rule_endpoints::call_rule_states(view.call_states, stored_states);
    let has_new_verdicts = rule_endpoints::has_unstored_states(&states, stored_states);
    let unknown_owners = view.unknown_replicas_owners();
    let mut patch = status_fields(view, unknown_owners.denies_all(), &states);
    let stored = serde_json::to_value(status.cloned().unwrap_or_default()).ok()?;
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let generation = view.entry.snapshot.rules.generation;
    let conditions: Vec<_> = find_conditions(view, unknown_owners, &states)
        .into_iter()
        .map(|(type_, finding)| {
            to_status_value(&stored["conditions"], type_, &finding, generation, &now)
        })
        .collect();
    let same_conditions = stored["conditions"] == json!(conditions);
    let same_fields = patch
        .as_object()?
        .iter()
        .all(|(k, v)| stored.get(k).cloned().unwrap_or_else(|| default_value(v)) == *v);
    if same_fields && same_conditions {
        return None;
    }
    patch["updateTime"] = json!(now);
    patch["conditions"] = json!(conditions);
    let urgency = match (has_new_verdicts, same_conditions) {
        (true, _) => StatusUrgency::Verdicts,
        (false, false) => StatusUrgency::Conditions,
        (false, true) => StatusUrgency::Counts,
    };
    Some((patch, urgency))
}

/// The fields of the status except the conditions and the time of the write. `denies_all` says whether admission denies
/// every disruption, because the number of replicas of an owner is not known.
fn status_fields(view: &StatusView<'_>, denies_all: bool, states: &[RuleState]) -> Value {
    let StatusView { entry, gauges, .. } = view;
    let has_limit = view.has_limit();
    let (details, reasons) = wait_details(&WaitView::new(view, denies_all));
    let is_dropped = view.inputs.ledger_storage == LedgerStorage::Dropped;
    let allowed = match denies_all || entry.snapshot.fault.is_some() || is_dropped {
        true => 0,
        false => gauges.allowed,
    };
    json!({
        "observedGeneration": entry.snapshot.rules.generation,
        "expectedPods": gauges.expected,
        "availablePods": gauges.available,
        "unavailablePods": gauges.unavailable,
        "unavailableLimit": has_limit.then_some(gauges.limit),
        "disruptionsAllowed": has_limit.then_some(allowed),
        "waitingPods": gauges.waiting,
        "selectedPods": entry.tally.selected_count(),
        "targets": size_limits::take_fitting(entry.tally.pod_names().take(MAX_TARGETS), MAX_TARGETS_BYTES),
        "details": details,
        "waitReasons": reasons,
        "ruleStates": states,
    })
}

/// The value that stands for an absent field. Optional fields count as null, and lists as empty.
fn default_value(like: &Value) -> Value {
    match like {
        Value::Array(_) => json!([]),
        _ => Value::Null,
    }
}
