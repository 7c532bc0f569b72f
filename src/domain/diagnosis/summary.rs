//! The summary of a diagnosis in one sentence, and what happens next.

use std::collections::BTreeSet;

use super::ObservedPod;
use super::deletion_path::{self, DeletionPath};
use super::facts::{Diagnosis, DryRunDeletion, OperationFacts, PodFacts, RuleFacts, RuleVerdict};
use super::rules::{UNREADABLE_LIMIT, UNREADABLE_RULE};
use super::traffic;
use crate::api::keys;
use crate::domain::lifecycle::{Stage, service_obstacles};
use crate::domain::messages;
use crate::domain::rules::MAX_OBJECTS_PER_POD;
use crate::domain::{grace_delete, inplace};

/// The document with the remedy.
const SERVER_DOWN_DOC: &str = "docs/server-down.md";

/// The summary. `unenforced` says why the rules of the namespace are not enforced.
pub fn summarize(
    observed: &ObservedPod,
    diagnosis: &Diagnosis,
    unenforced: Option<&str>,
) -> String {
    if let Some(summary) = summarize_unaffected(observed, &diagnosis.pod) {
        return summary;
    }
    let name = &diagnosis.pod.name;
    if let Some(DryRunDeletion::Unanswered { .. }) = diagnosis.deletion {
        return format!(
            "Pod {name}: the admission server does not answer, so deletions are refused by the API server until it does; \
             see {SERVER_DOWN_DOC}"
        );
    }
    if let Some(reason) = unenforced {
        return summarize_unenforced(observed, diagnosis, reason);
    }
    if let Some(first) = diagnosis.operations.first() {
        let more = match diagnosis.operations.len() {
            1 => String::new(),
            n => format!(" ({} more in flight)", n - 1),
        };
        return format!("Pod {name}: {}{more}", describe_operation(observed, first));
    }
    if let Some(reason) = &diagnosis.pod.unavailable_because {
        return summarize_unavailable(diagnosis, reason);
    }
    if diagnosis.rules.is_empty() {
        return summarize_uncovered(observed, diagnosis);
    }
    let overlapping = count_covering_objects(diagnosis);
    if overlapping > MAX_OBJECTS_PER_POD {
        return format!(
            "Pod {name} is available, and held: {overlapping} PodTransitionRules with an availability rule cover it, and at most \
             {MAX_OBJECTS_PER_POD} may; merge them into fewer, or narrow their selectors"
        );
    }
    match blocking_rule(diagnosis) {
        Some(rule) => summarize_blocked(observed, name, rule),
        None => summarize_allowed(observed, diagnosis) + describe_first_step(observed),
    }
}

/// The summary of a Pod that no rule holds whatever the rules are: it is terminating, finished or not managed.
fn summarize_unaffected(observed: &ObservedPod, pod: &PodFacts) -> Option<String> {
    let name = &pod.name;
    if pod.terminating {
        let finalizers = pod.finalizers.join(", ");
        let reason = match pod.finalizers.len() {
            0 => "nothing holds it any more".to_owned(),
            1 => format!("it waits until finalizer {finalizers} is removed"),
            _ => format!("it waits until finalizers {finalizers} are removed"),
        };
        return Some(format!("Pod {name} is terminating: {reason}"));
    }
    if observed.pod.is_finished() {
        let phase = &observed.pod.status.phase;
        return Some(format!(
            "Pod {name} has finished ({phase}): no rule holds it"
        ));
    }
    let key = keys::CONTROL;
    (!pod.managed).then(|| {
        format!(
            "Pod {name} is not managed (no label {key}: \"true\"): no rule holds it, and it has no lifecycle"
        )
    })
}

fn summarize_unenforced(observed: &ObservedPod, diagnosis: &Diagnosis, reason: &str) -> String {
    let name = &diagnosis.pod.name;
    let deletion = match deletion_refusal(diagnosis) {
        Some(message) => format!("; the API server still refuses a deletion now: {message}"),
        None => describe_first_step(observed).to_owned(),
    };
    let operation = diagnosis.operations.first();
    let operation = operation.map_or_else(String::new, |operation| {
        format!("; {}", describe_operation(observed, operation))
    });
    let reason = condition_clause(reason);
    format!("Pod {name}: rules are not enforced here, because {reason}{deletion}{operation}")
}

fn summarize_unavailable(diagnosis: &Diagnosis, reason: &str) -> String {
    let name = &diagnosis.pod.name;
    let holding = blocking_rule(diagnosis)
        .filter(|rule| rule.verdict == RuleVerdict::Holds && rule.kind == "availablePolicy");
    let held_by = holding.map_or_else(String::new, |rule| {
        format!("; held by {}: {}", qualified_name(rule), rule.reason)
    });
    format!("Pod {name} is not available: {reason}{held_by}")
}

/// The summary of an available Pod that no rule object selects.
fn summarize_uncovered(observed: &ObservedPod, diagnosis: &Diagnosis) -> String {
    let PodFacts {
        name, namespace, ..
    } = &diagnosis.pod;
    let uncovered = format!(
        "Pod {name} is available, and no PodTransitionRule of namespace {namespace} selects it"
    );
    let summary = match (
        deletion_refusal(diagnosis),
        describe_owner_block(observed, diagnosis),
    ) {
        (Some(message), _) => {
            format!("{uncovered}, but the API server refuses a deletion now: {message}")
        }
        (None, Some(owner_block)) => format!("{uncovered}; {owner_block}"),
        (None, None) => match refusing_disruption_budgets(diagnosis) {
            Some(budgets) => format!("{uncovered}; an eviction is refused by {budgets}"),
            None => format!("{uncovered}: nothing holds it"),
        },
    };
    summary + describe_first_step(observed)
}

/// The summary of an available Pod that no rule of PreCheck holds.
fn summarize_allowed(observed: &ObservedPod, diagnosis: &Diagnosis) -> String {
    let name = &diagnosis.pod.name;
    if let Some(message) = deletion_refusal(diagnosis) {
        return format!(
            "Pod {name} is available, and no rule holds it, but the API server refuses a deletion now: {message}"
        );
    }
    if let Some(budget) = describe_held_budget(observed, diagnosis) {
        return format!("Pod {name} is available, and {budget}");
    }
    if let Some(rule) = return_blocking_rule(diagnosis) {
        let (rule_name, reason) = (qualified_name(rule), &rule.reason);
        return format!(
            "Pod {name} is available, and may go; the end of an operation on it would wait for {rule_name}: {reason}"
        );
    }
    match describe_owner_block(observed, diagnosis) {
        Some(owner_block) => {
            format!("Pod {name} is available, and no rule holds it; {owner_block}")
        }
        None => match refusing_disruption_budgets(diagnosis) {
            Some(budgets) => format!(
                "Pod {name} is available, and may be deleted; an eviction is refused by {budgets}"
            ),
            None => format!("Pod {name} is available, and may go"),
        },
    }
}

/// The summary of an available Pod that a rule of PreCheck holds or may hold.
fn summarize_blocked(observed: &ObservedPod, name: &str, rule: &RuleFacts) -> String {
    let (rule_name, reason) = (qualified_name(rule), &rule.reason);
    if rule.verdict == RuleVerdict::Unknown {
        return format!(
            "Pod {name} is available, and it is not known yet whether {rule_name} holds it: {reason}"
        );
    }
    if holds_deletions(rule) {
        return format!("Pod {name} is available, and held by {rule_name}: {reason}");
    }
    let deletions = match observed_deletion_path(observed) {
        DeletionPath::Lifecycle => ", a deletion too,",
        DeletionPath::Direct | DeletionPath::Unknown => "",
    };
    format!(
        "Pod {name} is available, and an operation on it{deletions} would wait for {rule_name}: {reason}"
    )
}

/// The name of a rule with the name of its object.
fn qualified_name(rule: &RuleFacts) -> String {
    messages::qualified_rule_name(&rule.object, &rule.rule)
}

fn observed_deletion_path(observed: &ObservedPod) -> DeletionPath {
    deletion_path::deletion_path(&observed.pod, observed.context.dry_run_deletion.as_ref())
}

fn deletion_refusal(diagnosis: &Diagnosis) -> Option<&str> {
    deletion_path::lasting_refusal(diagnosis.deletion.as_ref())
}

/// The PodDisruptionBudgets that refuse evictions now. `None` if there are none.
fn refusing_disruption_budgets(diagnosis: &Diagnosis) -> Option<String> {
    let budgets = diagnosis.disruption_budgets.iter();
    let names: Vec<&str> = budgets
        .filter(|budget| budget.holds)
        .map(|budget| &*budget.name)
        .collect();
    match names[..] {
        [] => None,
        [name] => Some(format!("PodDisruptionBudget {name}")),
        _ => Some(format!("PodDisruptionBudgets {}", names.join(", "))),
    }
}

/// The first step of a deletion through the lifecycle, as a clause. Empty if the deletion does not go through the
/// lifecycle.
fn describe_first_step(observed: &ObservedPod) -> &'static str {
    match observed_deletion_path(observed) {
        DeletionPath::Lifecycle => {
            "; a deletion or eviction takes it off traffic first, by operation pod-delete (feature gate GraceDeleteWebhook)"
        }
        DeletionPath::Direct | DeletionPath::Unknown => "",
    }
}

/// What prevents the CollaSet from working on the Pod, or else a refused write of the set that concerns the Pod. `None`
/// if the set has nothing to do to the Pod.
fn describe_owner_block(observed: &ObservedPod, diagnosis: &Diagnosis) -> Option<String> {
    let owner = diagnosis.owner.as_ref()?;
    let rollout = owner.rollout.as_ref()?;
    let is_behind = rollout.updated_revision != rollout.revision;
    let concerns_pod = is_behind || rollout.paused || observed.is_set_deleted();
    let mut problems = owner.troubles.iter();
    let problem = problems.find(|problem| {
        is_behind && problem.starts_with("UpdateFailed") || problem.contains(&*diagnosis.pod.name)
    });
    let remark = owner.remark.as_ref().filter(|_| concerns_pod);
    let text = remark.or(problem)?;
    Some(format!("{} {}: {text}", owner.kind, owner.name))
}

/// The first rule that would keep the Pod off traffic after an operation.
fn return_blocking_rule(diagnosis: &Diagnosis) -> Option<&RuleFacts> {
    let mut rules = diagnosis.rules.iter();
    rules.find(|rule| rule.stage == Stage::PostCheck.as_str() && rule.verdict == RuleVerdict::Holds)
}

/// How many rule objects with an availability rule cover the Pod.
fn count_covering_objects(diagnosis: &Diagnosis) -> usize {
    let limits = diagnosis
        .rules
        .iter()
        .filter(|rule| rule.kind == "availablePolicy");
    let objects: BTreeSet<&str> = limits.map(|rule| rule.object.as_str()).collect();
    objects.len()
}

/// The claim by which an available Pod uses a budget, and when the claim ends. `None` if the Pod has no claim.
fn describe_held_budget(observed: &ObservedPod, diagnosis: &Diagnosis) -> Option<String> {
    let claim = diagnosis.claims.first()?;
    let until = match claim.operation.as_str() {
        "InPlace" => {
            messages::restart_duration(inplace::is_resize_deferred(&observed.pod)).to_owned()
        }
        "Deadline" => messages::DEADLINE_DURATION.to_owned(),
        operation => {
            format!("until the admitted operation ({operation}) takes effect or is abandoned")
        }
    };
    let rule = messages::qualified_rule_name(&claim.object, "");
    Some(format!("holds a claim on the budget of {rule} {until}"))
}

/// The message of a condition without its common prefix.
fn condition_clause(message: &str) -> &str {
    message.strip_prefix("nothing is held: ").unwrap_or(message)
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
fn diagnosis_warnings(observed: &ObservedPod, diagnosis: &Diagnosis) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Some(DryRunDeletion::Unanswered { .. }) = diagnosis.deletion {
        warnings.push(format!(
            "restart the admission server, or follow {SERVER_DOWN_DOC}"
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
    let holding = blocking_rule(diagnosis)
        .filter(|rule| rule.verdict == RuleVerdict::Holds && holds_deletions(rule));
    if let (Some(rule), Some(DryRunDeletion::Allowed)) = (holding, &diagnosis.deletion)
        && diagnosis.pod.available
    {
        let rule_name = messages::qualified_rule_name(&rule.object, &rule.rule);
        warnings.push(format!(
            "the API server would delete the Pod now although {rule_name} holds it: either the status of the rule is \
             up to a second old, or you have the right to bypass the budget, or the API server does not call the \
             webhooks here"
        ));
    }
    let budgets = diagnosis
        .disruption_budgets
        .iter()
        .filter(|budget| budget.holds);
    warnings.extend(budgets.map(|budget| {
        format!(
            "an eviction is refused by PodDisruptionBudget {}, a deletion is not: {}",
            budget.name, budget.reason
        )
    }));
    warnings
}

/// The rule that prevents an available Pod from going. Rules that hold deletions and evictions come first.
fn blocking_rule(diagnosis: &Diagnosis) -> Option<&RuleFacts> {
    let mut rules: Vec<_> = diagnosis
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
pub fn next_steps(observed: &ObservedPod, diagnosis: &Diagnosis) -> Vec<String> {
    let pod = &diagnosis.pod;
    let remedies = diagnosis.traffic.iter();
    let remedies = remedies.filter_map(|facts| {
        let remedy = facts.remedy.as_ref()?;
        Some(format!("{}: {remedy}", traffic::employer_title(facts)))
    });
    if pod.terminating {
        let steps = termination_steps(observed, pod).into_iter();
        return steps.chain(remedies).collect();
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
    let mut steps: Vec<String> = diagnosis
        .operations
        .iter()
        .map(|operation| format!("operation {}: {}", operation.id, operation.then))
        .chain(diagnosis_warnings(observed, diagnosis))
        .chain(requested_deletion_step(observed, diagnosis))
        .chain(remedies)
        .collect();
    if !steps.is_empty() {
        return steps;
    }
    if pod.unavailable_because.is_some() {
        let obstacles = service_obstacles::missing_cooperator_finalizers(&observed.pod);
        steps.extend(
            obstacles
                .iter()
                .map(|obstacle| format!("the Pod is available after {obstacle}")),
        );
    } else if let Some(rule) = blocking_rule(diagnosis) {
        steps.push(describe_blocked_requests(observed, rule));
    }
    steps
}

/// What ends a terminating Pod: the removal of its finalizers, and the kubelet.
fn termination_steps(observed: &ObservedPod, pod: &PodFacts) -> Vec<String> {
    let mut steps = Vec::new();
    if !pod.finalizers.is_empty() {
        steps.push(format!(
            "these finalizers are removed: {}",
            pod.finalizers.join(", ")
        ));
    }
    let metadata = &observed.pod.metadata;
    if !steps.is_empty() && metadata.deletion_grace_period_seconds == Some(0) {
        return steps; // the kubelet has reported that the containers have ended
    }
    let seconds_to_end = pod
        .deletion_due
        .map(|due| due.duration_since(observed.now).as_secs());
    steps.push(match seconds_to_end {
        Some(remaining) if remaining > 0 => format!(
            "the kubelet ends its containers, in {} at the latest",
            messages::format_age(remaining)
        ),
        Some(remaining) => format!(
            "the kubelet ends its containers; that is overdue by {}: see whether its node is alive",
            messages::format_age(-remaining)
        ),
        None => "the kubelet ends its containers".to_owned(),
    });
    steps
}

/// The begin of the deletion that the label `to-delete` asks for. `None` without the label, or if the deletion has
/// begun.
fn requested_deletion_step(observed: &ObservedPod, diagnosis: &Diagnosis) -> Option<String> {
    let mut operations = diagnosis.operations.iter();
    let has_begun = operations.any(|operation| operation.id == grace_delete::DELETION_ID);
    let scale_in = match grace_delete::scale_in_replica_set(&observed.pod) {
        Some(_) => ", unless enough other Pods of its owner are already leaving",
        None => "",
    };
    (diagnosis.pod.to_delete && !has_begun).then(|| {
        format!(
            "the deletion controller begins operation pod-delete, as the Pod is labelled {}{scale_in}",
            keys::TO_DELETE
        )
    })
}

/// What happens to a request for a disruption while the rule holds the Pod.
fn describe_blocked_requests(observed: &ObservedPod, rule: &RuleFacts) -> String {
    let rule_name = qualified_name(rule);
    if rule.verdict == RuleVerdict::Unknown {
        let metadata = &observed.pod.metadata;
        return format!(
            "the server decides about a deletion or eviction when the request arrives; ask it with: kubectl delete pod {} -n {} \
             --dry-run=server",
            metadata.name, metadata.namespace
        );
    }
    let until = match rule.reason.starts_with(UNREADABLE_RULE) {
        true => format!("until {rule_name} is corrected"),
        false => format!("until {rule_name} lets it pass"),
    };
    match (observed_deletion_path(observed), holds_deletions(rule)) {
        (DeletionPath::Lifecycle, _) => format!(
            "a deletion or eviction is refused with 429 and begins operation pod-delete (feature gate GraceDeleteWebhook), which \
             waits in PreCheck {until}, as any other operation does"
        ),
        (_, true) => format!(
            "a deletion or eviction is refused with 429, and an operation that begins waits in PreCheck, {until}"
        ),
        (DeletionPath::Direct, false) => format!(
            "an operation that begins waits in PreCheck {until}; deletions and evictions are not held by it"
        ),
        (DeletionPath::Unknown, false) => format!(
            "an operation that begins waits in PreCheck {until}; deletions and evictions are not held by it without the feature \
             gate GraceDeleteWebhook of the server; with it they are refused with 429 and begin operation pod-delete, which \
             also waits"
        ),
    }
}
