//! Computes the conditions of a rule object.

use serde_json::{Value, json};

use super::super::rollouts::held_rollouts;
use super::StatusView;
use crate::api::podtransitionrule::RuleState;
use crate::api::size_limits;
use crate::cluster::index::{NamespaceIndex, RuleEntry};
use crate::cluster::selection;
use crate::domain::rules::conditions::{
    self, ConditionFinding, SelectorMatches, UnknownReplicasOwners, endpoints_answer, rollouts_held,
};

/// Maximum length of the message of a condition, in characters.
const MAX_MESSAGE_CHARS: usize = 2048;

/// The conditions of a rule object, each with its type. `states` are the states of its webhook rules.
pub fn find_conditions(
    view: &StatusView<'_>,
    unknown_owners: UnknownReplicasOwners,
    states: &[RuleState],
) -> Vec<(&'static str, ConditionFinding)> {
    let StatusView { entry, inputs, .. } = view;
    let rules = &entry.snapshot.rules;
    let namespace_index = view.state.namespace(&rules.namespace);
    let namespace_index = namespace_index.filter(|_| view.has_limit());
    let held = namespace_index.map_or_else(Vec::new, |namespace_index| {
        held_rollouts(namespace_index, entry, view.gauges)
    });
    let enforced =
        conditions::enforced_condition(rules, &inputs.namespace_state, inputs.grace_delete);
    let ledger_usable = conditions::ledger_usable_condition(
        entry.snapshot.fault.as_deref(),
        inputs.ledger_storage,
        inputs.ledger_repair_message.as_deref(),
    );
    let stalled = conditions::stalled_condition(&enforced);
    let all = [
        ("Enforced", Some(enforced)),
        ("Stalled", stalled),
        ("Matched", Some(matched_condition(view, namespace_index))),
        (
            "ExpectedKnown",
            conditions::expected_known_condition(rules, unknown_owners),
        ),
        (
            "RolloutsHeld",
            rollouts_held::rollouts_held_condition(rules, &held),
        ),
        (
            endpoints_answer::ENDPOINTS_ANSWER,
            endpoints_answer::endpoints_answer_condition(rules, states),
        ),
        ("LedgerUsable", ledger_usable),
    ];
    all.into_iter()
        .filter_map(|(type_, finding)| Some((type_, finding?)))
        .collect()
}

/// The condition `Matched`. `namespace_index` is the namespace of a rule object that shows a limit.
fn matched_condition(
    view: &StatusView<'_>,
    namespace_index: Option<&NamespaceIndex>,
) -> ConditionFinding {
    let matches = &view.inputs.matches;
    namespace_index
        .filter(|_| *matches == SelectorMatches::Managed)
        .and_then(|namespace_index| {
            let owners = partly_selected_owners(namespace_index, view.entry);
            conditions::partly_matched_condition(owners)
        })
        .unwrap_or_else(|| conditions::matched_condition(&view.entry.snapshot.rules, matches))
}

/// Owners that want more Pods than the rule object selects, and whose template makes Pods that it does not select. Each
/// is written as `Kind name`.
fn partly_selected_owners(namespace_index: &NamespaceIndex, entry: &RuleEntry) -> Vec<String> {
    let rules = &entry.snapshot.rules;
    let owners = entry.tally.owners();
    let owners = owners.filter_map(|uid| Some((uid, namespace_index.workload(uid)?)));
    let partly = owners.filter(|(uid, owner)| {
        // Something may add the labels to the Pods after the owner has created them.
        let selected = || {
            namespace_index
                .pods_owned_by(uid)
                .filter(|pod| rules.selects(pod))
                .count()
        };
        let wanted = owner.replicas.and_then(|n| usize::try_from(n).ok());
        !selection::is_selected(rules, owner) && wanted.is_some_and(|n| selected() < n)
    });
    partly
        .map(|(_, owner)| format!("{} {}", owner.kind.name(), owner.name))
        .collect()
}

/// A condition in its stored form. `lastTransitionTime` stays the same while the status of the condition does.
pub fn to_status_value(
    stored: &Value,
    type_: &str,
    finding: &ConditionFinding,
    generation: i64,
    now: &str,
) -> Value {
    let mut all = stored.as_array().into_iter().flatten();
    let since = all
        .find(|c| c["type"] == type_ && c["status"] == finding.status)
        .and_then(|c| c["lastTransitionTime"].as_str())
        .unwrap_or(now);
    json!({
        "type": type_, "status": finding.status, "reason": finding.reason,
        "message": size_limits::truncate_text(&finding.message, MAX_MESSAGE_CHARS),
        "observedGeneration": generation, "lastTransitionTime": since,
    })
}
