//! Texts about the CollaSets that have work left for a decoration, and why they wait, as far as their status says it.

use super::progress::{Progress, SetWork};
use crate::api::collaset::CollaSet;
use crate::api::validation::truncate_value;
use crate::domain::collaset::observed::set_name;
use crate::domain::decoration::Decoration;
use crate::domain::decoration::observed::ObservedDecoration;
use crate::domain::messages;

/// Most names in one message.
const MAX_NAMES: usize = 3;
/// Most characters of a set's condition in a message.
const MAX_QUOTE: usize = 500;

/// Describes what is left to do, set by set.
pub fn describe_work(observed: &ObservedDecoration, progress: &Progress) -> String {
    let texts = progress.sets.iter().take(MAX_NAMES).map(|(name, work)| {
        let set = find_set(observed, name);
        format!(
            "CollaSet {name}: {}{}",
            describe_set_work(work),
            set.map_or_else(String::new, wait_reason)
        )
    });
    let mut texts: Vec<String> = texts.collect();
    match progress.sets.len().saturating_sub(MAX_NAMES) {
        0 => {}
        1 => texts.push("1 more CollaSet".to_owned()),
        more => texts.push(format!("{more} more CollaSets")),
    }
    texts.join("; ")
}

fn describe_set_work(work: &SetWork) -> String {
    let mut parts = Vec::new();
    if work.behind > 0 {
        parts.push(format!("{} to update", messages::count_pods(work.behind)));
    }
    if work.missing > 0 {
        parts.push(format!("{} to create", messages::count_pods(work.missing)));
    }
    if work.to_remove > 0 {
        let pods = messages::count_pods(work.to_remove);
        parts.push(format!("{pods} to update to be without the decoration"));
    }
    if !work.unavailable.is_empty() {
        let names: Vec<&str> = work.unavailable.iter().map(String::as_str).collect();
        let names = messages::list_names(&names, MAX_NAMES);
        let pods = messages::count_pods(work.unavailable.len());
        parts.push(format!("{pods} not available ({names})"));
    }
    parts.join(", ")
}

/// Why a set waits: it is paused, or what its own condition says.
fn wait_reason(set: &CollaSet) -> String {
    if set.spec.paused {
        return ", paused: set spec.paused of the CollaSet to false to go on".to_owned();
    }
    match false_condition(set, &["Ready", "Update"]) {
        Some(message) => format!(" (its condition: {})", truncate_value(message, MAX_QUOTE)),
        None => String::new(),
    }
}

/// Why a set with selected Pods can't apply this decoration to them. Only a change of a spec helps then.
pub fn decoration_failure(
    observed: &ObservedDecoration,
    publish: &Decoration,
    progress: &Progress,
) -> Option<String> {
    let mut failures = progress.sets.keys().filter_map(|name| {
        let set = find_set(observed, name)?;
        let mut conditions = set.status.iter().flat_map(|status| &status.conditions);
        let failed = conditions.find(|condition| {
            let is_failure = ["ScaleOutFailed", "UpdateFailed"].contains(&&*condition.reason);
            is_failure && condition.status == "False" && blames(&condition.message, &publish.name)
        })?;
        let message = truncate_value(&failed.message, MAX_QUOTE);
        Some(format!(
            "CollaSet {name} can't decorate its Pods: {message}"
        ))
    });
    failures.next()
}

/// Whether a message of a set says that this decoration can't be applied. That a set waits for the decoration to be
/// stored is no failure.
fn blames(message: &str, decoration: &str) -> bool {
    let phrase = format!("PodDecoration {decoration}");
    let mut found = message.match_indices(&phrase);
    found.any(|(start, _)| {
        let after = message.get(start + phrase.len()..).unwrap_or_default();
        let before = message.get(..start).unwrap_or_default();
        // A dot followed by a letter or digit continues the name; otherwise it ends the sentence.
        let mut next = after.chars();
        let ends = match (next.next(), next.next()) {
            (Some('.'), Some(c)) => !c.is_ascii_alphanumeric(),
            (Some(c), _) => !c.is_ascii_alphanumeric() && c != '-',
            (None, _) => true,
        };
        ends && !before.ends_with("waits for ")
    })
}

/// The message of the first of these conditions that is False.
pub fn false_condition<'a>(set: &'a CollaSet, types: &[&str]) -> Option<&'a str> {
    let conditions = || set.status.iter().flat_map(|status| &status.conditions);
    let mut messages = types.iter().filter_map(|type_| {
        let mut conditions = conditions();
        let condition = conditions.find(|c| c.type_ == *type_ && c.status == "False")?;
        Some(condition.message.as_str()).filter(|message| !message.is_empty())
    });
    messages.next()
}

fn find_set<'a>(observed: &'a ObservedDecoration, name: &str) -> Option<&'a CollaSet> {
    let mut sets = observed.sets.iter().map(|set| &*set.set);
    sets.find(|set| set_name(set) == name)
}
