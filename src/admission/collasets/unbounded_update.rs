//! Warns when nothing limits how many Pods an update makes unavailable at the same time.

use std::collections::BTreeMap;

use crate::api::collaset::CollaSetSpec;
use crate::api::keys;
use crate::cluster::index::Index;
use crate::domain::collaset::strategy::{ResolvedStrategy, UpdatePolicy, UpdateScope};

/// The warning that an update would take all Pods at once, when the spec begins to allow this. It considers only the
/// rules that this replica knows, because it is a hint and not a verdict.
pub fn unbounded_update_warning(
    index: &Index,
    namespace: &str,
    old: Option<&CollaSetSpec>,
    new: &CollaSetSpec,
) -> Option<String> {
    if !is_unbounded(new)
        || old.is_some_and(is_unbounded)
        || has_availability_rule(index, namespace, new)
    {
        return None;
    }
    Some(
        "spec.updateStrategy.maxUnavailable: is not set, and no PodTransitionRule with an availablePolicy selects the Pods, so a change \
         of spec.template updates all Pods at once; set it, or apply a rule"
            .to_owned(),
    )
}

/// Whether the spec lets an update take all Pods at once. `Replace` does not: it creates new Pods first.
fn is_unbounded(spec: &CollaSetSpec) -> bool {
    let strategy = ResolvedStrategy::from_spec(spec);
    strategy.replicas > 1
        && strategy.max_unavailable.is_none()
        && strategy.policy != UpdatePolicy::Replace
        && strategy.steps.is_empty()
        && matches!(strategy.scope, UpdateScope::Partition(0))
}

/// Whether a rule limits how many of the Pods of the template are unavailable.
fn has_availability_rule(index: &Index, namespace: &str, spec: &CollaSetSpec) -> bool {
    let labels = spec.template["metadata"]["labels"].as_object();
    let labels = labels.into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let mut labels: BTreeMap<String, String> = labels.collect();
    labels.insert(keys::CONTROL.to_owned(), keys::CONTROL_VALUE.to_owned());
    let state = index.read_state();
    let rules = state.namespace(namespace).into_iter();
    let mut rules = rules.flat_map(|namespace_index| namespace_index.rules.values());
    rules.any(|entry| {
        let rules = &entry.snapshot.rules;
        rules.covers_labels(&labels) && rules.may_limit_labels(&labels)
    })
}
