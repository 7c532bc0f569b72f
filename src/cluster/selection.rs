//! Decides which Pods a rule object selects, managed or not: by the cache, and by one live read if the cache has none
//! of them.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use super::index::{IndexState, NamespaceIndex};
use super::kind::WatchedKind;
use super::owner_sizes::Workload;
use super::request_path;
use crate::api::keys;
use crate::domain::pod::Pod;
use crate::domain::rules::conditions::SelectorMatches;
use crate::domain::rules::rollouts::RolloutHeldCause;
use crate::domain::rules::{AvailabilityRules, RuleSet};

/// Whether the cache has a managed Pod that the rules select.
pub fn has_cached_pods(state: &IndexState, rules: &RuleSet) -> bool {
    state.namespace(&rules.namespace).is_some_and(|namespace| {
        let mut pods = namespace.pods.values();
        pods.any(|pod| rules.selects(pod))
    })
}

/// Whether the filters of the rules leave out all managed Pods that the selector matches, so that no deletion is held.
/// If there are no such Pods, the Pods that the owners create from their templates count instead. False if there are
/// neither.
pub fn is_all_filtered_out(state: &IndexState, rules: &RuleSet) -> bool {
    if !rules.has_only_filtered_limits() {
        return false;
    }
    let Some(namespace) = state.namespace(&rules.namespace) else {
        return false;
    };
    let pods = namespace.pods.values();
    let pods = pods.filter(|pod| rules.selects(pod) && !pod.is_finished());
    let mut labels = pods.map(|pod| &pod.metadata.labels).peekable();
    if labels.peek().is_some() {
        return !labels.any(|labels| rules.may_limit_labels(labels));
    }
    let owners = namespace.workloads().map(|(_, owner)| owner);
    let making = owners.filter(|owner| owner.replicas != Some(0) && is_selected(rules, owner));
    let mut labels = making
        .filter_map(|owner| owner.template_labels.as_ref())
        .peekable();
    labels.peek().is_some() && !labels.any(|labels| rules.may_limit_labels(labels))
}

/// Whether the rules select the Pods that an owner creates from its template. The labels of a template without managed
/// Pods are not kept.
pub fn is_selected(rules: &RuleSet, owner: &Workload) -> bool {
    let labels = owner.template_labels.as_ref();
    owner.template_labels_dropped || labels.is_some_and(|labels| rules.covers_labels(labels))
}

/// Whether the owner is a Deployment with the strategy `Recreate`, and the rules do not let it delete all of its Pods
/// at once, because it has more Pods than may be unavailable (`limit`).
pub fn is_recreate_held(rules: &RuleSet, owner: &Workload, limit: u32) -> bool {
    owner.recreates
        && owner.replicas.is_some_and(|n| n > limit)
        && pod_from_template(owner).is_some_and(|pod| {
            !matches!(rules.availability_rules(&pod), AvailabilityRules::NotHeld)
        })
}

/// The owner whose rollout deletes the Pods of `controller`, and why this rollout cannot end after the budget is used
/// up. `None` if the rollout can end. For a ReplicaSet the owner is its Deployment. A StatefulSet or a DaemonSet is its
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
        let wants = controller.replicas.is_some_and(|n| n > 0);
        let goes_on = controller.rolling && !controller.keeps_old;
        let leaves = wants && goes_on && !is_selected(rules, controller);
        return leaves.then_some((controller, RolloutHeldCause::Leaves));
    }
    let owner = controller.controller.as_ref()?;
    let deployment = namespace_index
        .workload(&owner.uid)
        .filter(|w| w.kind == WatchedKind::Deployment && w.replicas.is_some_and(|n| n > 0))?;
    if !is_selected(rules, deployment) {
        return Some((deployment, RolloutHeldCause::Leaves));
    }
    let mut siblings = namespace_index.workloads().filter(|(_, w)| {
        let other = w.controller.as_ref();
        other.is_some_and(|other| other.uid == owner.uid)
    });
    let recreates =
        is_recreate_held(rules, deployment, limit) && siblings.all(|(_, w)| w.replicas == Some(0));
    recreates.then_some((deployment, RolloutHeldCause::Recreates))
}

/// A Pod with the labels that the owner's template gives it. `None` if the template creates no managed Pods.
fn pod_from_template(owner: &Workload) -> Option<Pod> {
    let mut pod = Pod::default();
    pod.metadata.labels = owner.template_labels.clone()?;
    pod.metadata.labels_dropped = owner.template_labels_dropped;
    Some(pod)
}

/// Lists the metadata of one Pod that the selector matches, because the watch delivers only managed Pods. `None` if the
/// selector cannot be read, or if the API server refuses or does not answer within `limit`.
pub async fn query_matches(
    client: &Client,
    rules: &RuleSet,
    limit: Duration,
) -> Option<SelectorMatches> {
    let selector = rules.selector.as_ref().ok()?;
    let pods: Api<core::Pod> = request_path::namespaced_api(client, &rules.namespace).ok()?;
    let params = ListParams::default().labels(&selector.to_string()).limit(1);
    let listed = timeout(limit, pods.list_metadata(&params))
        .await
        .ok()?
        .ok()?;
    let found = listed
        .items
        .iter()
        .find(|pod| selector.matches(pod.labels()));
    Some(match found {
        None => SelectorMatches::Nothing,
        Some(pod)
            if pod.labels().get(keys::CONTROL).map(String::as_str) == Some(keys::CONTROL_VALUE) =>
        {
            SelectorMatches::Managed
        }
        Some(pod) => SelectorMatches::Unmanaged(pod.name_any()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;
    use crate::cluster::index::Index;
    use crate::cluster::owner_sizes;

    fn rules(tier: &str) -> RuleSet {
        let filter = json!({ "labelSelector": { "matchLabels": { "tier": tier } } });
        let object = json!({
            "metadata": { "namespace": "n", "name": "web", "uid": "rule" },
            "spec": { "selector": {}, "rules": [
                { "name": "a", "filter": filter, "availablePolicy": { "maxUnavailableValue": 1 } },
            ] },
        });
        RuleSet::compile(&serde_json::from_value(object).unwrap())
    }

    fn pod(name: &str, tier: &str, phase: &str) -> Pod {
        let labels = json!({ (keys::CONTROL): keys::CONTROL_VALUE, "tier": tier });
        let metadata = json!({ "namespace": "n", "name": name, "uid": name, "labels": labels });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } }))
            .unwrap()
    }

    /// Whether the rules block the rollout of a workload with three replicas and these template labels.
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
    fn rollout_is_blocked_if_new_template_leaves_rule() {
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

    #[test]
    fn filter_is_compared_with_every_selected_pod() {
        let index = Index::default();
        let filtered_out = |tier: &str| is_all_filtered_out(&index.read_state(), &rules(tier));
        assert!(!filtered_out("front"), "there is no Pod");
        index.apply_pod(pod("web-1", "back", "Running"));
        index.apply_pod(pod("web-2", "front", "Succeeded"));
        assert!(filtered_out("front") && !filtered_out("back"));
        index.apply_pod(pod("web-3", "front", "Running"));
        assert!(!filtered_out("front"));
    }
}
