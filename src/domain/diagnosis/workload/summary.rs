//! The answer about a workload in one sentence, and what the user can do.

use super::facts::{WaitGroup, WaitGroupKind, WorkloadDiagnosis, WorkloadFacts};
use super::stored::StoredWorkload;
use crate::api::keys;
use crate::domain::messages;

/// Most reasons that the summary contains.
const MAX_REASONS: usize = 2;
/// Most Pods that a sentence names.
const MAX_NAMES: usize = 3;

/// The summary.
pub fn summarize(diagnosis: &WorkloadDiagnosis, stored: &StoredWorkload) -> String {
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
    let counts = describe_counts(facts);
    if reasons.is_empty() {
        let is_settled = facts.available >= facts.replicas
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

/// What the user can do, or where to read more.
pub fn next_steps(diagnosis: &WorkloadDiagnosis) -> Vec<String> {
    let facts = &diagnosis.workload;
    let WorkloadFacts {
        namespace, name, ..
    } = facts;
    let mut steps = Vec::new();
    let mut groups = diagnosis.waits.iter();
    let stuck = groups.find(|group| group.kind == WaitGroupKind::Stuck);
    if let Some(pod) = stuck.and_then(|group| group.pods.first()) {
        steps.push(format!(
            "correct the cause; its Events: kubectl describe pod {pod} -n {namespace}"
        ));
    }
    let mut groups = diagnosis.waits.iter();
    let is_missing = groups.any(|group| group.kind == WaitGroupKind::Missing);
    if is_missing && diagnosis.problems.is_empty() {
        let kind = facts.kind.to_lowercase();
        steps.push(format!(
            "why Pods are missing: kubectl events --for {kind}/{name} -n {namespace}"
        ));
    }
    let mut groups = diagnosis.waits.iter();
    let detailed = groups.find(|group| {
        !group.pods.is_empty()
            && !matches!(group.kind, WaitGroupKind::Stuck | WaitGroupKind::Finished)
    });
    if let Some(pod) = detailed.and_then(|group| group.pods.first()) {
        steps.push(format!(
            "more about a single Pod: kubectl operating why pod/{pod} -n {namespace}"
        ));
    }
    steps
}
