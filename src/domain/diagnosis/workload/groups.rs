//! The Pods of a workload, grouped by what they wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{CoveringRule, WaitGroup, WaitGroupKind};
use super::stored::StoredWorkload;
use super::waits::{WaitContext, pod_wait};
use crate::domain::diagnosis::ObservedPod;
use crate::domain::diagnosis::facts::RuleVerdict;
use crate::domain::lifecycle::Stage;
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
    let reason = match (stored.problems.first(), stored.facts.paused) {
        (Some(problem), _) => problem.clone(),
        (None, true) if stored.facts.kind == "CollaSet" => {
            "the CollaSet is paused: set spec.paused to false to go on".to_owned()
        }
        _ => "its controller has not created them yet".to_owned(),
    };
    Some(WaitGroup {
        kind: WaitGroupKind::Missing,
        reason,
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
    let is_rolling_out = live_pods(pods).any(|pod| stored.is_to_be_updated(pod));
    if surplus == 0 || is_rolling_out || stored.facts.kind == "CollaSet" {
        return None;
    }
    let mut holding = rules.iter().map(|rule| &rule.rule);
    let holding = holding.find(|rule| {
        rule.verdict == RuleVerdict::Holds
            && rule.stage == Stage::PreCheck.as_str()
            && rule.kind == "availablePolicy"
    });
    let reason = match holding {
        Some(rule) => format!(
            "{}: {}",
            messages::qualified_rule_name(&rule.object, &rule.rule),
            rule.reason
        ),
        None => "its controller is to delete them".to_owned(),
    };
    Some(WaitGroup {
        kind: WaitGroupKind::Surplus,
        reason,
        count: surplus,
        pods: Vec::new(),
    })
}

fn live_pods(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter()
        .filter(|pod| !pod.is_terminating() && !pod.is_finished())
}
