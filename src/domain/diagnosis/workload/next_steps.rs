//! What the user can do about a workload that waits, or where to read more.

use super::facts::{WaitGroup, WaitGroupKind, WorkloadDiagnosis, WorkloadFacts};
use crate::domain::diagnosis::facts::RuleVerdict;

/// The steps, the most useful one first.
pub fn next_steps(diagnosis: &WorkloadDiagnosis) -> Vec<String> {
    let facts = &diagnosis.workload;
    let WorkloadFacts {
        namespace, name, ..
    } = facts;
    let mut steps = Vec::new();
    let group_of = |kind| diagnosis.waits.iter().find(move |group| group.kind == kind);
    if let Some(group) = group_of(WaitGroupKind::Stuck) {
        steps.extend(stuck_step(group, facts));
    }
    if let Some(node) = group_of(WaitGroupKind::NodeLost).and_then(|group| group.node.as_ref()) {
        steps.push(format!(
            "see whether the node is Ready: kubectl describe node {node}"
        ));
    }
    let mut groups = diagnosis.waits.iter();
    let starting = groups.find(|group| {
        group.kind == WaitGroupKind::Unavailable && group.reason.contains("ContainerCreating")
    });
    if let Some(pod) = starting.and_then(|group| group.pods.first()) {
        steps.push(format!(
            "if it takes long, a Secret, a ConfigMap or a volume may be missing: kubectl describe pod {pod} -n {namespace}"
        ));
    }
    if group_of(WaitGroupKind::Missing).is_some() && diagnosis.problems.is_empty() {
        let kind = facts.kind.to_lowercase();
        steps.push(format!(
            "why Pods are missing: kubectl events --for {kind}/{name} -n {namespace}"
        ));
    }
    if !facts.observed && facts.kind == "CollaSet" {
        steps.push(
            "if this lasts, see whether a server runs: kubectl get pods -n kusionstack-system \
             (docs/server-down.md)"
                .to_owned(),
        );
    }
    let mut groups = diagnosis.waits.iter();
    let detailed = groups.find(|group| {
        !group.pods.is_empty()
            && !matches!(group.kind, WaitGroupKind::Stuck | WaitGroupKind::Finished)
    });
    let mut rules = diagnosis.rules.iter();
    let held = rules.find(|rule| rule.rule.verdict == RuleVerdict::Holds);
    let held = held.filter(|_| group_of(WaitGroupKind::Rule).is_some());
    let detailed = detailed.and_then(|group| group.pods.first());
    if let Some(pod) = detailed.or(held.map(|rule| &rule.pod)) {
        steps.push(format!(
            "more about a single Pod: kubectl operating why pod/{pod} -n {namespace}"
        ));
    }
    steps
}

/// A StatefulSet replaces no broken Pod of an older revision while this Pod is not Ready.
fn stuck_step(group: &WaitGroup, facts: &WorkloadFacts) -> Option<String> {
    let pod = group.pods.first()?;
    let namespace = &facts.namespace;
    let deletion = match facts.kind {
        "StatefulSet" => format!(
            "; after a correction of the template, delete the Pod: kubectl delete pod {pod} -n {namespace}"
        ),
        _ => String::new(),
    };
    Some(format!(
        "correct the cause; its Events: kubectl describe pod {pod} -n {namespace}{deletion}"
    ))
}
