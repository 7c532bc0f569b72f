//! Decides whether the rollout of one owner cannot end once the budget is used up. Admission asks about the owner of a
//! Pod; `controllers/rules/rollouts.rs` asks about all owners of a rule object.

use super::index::NamespaceIndex;
use super::kind::WatchedKind;
use super::owner_sizes::Workload;
use super::selection::is_selected;
use crate::domain::pod::Pod;
use crate::domain::rules::conditions::rollouts_held::RolloutHeldCause;
use crate::domain::rules::{AvailabilityRules, RuleSet};

/// Whether the owner is a Deployment with the strategy `Recreate`, and the rules do not let it delete all of its Pods
/// at once, because it has more Pods than may be unavailable (`limit`).
pub fn is_recreate_held(rules: &RuleSet, owner: &Workload, limit: u32) -> bool {
    owner.recreates
        && owner.replicas.is_some_and(|n| n > limit)
        && pod_from_template(owner).is_some_and(|pod| {
            !matches!(rules.availability_rules(&pod), AvailabilityRules::NotHeld)
        })
}

/// The owner whose rollout deletes the Pods of `controller`, and why the rollout is held once the budget is used up.
/// `None` if the rollout can end. For a ReplicaSet the owner is its Deployment. A StatefulSet or a DaemonSet is its
/// own owner here. `limit` is how many Pods may be unavailable.
pub fn held_rollout<'a>(
    namespace_index: &'a NamespaceIndex,
    rules: &RuleSet,
    controller: &'a Workload,
    limit: u32,
) -> Option<(&'a Workload, RolloutHeldCause)> {
    if matches!(
        controller.kind,
        WatchedKind::StatefulSet | WatchedKind::DaemonSet
    ) {
        let wants_pods = controller.replicas.is_some_and(|n| n > 0);
        let is_rolling = controller.rolling && !controller.keeps_old;
        let leaves_rule = wants_pods && is_rolling && !is_selected(rules, controller);
        return leaves_rule.then_some((controller, RolloutHeldCause::Leaves));
    }
    let owner = controller.controller.as_ref()?;
    let deployment = namespace_index
        .workload(&owner.uid)
        .filter(|w| w.kind == WatchedKind::Deployment && w.replicas.is_some_and(|n| n > 0))?;
    if !is_selected(rules, deployment) {
        return Some((deployment, RolloutHeldCause::Leaves));
    }
    let mut siblings = namespace_index.workloads().filter(|(_, w)| {
        let controller = w.controller.as_ref();
        controller.is_some_and(|controller| controller.uid == owner.uid)
    });
    let is_held =
        is_recreate_held(rules, deployment, limit) && siblings.all(|(_, w)| w.replicas == Some(0));
    is_held.then_some((deployment, RolloutHeldCause::Recreates))
}

/// A Pod with the labels that the owner's template gives it. `None` if the template creates no managed Pods.
fn pod_from_template(owner: &Workload) -> Option<Pod> {
    let mut pod = Pod::default();
    pod.metadata.labels = owner.template_labels.clone()?;
    pod.metadata.labels_dropped = owner.template_labels_dropped;
    Some(pod)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::api::keys;
    use crate::cluster::index::Index;
    use crate::cluster::owner_sizes;

    /// Whether the rules hold the rollout of a workload with three replicas and these template labels.
    fn is_held(kind: WatchedKind, labels: &serde_json::Value, rolling: bool) -> bool {
        let object = json!({
            "metadata": { "namespace": "n", "name": "db", "uid": "db", "resourceVersion": "1", "generation": 2 },
            "spec": { "replicas": 3, "template": { "metadata": { "labels": labels } } },
            "status": match kind {
                WatchedKind::DaemonSet => json!({
                    "observedGeneration": 2, "desiredNumberScheduled": 3,
                    "updatedNumberScheduled": if rolling { 1 } else { 3 },
                }),
                _ => json!({
                    "currentRevision": "a", "updateRevision": if rolling { "b" } else { "a" },
                }),
            },
        });
        let (_, uid, set) = owner_sizes::parse_workload(kind, object).unwrap();
        let index = Index::default();
        index.set_workload("n", uid, Some(set));
        let rule = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
            "spec": { "selector": { "matchLabels": { "app": "db" } }, "rules": [
                { "name": "a", "availablePolicy": { "maxUnavailableValue": 1 } },
            ] },
        });
        let rules = RuleSet::compile(&serde_json::from_value(rule).unwrap());
        let state = index.read_state();
        let namespace_index = state.namespace("n").unwrap();
        let found = held_rollout(
            namespace_index,
            &rules,
            namespace_index.workload("db").unwrap(),
            1,
        );
        found.is_some_and(|(owner, cause)| owner.name == "db" && cause == RolloutHeldCause::Leaves)
    }

    #[test]
    fn rollout_is_held_if_new_template_leaves_rule() {
        let control = keys::CONTROL_VALUE;
        for kind in [WatchedKind::StatefulSet, WatchedKind::DaemonSet] {
            let held = |labels, rolling| is_held(kind, &labels, rolling);
            assert!(held(json!({ "app": "db" }), true), "{kind:?} unmanaged");
            let other = json!({ "app": "other", (keys::CONTROL): control });
            assert!(held(other.clone(), true), "{kind:?} of another label");
            assert!(!held(other, false), "{kind:?} without a rollout");
            let same = json!({ "app": "db", (keys::CONTROL): control });
            assert!(!held(same, true), "{kind:?} that stays");
        }
    }
}
