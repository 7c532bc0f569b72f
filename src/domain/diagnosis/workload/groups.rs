//! The Pods of a workload, grouped by what they wait for.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::facts::{CoveringRule, WaitGroup, WaitGroupKind};
use super::stored::StoredWorkload;
use super::waits::{WaitContext, holds_deletion, pod_wait};
use crate::domain::diagnosis::ObservedPod;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Reasons of the problems that prevent the creation of Pods.
const CREATION_FAILURES: [&str; 2] = ["FailedCreate", "ScaleOutFailed"];
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
    // How many Pods of each group the partition may keep.
    let mut may_be_kept: Vec<usize> = Vec::new();
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
                node: wait.node,
            });
            may_be_kept.push(0);
        }
        may_be_kept[position] += usize::from(wait.may_be_kept);
        if let Some(group) = groups.get_mut(position) {
            group.count += 1;
            if group.pods.len() < MAX_PODS {
                group.pods.push(pod.metadata.name.clone());
            }
        }
    }
    subtract_kept(&mut groups, may_be_kept, context.stored.kept_count());
    groups
}

/// Takes the Pods that the partition keeps out of the groups. These Pods wait for nothing.
fn subtract_kept(groups: &mut Vec<WaitGroup>, may_be_kept: Vec<usize>, kept_count: usize) {
    let mut kept = kept_count.min(may_be_kept.iter().sum());
    let total = kept;
    if kept == 0 {
        return;
    }
    // The groups at the end are those of the last Pods.
    for (group, may_be_kept) in groups.iter_mut().zip(may_be_kept).rev() {
        let taken = kept.min(may_be_kept);
        if taken > 0 {
            kept -= taken;
            group.count -= taken;
            // Which of these Pods the partition keeps is not known.
            group.pods.clear();
        }
    }
    groups.retain(|group| group.count > 0);
    groups.push(WaitGroup {
        kind: WaitGroupKind::Older,
        reason: "the partition keeps Pods on older revisions".to_owned(),
        detail: None,
        count: total,
        pods: Vec::new(),
        node: None,
    });
}

/// The Pods that the status counts as not updated, if it is not known which Pods these are. `None` if there are none, or
/// if a group has them.
pub fn uncounted_group(
    stored: &StoredWorkload,
    groups: &[WaitGroup],
    rules: &[CoveringRule],
) -> Option<WaitGroup> {
    let facts = &stored.facts;
    let older = facts.replicas.saturating_sub(facts.updated?);
    let is_explained = groups.iter().any(|group| {
        matches!(
            group.kind,
            WaitGroupKind::Older | WaitGroupKind::Rule | WaitGroupKind::Missing
        )
    });
    if older == 0 || stored.updated_label.is_some() || is_explained || !facts.observed {
        return None;
    }
    let mut rules = rules.iter().map(|rule| &rule.rule);
    let holding = rules.find(|rule| holds_deletion(rule));
    let (kind, reason) = match (&stored.keeps_older, holding) {
        (Some(reason), _) => (WaitGroupKind::Older, reason.clone()),
        (None, Some(rule)) => (
            WaitGroupKind::Rule,
            messages::qualified_rule_name(&rule.object, &rule.rule),
        ),
        (None, None) => (
            WaitGroupKind::Older,
            "its controller has yet to update them".to_owned(),
        ),
    };
    Some(WaitGroup {
        detail: holding
            .filter(|_| kind == WaitGroupKind::Rule)
            .map(|rule| rule.reason.clone()),
        kind,
        reason,
        count: usize::try_from(older).unwrap_or(usize::MAX),
        pods: Vec::new(),
        node: None,
    })
}

/// The Pods that are wanted and do not exist. `None` if there are none.
pub fn missing_group(stored: &StoredWorkload, pods: &[Arc<Pod>]) -> Option<WaitGroup> {
    let wanted = usize::try_from(stored.facts.replicas).unwrap_or(usize::MAX);
    let missing = wanted.saturating_sub(live_pods(pods).count());
    if missing == 0 || stored.facts.deleting_since.is_some() {
        return None;
    }
    let names_persist = matches!(stored.facts.kind, "StatefulSet" | "DaemonSet");
    let is_creation = |problem: &&String| {
        let mut reasons = CREATION_FAILURES.iter();
        reasons.any(|reason| problem.starts_with(reason))
    };
    let reason = match stored.problems.iter().find(is_creation) {
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
        node: None,
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
        node: None,
    })
}

fn live_pods(pods: &[Arc<Pod>]) -> impl Iterator<Item = &Arc<Pod>> {
    pods.iter()
        .filter(|pod| !pod.is_terminating() && !pod.is_finished())
}
