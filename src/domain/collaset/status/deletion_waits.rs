//! Describes for the conditions what the Pods of a set that is being deleted wait for.

use super::super::draft::Draft;
use super::super::plan::PvcChange;
use super::super::reclaim;
use super::super::set_facts::SetFacts;
use super::finalizer_waits::{blocking_finalizers, describe_finalizer_wait};
use super::{MAX_NAMES, waits};
use crate::domain::grace_delete;
use crate::domain::lifecycle::{Phase, stored_phase};
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Why a Pod still exists. Reasons that may need an action come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LeaveBlocker {
    ByRules,
    ByFinalizers,
    OnTraffic,
    Undeleted,
    Terminating,
}

/// Describes what the first Pods wait for, each after `; `. Pods that wait for rules come first, then Pods that
/// finalizers keep.
pub fn describe_leaving_pods(facts: &SetFacts) -> String {
    let pods = facts.observed.pods.iter();
    let mut pods: Vec<_> = pods
        .filter_map(|pod| Some((leave_blocker(pod)?, pod)))
        .collect();
    pods.sort_by_key(|(blocker, _)| *blocker);
    let descriptions = pods.into_iter().take(MAX_NAMES).map(|(blocker, pod)| {
        let wait = match blocker {
            LeaveBlocker::ByRules => waits::describe_rule_wait(facts, pod),
            LeaveBlocker::ByFinalizers => describe_finalizer_wait(pod),
            LeaveBlocker::OnTraffic => waits::describe_traffic_wait(facts, pod),
            LeaveBlocker::Undeleted => match facts.deletion_refusal(pod) {
                Some(reason) => format!("is off traffic, and its deletion is refused: {reason}"),
                None => "is off traffic and waits for its deletion".to_owned(),
            },
            LeaveBlocker::Terminating => "is terminating".to_owned(),
        };
        format!("; Pod {} {wait}", pod.metadata.name)
    });
    descriptions.collect()
}

/// Names the PVCs that are yet to be released or deleted, after `; `; empty if there are none.
pub fn describe_remaining_pvcs(draft: &Draft) -> String {
    let names = |releases: bool| -> Vec<&str> {
        let named = draft.pvcs.iter().filter_map(|change| match change {
            PvcChange::Delete(pvc) if !releases => Some(&*pvc.name),
            PvcChange::Patch { pvc, .. } | PvcChange::Retain(pvc) if releases => Some(&*pvc.name),
            _ => None,
        });
        named.collect()
    };
    let describe = |action: &str, names: &[&str]| match names.is_empty() {
        true => String::new(),
        false => format!(
            "; PersistentVolumeClaims to be {action}: {}",
            messages::list_names(names, MAX_NAMES)
        ),
    };
    describe("released", &names(true)) + &describe("deleted", &names(false))
}

/// Describes what a set that is deleted without its Pods waits for; `None` for a set that is deleted with its Pods.
pub fn describe_orphaning(facts: &SetFacts) -> Option<String> {
    let (observed, set) = (facts.observed, &facts.observed.set.metadata);
    if !reclaim::orphans_its_pods(set) {
        return None;
    }
    let pvcs = observed.pvcs.iter();
    let pvcs = pvcs.filter(|pvc| pvc.controller == set.uid);
    let revisions = observed.revisions.iter();
    let revisions = revisions.filter(|r| r.controller == set.uid);
    let kinds: [(&str, Vec<&str>); 3] = [
        (
            "Pods",
            observed.pods.iter().map(|p| &*p.metadata.name).collect(),
        ),
        ("PersistentVolumeClaims", pvcs.map(|c| &*c.name).collect()),
        ("ControllerRevisions", revisions.map(|r| &*r.name).collect()),
    ];
    let remaining = kinds.iter().filter(|(_, names)| !names.is_empty());
    let remaining = remaining
        .map(|(kind, names)| format!("; {kind} {}", messages::list_names(names, MAX_NAMES)));
    let is_left = kinds.iter().all(|(_, names)| names.is_empty());
    let wait = match reclaim::awaits_garbage_collector(set) {
        true if is_left => {
            "waits for the garbage collector to remove the finalizer orphan; if this lasts for minutes, the API server \
             can't call the webhook collaset-leaving.apps.kusionstack.io: see docs/server-down.md"
        }
        true => {
            "waits for the garbage collector to remove the owner references of the objects that stay, and then the \
             finalizer orphan"
        }
        false => "the controller removes the owner references that the garbage collector has left",
    };
    Some(format!("{wait}{}", remaining.collect::<String>()))
}

/// Returns `None` for a Pod whose deletion has not begun.
fn leave_blocker(pod: &Pod) -> Option<LeaveBlocker> {
    let is_kept = blocking_finalizers(pod).next().is_some();
    if pod.is_terminating() && !is_kept {
        return Some(LeaveBlocker::Terminating);
    }
    match stored_phase(pod, grace_delete::DELETION_ID) {
        _ if pod.is_terminating() => Some(LeaveBlocker::ByFinalizers),
        Phase::Idle => None,
        Phase::PreCheck => Some(LeaveBlocker::ByRules),
        Phase::Preparing if is_kept => Some(LeaveBlocker::ByFinalizers),
        Phase::Preparing => Some(LeaveBlocker::OnTraffic),
        _ => Some(LeaveBlocker::Undeleted),
    }
}
