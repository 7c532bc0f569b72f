//! A CollaSet at rest whose Pods have many PodDecorations.

use std::sync::Arc;

use operating::api::selector::Selector;
use operating::domain::collaset::observed::ObservedSet;
use operating::domain::collaset::planner::plan_set;
use operating::domain::decoration::labels::{decoration_label, owner_reference};
use operating::domain::decoration::{Decoration, DecorationRevision};
use serde_json::json;

use crate::states::{NAME, edit, settled, typed};

/// Builds a set of this many Pods, each with the same `count` PodDecorations. Each PodDecoration adds one label.
pub fn decorated(size: usize, count: usize) -> ObservedSet {
    let mut observed = settled(size, false);
    let decorations: Vec<_> = (0..count).map(decoration).collect();
    for pod in &mut observed.pods {
        let metadata = &mut Arc::make_mut(pod).metadata;
        for decoration in &decorations {
            let revision = decoration.updated.clone().unwrap_or_default();
            metadata
                .labels
                .insert(decoration_label(&decoration.name), revision);
            metadata
                .labels
                .insert(added_label(&decoration.name), "on".to_owned());
            let reference = owner_reference(&decoration.name, &decoration.uid);
            metadata.owner_references.push(typed(reference));
        }
    }
    observed.decorations = decorations.into_iter().map(Arc::new).collect();
    let first = plan_set(&observed);
    if let (Some(contexts), Some(pool)) = (first.pool, &mut observed.pool) {
        Arc::make_mut(pool).contexts = contexts;
    }
    if let Some(status) = first.status {
        edit(&mut observed, |set| set.status = Some(status));
    }
    let plan = plan_set(&observed);
    assert!(plan.is_empty(), "not settled: {plan:#?}");
    observed
}

/// A PodDecoration that has reached all Pods.
fn decoration(index: usize) -> Decoration {
    let name = format!("decoration-{index:02}");
    let revision = DecorationRevision {
        decoration: name.clone(),
        name: format!("{name}-7d4b9c"),
        template: typed(json!({
            "metadata": [{ "patchPolicy": "Retain", "labels": { added_label(&name): "on" } }],
        })),
        weight: 0,
    };
    let selector = typed(json!({ "matchLabels": { "app": NAME } }));
    let selector = Selector::compile(&selector);
    Decoration {
        uid: format!("uid-{name}"),
        generation: 1,
        selector: Some(selector.unwrap_or_else(|e| unreachable!("{e:?}"))),
        updated: Some(revision.name.clone()),
        current: Some(revision.name.clone()),
        revisions: [(revision.name.clone(), Arc::new(revision))].into(),
        name,
        ..Decoration::default()
    }
}

/// The label that a PodDecoration adds.
fn added_label(decoration: &str) -> String {
    format!("bench.example.com/{decoration}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decorated_set_at_rest_has_empty_plan() {
        let observed = decorated(3, 5);
        assert_eq!(observed.decorations.len(), 5);
        let pod = &observed.pods[0];
        assert_eq!(pod.metadata.owner_references.len(), 1 + 5);
    }
}
