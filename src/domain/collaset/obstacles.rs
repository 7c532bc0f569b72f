//! Explains why a Pod in `podToInclude` can't enter the set, and names the command that helps.

use super::set_facts::SetFacts;
use crate::api::keys;
use crate::domain::pod::{Owner, Pod};

/// Names everything that prevents the Pod from entering, and the command that removes the first obstacle; `None` if the
/// Pod may enter. The text asks for labels only once no controller owns the Pod. The command is in backquotes at the
/// end of its sentence.
pub fn describe_obstacles(facts: &SetFacts, pod: &Pod) -> Option<String> {
    let owner = other_controller(facts, pod);
    if contradicts_exclusion(facts, pod) {
        let key = keys::TO_EXCLUDE;
        return Some(format!(
            "the spec or its label asks to exclude it, too; remove its label {key}, or its name from podToExclude"
        ));
    }
    if pod.is_terminating() || pod.is_finished() {
        return Some("it has ended".to_owned());
    }
    let (key, value) = (keys::CONTROL, keys::CONTROL_VALUE);
    let obstacles = [
        owner.map(|owner| format!("{} {} controls it", owner.kind, owner.name)),
        (!pod.is_managed()).then(|| format!("it lacks the label {key}: \"{value}\"")),
        (!facts.selector.matches(&pod.metadata.labels))
            .then(|| "the selector does not match its labels".to_owned()),
    ];
    let obstacles: Vec<String> = obstacles.into_iter().flatten().collect();
    if obstacles.is_empty() {
        return None;
    }
    let remedy = match owner {
        Some(owner) => release_command(facts, pod, owner),
        None => label_command(facts, pod),
    };
    Some(format!("{}. {remedy}", obstacles.join(", ")))
}

/// Whether the set is also asked to exclude the Pod. If another controller owns the Pod, the label `to-exclude` is
/// meant for that controller and does not count.
pub fn contradicts_exclusion(facts: &SetFacts, pod: &Pod) -> bool {
    match other_controller(facts, pod) {
        Some(_) => facts.strategy.exclude.contains(&pod.metadata.name),
        None => facts.is_to_exclude(pod),
    }
}

/// The controller of a Pod, if it is not this set.
fn other_controller<'a>(facts: &SetFacts, pod: &'a Pod) -> Option<&'a Owner> {
    pod.controller().filter(|_| !facts.controls(pod))
}

/// Describes how the controller of a Pod can release it.
fn release_command(facts: &SetFacts, pod: &Pod, owner: &Owner) -> String {
    let command = kubectl_command(facts, pod);
    if owner.is_collaset() {
        let key = keys::TO_EXCLUDE;
        return format!(
            "Have it excluded there, unless that set has podNamingSuffixPolicy PersistentSequence: `{command} {key}=true`"
        );
    }
    let (kind, name) = (&owner.kind, &owner.name);
    let hash = keys::POD_TEMPLATE_HASH;
    if owner.kind == "ReplicaSet" && pod.label(hash).is_some() {
        return format!(
            "{kind} {name} makes another Pod in its place once it is released. Release it: `{command} {hash}-`"
        );
    }
    format!(
        "Have it released by {kind} {name}: most controllers release a Pod whose labels their selector no longer matches"
    )
}

/// Returns the instruction, usually a `kubectl` command, to set the labels that a Pod lacks.
fn label_command(facts: &SetFacts, pod: &Pod) -> String {
    let mut labels = pod.metadata.labels.clone();
    let selector = facts.observed.set.spec.selector.as_ref();
    let selected = selector.and_then(|selector| selector.match_labels.as_ref());
    let selected = selected.into_iter().flatten();
    let selected = selected.map(|(key, value)| (key.as_str(), value.as_str()));
    let mut missing = Vec::new();
    for (key, value) in [(keys::CONTROL, keys::CONTROL_VALUE)]
        .into_iter()
        .chain(selected)
    {
        if labels.get(key).map(String::as_str) != Some(value) {
            missing.push(format!("{key}={value}"));
            labels.insert(key.to_owned(), value.to_owned());
        }
    }
    if !facts.selector.matches(&labels) {
        return "Change its labels as spec.selector says".to_owned();
    }
    let them = if pod.is_managed() || missing.len() > 1 {
        "them"
    } else {
        "it"
    };
    let (command, labels) = (kubectl_command(facts, pod), missing.join(" "));
    format!("Set {them}: `{command} {labels} --overwrite`")
}

fn kubectl_command(facts: &SetFacts, pod: &Pod) -> String {
    let namespace = facts.observed.set.metadata.namespace.as_deref();
    let (name, namespace) = (&pod.metadata.name, namespace.unwrap_or_default());
    format!("kubectl label pod {name} -n {namespace}")
}
