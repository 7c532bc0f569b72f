//! Which Pods a rule object selects, managed or not: by the cache, and by one read where the cache holds none of them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use tokio::time::timeout;

use super::index::State;
use super::path;
use crate::api::keys;
use crate::domain::rules::RuleSet;
use crate::domain::rules::effect::Matches;

/// Whether the cache holds a managed Pod that the rules select.
pub fn is_cached(state: &State, rules: &RuleSet) -> bool {
    state.namespace(&rules.namespace).is_some_and(|namespace| {
        let mut pods = namespace.pods.values();
        pods.any(|pod| rules.selects(pod))
    })
}

/// Lists one Pod of the selector, metadata alone: the watch brings managed Pods only. `None` when the selector can't be
/// read, or when the API server refuses or does not answer within `limit`.
pub async fn look(client: &Client, rules: &RuleSet, limit: Duration) -> Option<Matches> {
    let selector = rules.selector.as_ref().ok()?;
    let pods: Api<Pod> = path::namespaced(client, &rules.namespace).ok()?;
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
        None => Matches::Nothing,
        Some(pod)
            if pod.labels().get(keys::CONTROL).map(String::as_str) == Some(keys::CONTROL_VALUE) =>
        {
            Matches::Managed
        }
        Some(pod) => Matches::Unmanaged(pod.name_any()),
    })
}
