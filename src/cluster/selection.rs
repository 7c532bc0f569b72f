//! Decides which Pods a rule object selects, managed or not: by the cache, and by one live read if the cache has none
//! of them.

use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use super::index::IndexState;
use super::owner_sizes::Workload;
use super::request_path;
use crate::api::keys;
use crate::domain::rules::RuleSet;
use crate::domain::rules::conditions::SelectorMatches;

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
    use crate::domain::pod::Pod;

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
