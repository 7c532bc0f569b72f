//! The Pods of a workload, grouped by what they wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{CoveringRule, WaitGroup, WaitGroupKind};
use super::stored::StoredWorkload;
use super::waits::{WaitContext, holds_deletion, pod_wait};
use crate::domain::diagnosis::ObservedPod;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Most Pods of a group that are named.
const MAX_PODS: usize = 5;

/// The groups of Pods that wait, in the order of the Pods. `view` is the observed state of any of them.
pub fn wait_groups(
    context: &WaitContext,
    view: &mut ObservedPod,
    pods: &[Arc<Pod>],
) -> Vec<WaitGroup> {
    let mut positions: BTreeMap<(WaitGroupKind, String), usize> = BTreeMap::new();
    let mut groups: Vec<WaitGroup> = Vec::new();
    for pod in pods {
        view.pod = Arc::clone(pod);
        let Some(wait) = pod_wait(context, view) else {
            continue;
        };
        let position = *positions
            .entry((wait.kind, wait.key))
            .or_insert(groups.len());
        if position == groups.len() {
            groups.push(WaitGroup {
                kind: wait.kind,
                reason: wait.reason,
                detail: wait.detail,
                count: 0,
                pods: Vec::new(),
            });
        }
        if let Some(group) = groups.get_mut(position) {
            group.count += 1;
            if group.pods.len() < MAX_PODS {
                group.pods.push(pod.metadata.name.clone());
            }
        }
    }
    groups
}

/// The Pods that are wanted and do not exist. `None` if there are none.
pub fn missing_group(stored: &StoredWorkload, pods: &[Arc<Pod>]) -> Option<WaitGroup> {
    let wanted = usize::try_from(stored.facts.replicas).unwrap_or(usize::MAX);
    let missing = wanted.saturating_sub(live_pods(pods).count());
    if missing == 0 || stored.facts.deleting_since.is_some() {
        return None;
    }
    let names_persist = matches!(stored.facts.kind, "StatefulSet" | "DaemonSet");
    let reason = match stored.problems.first() {
        Some(problem) => problem.clone(),
        None if stored.facts.paused && stored.facts.kind == "CollaSet" => {
            "the CollaSet is paused: set spec.paused to false to go on".to_owned()
        }
        None if names_persist && pods.iter().any(|pod| pod.is_terminating()) => {
            "a terminating Pod has to end before another takes its place".to_owned()
        }
        None if stored.is_ordered && live_pods(pods).any(|pod| !pod.is_ready()) => {
            "the StatefulSet creates a Pod when all Pods before it are Ready (podManagementPolicy OrderedReady)"
                .to_owned()
        }
        None => "its controller has yet to create what is missing".to_owned(),
    };
    Some(WaitGroup {
        kind: WaitGroupKind::Missing,
        reason,
        detail: None,
        count: missing,
        pods: Vec::new(),
    })
}

/// The Pods that exist beyond the wanted number, if all are of the present template. `None` if there are none. A
/// CollaSet begins an operation on each such Pod, which is reported with the Pod.
pub fn surplus_group(
    stored: &StoredWorkload,
    pods: &[Arc<Pod>],
    rules: &[CoveringRule],
) -> Option<WaitGroup> {
    let wanted = usize::try_from(stored.facts.replicas).unwrap_or(usize::MAX);
    let surplus = live_pods(pods).count().saturating_sub(wanted);
    let is_rolling_out = live_pods(pods).any(|pod| stored.is_older(pod));
    if surplus == 0 || is_rolling_out || stored.facts.kind == "CollaSet" {
        return None;
    }
    let mut rules = rules.iter().map(|rule| &rule.rule);
    let holding = rules.find(|rule| holds_deletion(rule));
    Some(WaitGroup {
        kind: WaitGroupKind::Surplus,
        reason: match holding {
            Some(rule) => messages::qualified_rule_name(&rule.object, &rule.rule),
            None => "the controller, to delete what is too many".to_owned(),
        },
        detail: holding.map(|rule| rule.reason.clone()),
        count: surplus,
        pods: Vec::new(),
    })
}

fn live_pods(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter()
        .filter(|pod| !pod.is_terminating() && !pod.is_finished())
}
