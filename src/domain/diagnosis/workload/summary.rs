//! The answer about a workload in one sentence.

use super::facts::{WaitGroup, WaitGroupKind, WorkloadDiagnosis, WorkloadFacts};
use super::stored::StoredWorkload;
use crate::api::keys;
use crate::domain::messages;

/// Most reasons that the summary contains.
const MAX_REASONS: usize = 2;
/// Most Pods that a sentence names.
const MAX_NAMES: usize = 3;

/// The summary. `unknown` says in clauses what could not be read.
pub fn summarize(
    diagnosis: &WorkloadDiagnosis,
    stored: &StoredWorkload,
    unknown: &[&str],
) -> String {
    let facts = &diagnosis.workload;
    let title = format!("{} {}", facts.kind, facts.name);
    let mut reasons = Vec::new();
    if facts.deleting_since.is_some() {
        reasons.push("it is being deleted".to_owned());
    } else if !facts.observed {
        reasons.push("its controller has not seen its present spec yet".to_owned());
    }
    if facts.paused {
        reasons.push("it is paused: set spec.paused to false to go on".to_owned());
    }
    let is_missing = |group: &WaitGroup| group.kind == WaitGroupKind::Missing;
    let is_named = |problem: &String| {
        let mut groups = diagnosis.waits.iter();
        groups.any(|group| is_missing(group) && group.reason == *problem)
    };
    reasons.extend(diagnosis.waits.iter().map(|group| {
        let detail = group.detail.as_ref();
        let detail = detail.map_or_else(String::new, |detail| format!(": {detail}"));
        describe_group(group) + &detail
    }));
    reasons.extend(stored.problems.iter().filter(|p| !is_named(p)).cloned());
    if reasons.is_empty() {
        reasons.extend(stored.not_ready.clone());
    }
    if reasons.is_empty() {
        reasons.extend(stored.no_pods.clone());
    }
    if reasons.is_empty() && facts.existing > facts.replicas && !unknown.is_empty() {
        let existing = messages::count_pods_with_verb(facts.existing as usize, "exists", "exist");
        reasons.push(existing);
    }
    reasons.extend(unknown.iter().map(|unknown| (*unknown).to_owned()));
    let counts = describe_counts(facts);
    if reasons.is_empty() {
        let is_settled = facts.available >= facts.replicas
            && facts.existing == facts.replicas
            && facts
                .updated
                .is_none_or(|updated| updated >= facts.replicas);
        return match is_settled {
            true => format!("{title}: {counts}, and nothing waits"),
            false => format!("{title}: {counts}"),
        };
    }
    let more = reasons.len().saturating_sub(MAX_REASONS);
    reasons.truncate(MAX_REASONS);
    let more = match more {
        0 => String::new(),
        1 => "; and for 1 more reason".to_owned(),
        more => format!("; and for {more} more reasons"),
    };
    format!("{title}: {counts}; {}{more}", reasons.join("; "))
}

/// The counts of the status.
pub fn describe_counts(facts: &WorkloadFacts) -> String {
    let WorkloadFacts {
        replicas,
        updated,
        ready,
        available,
        ..
    } = facts;
    let replicas = match replicas {
        1 => "1 replica".to_owned(),
        replicas => format!("{replicas} replicas"),
    };
    let updated = updated.map_or_else(String::new, |updated| format!("{updated} updated, "));
    format!("{replicas}, {updated}{ready} ready, {available} available")
}

/// What the Pods of a group wait for, in a clause without the details of a rule.
pub fn describe_group(group: &WaitGroup) -> String {
    let WaitGroup { count, reason, .. } = group;
    let names: Vec<&str> = group.pods.iter().map(String::as_str).collect();
    let listed = names.iter().take(MAX_NAMES).copied();
    let listed = listed.collect::<Vec<_>>().join(", ");
    let names = match count.saturating_sub(MAX_NAMES) {
        _ if names.is_empty() => String::new(),
        0 => format!(" ({listed})"),
        more => format!(" ({listed} and {more} more)"),
    };
    let with_verb = |singular: &str, plural: &str| {
        let verb = if *count == 1 { singular } else { plural };
        format!("{}{names} {verb}", messages::count_pods(*count))
    };
    match group.kind {
        WaitGroupKind::Stuck => with_verb("does not start: ", "do not start: ") + reason,
        WaitGroupKind::NodeLost => {
            with_verb("is out of service: ", "are out of service: ") + reason
        }
        WaitGroupKind::Missing => with_verb("is missing: ", "are missing: ") + reason,
        WaitGroupKind::Rule => with_verb("waits for ", "wait for ") + reason,
        WaitGroupKind::Unavailable => {
            with_verb("is not available: ", "are not available: ") + reason
        }
        WaitGroupKind::Operation => {
            with_verb("is being operated on: ", "are being operated on: ") + reason
        }
        WaitGroupKind::Surplus => with_verb("too many waits for ", "too many wait for ") + reason,
        WaitGroupKind::Terminating => with_verb("is terminating: ", "are terminating: ") + reason,
        WaitGroupKind::Finished => with_verb("has finished: ", "have finished: ") + reason,
        WaitGroupKind::Older => {
            with_verb("is of an older revision: ", "are of an older revision: ") + reason
        }
    }
}

/// The remark about Pods without the control label. `None` if there are none.
pub fn describe_unmanaged(count: usize) -> Option<String> {
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    let pods = messages::count_pods_with_verb(count, "has", "have");
    (count > 0).then(|| {
        format!(
            "{pods} no label {key}: \"{value}\", without which no rule holds a Pod: set it in the template"
        )
    })
}
