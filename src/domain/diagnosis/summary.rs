//! The summary of a diagnosis in one sentence, and what happens next.

use std::collections::BTreeSet;

use super::ObservedPod;
use super::deletion_path::{self, DeletionPath};
use super::facts::{Diagnosis, DryRunDeletion, OperationFacts, RuleFacts, RuleVerdict};
use super::rules::{UNREADABLE_LIMIT, UNREADABLE_RULE};
use crate::api::keys;
use crate::domain::lifecycle::{Stage, service_obstacles};
use crate::domain::messages;
use crate::domain::rules::MAX_OBJECTS_PER_POD;
use crate::domain::{grace_delete, inplace};

/// The document with the remedy.
const SERVER_DOWN_DOC: &str = "docs/server-down.md";

/// The summary. `unenforced` says why the rules of the namespace are not enforced.
pub fn summarize(observed: &ObservedPod, all: &Diagnosis, unenforced: Option<&str>) -> String {
    let pod = &all.pod;
    let name = &pod.name;
    if pod.terminating {
        let finalizers = pod.finalizers.join(", ");
        let why = match pod.finalizers.len() {
            0 => "nothing holds it any more".to_owned(),
            1 => format!("it waits until finalizer {finalizers} is taken off"),
            _ => format!("it waits until finalizers {finalizers} are taken off"),
        };
        return format!("Pod {name} is terminating: {why}");
    }
    if observed.pod.is_finished() {
        let phase = &observed.pod.status.phase;
        return format!("Pod {name} has run to its end ({phase}): no rule holds it");
    }
    if !pod.managed {
        let key = keys::CONTROL;
        return format!(
            "Pod {name} is not managed (no label {key}: \"true\"): no rule holds it, and it has no lifecycle"
        );
    }
    if let Some(DryRunDeletion::Unanswered { .. }) = all.deletion {
        return format!(
            "Pod {name}: the admission server does not answer, so deletions are refused by the API server until it does; \
             see {SERVER_DOWN_DOC}"
        );
    }
    if let Some(why) = unenforced {
        let refused = match deletion_refusal(all) {
            Some(message) => {
                format!("; the API server refuses a deletion now all the same: {message}")
            }
            None => describe_first_step(observed).to_owned(),
        };
        let begun = all.operations.first();
        let begun = begun.map_or_else(String::new, |o| {
            format!("; {}", describe_operation(observed, o))
        });
        let why = condition_clause(why);
        return format!("Pod {name}: rules are not enforced here, because {why}{refused}{begun}");
    }
    if let Some(first) = all.operations.first() {
        let more = match all.operations.len() {
            1 => String::new(),
            n => format!(" ({} more in flight)", n - 1),
        };
        return format!("Pod {name}: {}{more}", describe_operation(observed, first));
    }
    if let Some(why) = &pod.unavailable_because {
        let held = blocking_rule(all)
            .filter(|rule| rule.verdict == RuleVerdict::Holds && rule.kind == "availablePolicy");
        let held = held.map_or_else(String::new, |rule| {
            let by = messages::qualified_rule_name(&rule.object, &rule.rule);
            format!("; held by {by}: {}", rule.reason)
        });
        return format!("Pod {name} is not available: {why}{held}");
    }
    if all.rules.is_empty() {
        let namespace = &pod.namespace;
        let alone = format!(
            "Pod {name} is available, and no PodTransitionRule of namespace {namespace} selects it"
        );
        let said = match (deletion_refusal(all), describe_owner_block(observed, all)) {
            (Some(message), _) => {
                format!("{alone}, but the API server refuses a deletion now: {message}")
            }
            (None, Some(told)) => format!("{alone}; {told}"),
            (None, None) => format!("{alone}: nothing holds it"),
        };
        return said + describe_first_step(observed);
    }
    let overlapping = count_covering_objects(all);
    if overlapping > MAX_OBJECTS_PER_POD {
        return format!(
            "Pod {name} is available, and held: {overlapping} PodTransitionRules with an availability rule cover it, and at most \
             {MAX_OBJECTS_PER_POD} may; merge them into fewer, or narrow their selectors"
        );
    }
    let Some(rule) = blocking_rule(all) else {
        let said = match deletion_refusal(all) {
            Some(message) => format!(
                "Pod {name} is available, and no rule holds it, but the API server refuses a deletion now: {message}"
            ),
            None => match describe_held_budget(observed, all) {
                Some(place) => format!("Pod {name} is available, and {place}"),
                None => match (
                    return_blocking_rule(all),
                    describe_owner_block(observed, all),
                ) {
                    (Some(rule), _) => {
                        let by = messages::qualified_rule_name(&rule.object, &rule.rule);
                        let why = &rule.reason;
                        format!(
                            "Pod {name} is available, and may go; the end of an operation on it would wait for {by}: {why}"
                        )
                    }
                    (None, Some(told)) => {
                        format!("Pod {name} is available, and no rule holds it; {told}")
                    }
                    (None, None) => format!("Pod {name} is available, and may go"),
                },
            },
        };
        return said + describe_first_step(observed);
    };
    let (by, why) = (
        messages::qualified_rule_name(&rule.object, &rule.rule),
        &rule.reason,
    );
    match rule.verdict {
        RuleVerdict::Unknown => {
            format!("Pod {name} is available, and it is not known yet whether {by} holds it: {why}")
        }
        _ if holds_deletions(rule) => {
            format!("Pod {name} is available, and held by {by}: {why}")
        }
        _ => {
            let deletions = match deletion_path(observed) {
                DeletionPath::Lifecycle => ", a deletion too,",
                DeletionPath::Direct | DeletionPath::Unknown => "",
            };
            format!(
                "Pod {name} is available, and an operation on it{deletions} would wait for {by}: {why}"
            )
        }
    }
}

fn deletion_path(observed: &ObservedPod) -> DeletionPath {
    deletion_path::deletion_path(&observed.pod, observed.context.dry_run_deletion.as_ref())
}

/// Why the API server refuses a deletion. `None` also if the refused deletion begins the lifecycle of the Pod.
fn deletion_refusal(all: &Diagnosis) -> Option<&str> {
    match &all.deletion {
        Some(trial) if deletion_path::is_lifecycle_refusal(trial) => None,
        Some(DryRunDeletion::Denied { message, .. }) => Some(message),
        _ => None,
    }
}

/// The first step of a deletion through the lifecycle, as a clause. Empty if the deletion does not go through the
/// lifecycle.
fn describe_first_step(observed: &ObservedPod) -> &'static str {
    match deletion_path(observed) {
        DeletionPath::Lifecycle => {
            "; a deletion or eviction takes it off traffic first, by operation pod-delete (feature gate GraceDeleteWebhook)"
        }
        DeletionPath::Direct | DeletionPath::Unknown => "",
    }
}

/// What prevents the CollaSet from working on the Pod, or else a refused write of the set that concerns the Pod. `None`
/// if the set has nothing to do to the Pod.
fn describe_owner_block(observed: &ObservedPod, all: &Diagnosis) -> Option<String> {
    let owner = all.owner.as_ref()?;
    let rollout = owner.rollout.as_ref()?;
    let is_behind = rollout.updated_revision != rollout.revision;
    let is_asked = is_behind || rollout.paused || observed.is_set_deleted();
    let mut troubles = owner.troubles.iter();
    let trouble = troubles.find(|trouble| {
        is_behind && trouble.starts_with("UpdateFailed") || trouble.contains(&*all.pod.name)
    });
    let remark = owner.remark.as_ref().filter(|_| is_asked);
    let told = remark.or(trouble)?;
    Some(format!("{} {}: {told}", owner.kind, owner.name))
}

/// The first rule that would keep the Pod off traffic after an operation.
fn return_blocking_rule(all: &Diagnosis) -> Option<&RuleFacts> {
    let mut rules = all.rules.iter();
    rules.find(|rule| rule.stage == Stage::PostCheck.as_str() && rule.verdict == RuleVerdict::Holds)
}

/// How many rule objects with an availability rule cover the Pod.
fn count_covering_objects(all: &Diagnosis) -> usize {
    let limits = all
        .rules
        .iter()
        .filter(|rule| rule.kind == "availablePolicy");
    let objects: BTreeSet<&str> = limits.map(|rule| rule.object.as_str()).collect();
    objects.len()
}

/// The claim by which an available Pod uses a budget, and when the claim ends. `None` if the Pod has no claim.
fn describe_held_budget(observed: &ObservedPod, all: &Diagnosis) -> Option<String> {
    let claim = all.claims.first()?;
    let until = match claim.operation.as_str() {
        "InPlace" => {
            messages::restart_duration(inplace::is_resize_deferred(&observed.pod)).to_owned()
        }
        "Deadline" => messages::DEADLINE_DURATION.to_owned(),
        operation => {
            format!("until the admitted operation ({operation}) takes effect or is given up")
        }
    };
    let rule = messages::qualified_rule_name(&claim.object, "");
    Some(format!("holds a place in the budget of {rule} {until}"))
}

/// The message of a condition without its common prefix.
fn condition_clause(why: &str) -> &str {
    why.strip_prefix("nothing is held: ").unwrap_or(why)
}

/// An operation and what it waits for, in one clause. Events use this text too.
pub fn describe_operation(observed: &ObservedPod, operation: &OperationFacts) -> String {
    let age = operation.since.map_or_else(String::new, |since| {
        format!(" for {}", messages::format_ago(since, observed.now))
    });
    let waits: Vec<_> = operation
        .waits_for
        .iter()
        .map(|w| w.text.as_str())
        .collect();
    let OperationFacts { id, phase, .. } = operation;
    format!(
        "operation {id} has been in {phase}{age}, waiting for {}",
        waits.join("; and for ")
    )
}

/// Problems because of which the rules do not have their full effect.
fn diagnosis_warnings(observed: &ObservedPod, all: &Diagnosis) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(DryRunDeletion::Unanswered { .. }) = all.deletion {
        warnings.push(format!(
            "bring the admission server back, or take the way out of {SERVER_DOWN_DOC}"
        ));
    }
    let covering = observed
        .rules
        .iter()
        .filter(|r| r.set.selects(&observed.pod));
    warnings.extend(covering.filter_map(|rule| {
        let mut reasons = ["NotEnforced", "NotRegistered"].into_iter();
        let (reason, message) = reasons.find_map(|reason| rule.unenforced_message(reason))?;
        Some(format!(
            "PodTransitionRule {} is {reason}: {message}",
            rule.set.name
        ))
    }));
    let held = blocking_rule(all)
        .filter(|rule| rule.verdict == RuleVerdict::Holds && holds_deletions(rule));
    if let (Some(rule), Some(DryRunDeletion::Allowed)) = (held, &all.deletion)
        && all.pod.available
    {
        let by = messages::qualified_rule_name(&rule.object, &rule.rule);
        warnings.push(format!(
            "the API server would delete the Pod now although {by} holds it: the status of the rule trails by up to a \
             second, and you may have the right to go beyond the budget; if neither is so, the webhooks are not called here"
        ));
    }
    let budgets = all.disruption_budgets.iter().filter(|budget| budget.holds);
    warnings.extend(budgets.map(|budget| {
        format!(
            "an eviction is refused by PodDisruptionBudget {}, a deletion is not held by it: {}",
            budget.name, budget.reason
        )
    }));
    warnings
}

/// The rule that prevents an available Pod from going. Rules that hold deletions and evictions come first.
fn blocking_rule(all: &Diagnosis) -> Option<&RuleFacts> {
    let mut rules: Vec<_> = all
        .rules
        .iter()
        .filter(|rule| rule.stage == Stage::PreCheck.as_str())
        .filter(|rule| matches!(rule.verdict, RuleVerdict::Holds | RuleVerdict::Unknown))
        .collect();
    rules.sort_by_key(|rule| (rule.verdict == RuleVerdict::Unknown, !holds_deletions(rule)));
    rules.first().copied()
}

/// Whether a rule holds deletions and evictions. `labelCheck` and `webhook` rules hold only operations. A deletion is
/// an operation only with [`DeletionPath::Lifecycle`].
fn holds_deletions(rule: &RuleFacts) -> bool {
    let is_broken = rule.reason.starts_with(UNREADABLE_RULE);
    match is_broken {
        true => rule.reason.starts_with(UNREADABLE_LIMIT),
        false => rule.kind == "availablePolicy",
    }
}

/// What happens next, or what the user can do.
pub fn next_steps(observed: &ObservedPod, all: &Diagnosis) -> Vec<String> {
    let pod = &all.pod;
    if pod.terminating {
        let mut next = Vec::new();
        if !pod.finalizers.is_empty() {
            next.push(format!(
                "these finalizers are taken off: {}",
                pod.finalizers.join(", ")
            ));
        }
        let metadata = &observed.pod.metadata;
        if !next.is_empty() && metadata.deletion_grace_period_seconds == Some(0) {
            return next; // the kubelet has reported that the containers have ended
        }
        let due = pod
            .deletion_due
            .map(|due| due.duration_since(observed.now).as_secs());
        next.push(match due {
            Some(left) if left > 0 => {
                format!("the kubelet ends its containers, in {} at the latest", messages::format_age(left))
            }
            Some(late) => format!(
                "the kubelet ends its containers; that is overdue by {}: see whether its node is alive",
                messages::format_age(-late)
            ),
            None => "the kubelet ends its containers".to_owned(),
        });
        return next;
    }
    if observed.pod.is_finished() {
        return Vec::new();
    }
    if !pod.managed {
        return vec![format!(
            "to put it under rules and lifecycle: kubectl label pod {} -n {} {}={}",
            pod.name,
            pod.namespace,
            keys::CONTROL,
            keys::CONTROL_VALUE
        )];
    }
    let mut next: Vec<String> = all
        .operations
        .iter()
        .map(|o| format!("operation {}: {}", o.id, o.then))
        .chain(diagnosis_warnings(observed, all))
        .collect();
    if pod.to_delete && !all.operations.iter().any(|o| o.id == "pod-delete") {
        let text = "the deletion controller begins operation pod-delete, as the Pod is labelled";
        let waits = match grace_delete::scale_in_replica_set(&observed.pod) {
            Some(_) => ", unless as many others go already as its owner has Pods too many",
            None => "",
        };
        next.push(format!("{text} {}{waits}", keys::TO_DELETE));
    }
    if !next.is_empty() {
        return next;
    }
    if pod.unavailable_because.is_some() {
        let waits = service_obstacles::missing_cooperator_finalizers(&observed.pod);
        next.extend(
            waits
                .iter()
                .map(|obstacle| format!("the Pod is available after {obstacle}")),
        );
    } else if let Some(rule) = blocking_rule(all) {
        let by = messages::qualified_rule_name(&rule.object, &rule.rule);
        let until = match rule.reason.starts_with(UNREADABLE_RULE) {
            true => format!("until {by} is mended"),
            false => format!("until {by} lets it pass"),
        };
        next.push(match (deletion_path(observed), holds_deletions(rule)) {
            (DeletionPath::Lifecycle, _) => format!(
                "a deletion or eviction is refused with 429 and begins operation pod-delete (feature gate GraceDeleteWebhook), which \
                 waits in PreCheck {until}, as any other operation does"
            ),
            (_, true) => format!("a deletion or eviction is refused with 429, and an operation that begins waits in PreCheck, {until}"),
            (DeletionPath::Direct, false) => format!("an operation that begins waits in PreCheck {until}; deletions and evictions are not held by it"),
            (DeletionPath::Unknown, false) => format!(
                "an operation that begins waits in PreCheck {until}; deletions and evictions are not held by it without the feature \
                 gate GraceDeleteWebhook of the server; with it they are refused with 429 and begin operation pod-delete, which waits \
                 likewise"
            ),
        });
    }
    next
}
