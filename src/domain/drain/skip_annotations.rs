//! Whether the server honours the annotation by which Pods skip rules.

use std::borrow::Cow;
use std::sync::Arc;

use super::answers::EvictionAnswer;
use super::facts::{BudgetKind, BudgetName};
use super::observed::{DrainedPod, ObservedNode};
use super::verdicts::is_named;
use crate::api::keys;
use crate::domain::diagnosis::RuleObject;
use crate::domain::pod::Pod;
use crate::domain::rules::AvailabilityRules;

/// The node as the server sees it: without the annotations that skip rules, if a refusal shows that the server ignores
/// them.
pub fn without_ignored_skips(node: &ObservedNode) -> Cow<'_, ObservedNode> {
    if !node.evicted_pods().any(|pod| is_skip_ignored(node, pod)) {
        return Cow::Borrowed(node);
    }
    let mut node = node.clone();
    for drained in &mut node.pods {
        drop_annotation(&mut drained.pod);
    }
    let namespaces = node.namespaces.values_mut();
    for pod in namespaces.filter_map(|n| n.pods.as_mut()).flatten() {
        drop_annotation(pod);
    }
    Cow::Owned(node)
}

/// Whether the API server refuses the eviction because of a rule that the annotation of the Pod skips.
fn is_skip_ignored(node: &ObservedNode, drained: &DrainedPod) -> bool {
    let DrainedPod { pod, answer, .. } = drained;
    let Some(EvictionAnswer::Refused { message, .. }) = answer else {
        return false;
    };
    if pod.annotation(keys::SKIP_RULE_CONDITIONS).is_none() {
        return false;
    }
    let namespace = node.namespaces.get(&pod.metadata.namespace);
    let mut rules = namespace.into_iter().flat_map(|n| n.rules.iter().flatten());
    rules.any(|object| names_skipped_rule(object, pod, message))
}

fn names_skipped_rule(object: &RuleObject, pod: &Arc<Pod>, message: &str) -> bool {
    let name = BudgetName {
        kind: BudgetKind::PodTransitionRule,
        namespace: object.set.namespace.clone(),
        name: object.set.name.clone(),
    };
    let mut bare = Arc::clone(pod);
    drop_annotation(&mut bare);
    let (kept, all) = (applying(object, pod), applying(object, &bare));
    let mut skipped = all.iter().filter(|rule| !kept.contains(rule));
    is_named(message, &name)
        && skipped.any(|rule| message.contains(&format!("by rule {rule} of PodTransitionRule ")))
}

/// The availability rules that hold the Pod.
fn applying<'a>(object: &'a RuleObject, pod: &'a Pod) -> Vec<&'a str> {
    match object.set.availability_rules(pod) {
        AvailabilityRules::Held(rules) => rules.into_iter().map(|(rule, _)| rule).collect(),
        AvailabilityRules::NotHeld | AvailabilityRules::Broken { .. } => Vec::new(),
    }
}

fn drop_annotation(pod: &mut Arc<Pod>) {
    if pod.annotation(keys::SKIP_RULE_CONDITIONS).is_some() {
        let annotations = &mut Arc::make_mut(pod).metadata.annotations;
        annotations.remove(keys::SKIP_RULE_CONDITIONS);
    }
}
