//! Decides which Pods leave the set and which enter it (contract 6.0 and contract 6.4).

use std::collections::BTreeSet;
use std::sync::Arc;

use super::draft::Draft;
use super::headroom::Headroom;
use super::inclusion;
use super::observed::Pvc;
use super::pairs;
use super::plan::OwnershipChange;
use super::pool;
use super::pvcs;
use super::set_facts::SetFacts;
use super::set_operations::{self, SetOperation};
use super::status::waits;
use super::update;
use crate::api::keys;
use crate::domain::messages;
use crate::domain::pod::Pod;

/// Labels of the two Pods of a replace pair.
const PAIR_LABELS: [&str; 3] = [
    keys::TO_REPLACE,
    keys::REPLACE_PAIR_NEW_ID,
    keys::REPLACE_PAIR_ORIGIN_NAME,
];

/// Most names in one Event.
const MAX_NAMES: usize = 20;

/// Releases Pods that the selector no longer matches, deletes finished Pods (contract Q38), excludes and includes Pods.
/// Returns true if a Pod leaves or enters. The rest of the plan waits for that Pod, unless the API server recently
/// refused the write.
pub fn settle_membership(facts: &SetFacts, draft: &mut Draft) -> bool {
    let mut moved = release_unselected(facts, draft);
    for pod in &facts.finished {
        moved |= settle_finished(facts, draft, pod);
    }
    report_unknown_names(facts, draft);
    for pod in &facts.observed.unmanaged {
        inclusion::refuse_unmanaged(facts, draft, pod);
    }
    for (id, pod) in &facts.members {
        if facts.is_to_exclude(pod) && may_leave_set(facts, draft, *id, pod) {
            exclude_pod(facts, draft, *id, pod);
            moved |= !facts.is_leaving_refused(*id, pod);
        }
    }
    let (pods_to_include, orphans) = (&facts.observed.pods_to_include, &facts.observed.orphans);
    if pods_to_include.is_empty() && orphans.is_empty() {
        return moved;
    }
    let mut headroom = Headroom::beside_draft(facts, draft);
    // Orphans come first: an orphan enters under its own ID or not at all.
    moved |= inclusion::adopt_orphans(facts, draft, &mut headroom);
    for pod in pods_to_include {
        moved |= inclusion::include_pod(facts, draft, &mut headroom, pod);
    }
    moved
}

/// Releases the Pods that the selector no longer matches, each after its PVCs. Returns true if a Pod leaves and the API
/// server did not refuse the write recently.
fn release_unselected(facts: &SetFacts, draft: &mut Draft) -> bool {
    let mut moved = false;
    for pod in &facts.unselected {
        // Do not release a PVC that a member mounts too. Such a member was created on the PVCs of a Pod that had ended,
        // and the PVCs are its own.
        let is_staying_member =
            |other: &Arc<Pod>| facts.is_member(other) && !facts.leaves_alive(other);
        let own = facts.owned_pvcs_of_pod(pod);
        let own = own.filter(|pvc| {
            let mut mounting = facts.pods_mounting(&pvc.name).iter();
            !mounting.any(is_staying_member)
        });
        if release_pvcs(draft, own) {
            update::return_to_service(facts, draft, pod); // the release of the PVCs may be refused for long
        } else {
            release_pod(facts, draft, pod);
            let name = &pod.metadata.name;
            let message =
                format!("Pod {name} has left: spec.selector does not match its labels any more");
            draft.announce_once_written(pod, "ExcludeTarget", message);
            let id = facts
                .instance_id_of(pod)
                .filter(|id| !facts.is_id_held(*id));
            id.and_then(|id| draft.ids.remove(&id));
        }
        moved |= !facts.is_write_refused(pod);
    }
    moved
}

/// Excludes a finished Pod, keeps it for a later step, or deletes it. Returns true if the Pod leaves alive and the API
/// server did not refuse the write recently.
fn settle_finished(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) -> bool {
    let id = facts
        .instance_id_of(pod)
        .filter(|id| !facts.members.contains_key(id));
    let excluded_id = id.filter(|_| facts.is_to_exclude(pod));
    if let Some(id) = excluded_id.filter(|id| may_leave_set(facts, draft, *id, pod)) {
        exclude_pod(facts, draft, id, pod); // the PVCs leave first, so that no other Pod is created on them
        return !facts.is_leaving_refused(id, pod);
    }
    if let Some(id) = excluded_id.filter(|_| facts.leaves_alive(pod)) {
        draft.leaving.insert(id); // the Pod stays until it can leave
        return false;
    }
    // An exclusion was withdrawn after some PVCs had left: the next Pod of the ID must get these volumes. If another
    // instance has taken the place, do not take the PVCs back, because a scale-in would delete them.
    if id.is_some_and(|id| draft.returning.contains(&id)) {
        return false; // another finished Pod of this ID brings the PVCs back
    }
    if let Some(id) = id.filter(|id| inclusion::may_instance_return(facts, draft, *id))
        && !inclusion::has_other_pvcs(facts, pod, id)
        && !do_pvcs_leave_with_another(facts, pod)
        && inclusion::take_mounted_pvcs(facts, draft, pod, id)
    {
        pool::take_id(facts, draft, id, None); // the ID was freed when the PVCs left
        draft.returning.insert(id);
        return false;
    }
    if let Some(until) = facts.recreation_due_at(pod) {
        draft.requeue_after(until.saturating_sub(facts.observed.now_nanos).max(1));
        return false;
    }
    let (name, phase) = (&pod.metadata.name, &pod.status.phase);
    let released_pvcs = describe_released_pvcs(facts, pod);
    let message = format!("Pod {name} was {phase} and is deleted{released_pvcs}");
    draft.delete_and_announce(pod, "TargetDeleted", message);
    false
}

/// Writes `minReadySeconds` of the spec to the Pods whose annotation differs. The lifecycle reads the annotation.
pub fn update_min_ready(facts: &SetFacts, draft: &mut Draft) {
    let seconds = facts.strategy.min_ready_seconds;
    let wanted = (seconds > 0).then(|| seconds.to_string());
    for pod in facts.members.values() {
        if pod.annotation(keys::MIN_READY_SECONDS) != wanted.as_deref() {
            draft.patch_annotation(pod, keys::MIN_READY_SECONDS, wanted.clone());
        }
    }
}

/// Whether PVCs that a Pod mounts leave, or have left, together with another Pod that mounts them. This happens if both
/// Pods had one ID, one after the end of the other.
fn do_pvcs_leave_with_another(facts: &SetFacts, pod: &Pod) -> bool {
    let mut mounting = pod
        .spec
        .pvcs
        .iter()
        .flat_map(|pvc_name| facts.pods_mounting(pvc_name));
    mounting.any(|other| {
        let leaves = facts.leaves_alive(other) || !facts.selector.matches(&other.metadata.labels);
        let is_out = !facts.controls(other) && !other.is_finished();
        other.metadata.uid != pod.metadata.uid && (is_out || leaves)
    })
}

/// Describes the PVCs of a Pod that have left the set and that no Pod takes back; empty if there are none.
fn describe_released_pvcs(facts: &SetFacts, pod: &Pod) -> String {
    let pvcs = pod.spec.pvcs.iter().filter_map(|name| facts.find_pvc(name));
    let released = pvcs.filter(|c| c.labels.contains_key(keys::ORPHANED) && !c.terminating);
    released
        .map(|pvc| format!("; PVC {} has left the CollaSet and stays", pvc.name))
        .collect()
}

/// Reports the names in the lists of a new spec that no Pod has.
fn report_unknown_names(facts: &SetFacts, draft: &mut Draft) {
    let set = &facts.observed.set;
    let observed_generation = set.status.as_ref().map(|status| status.observed_generation);
    let strategy = &facts.strategy;
    let (delete, include, exclude) = (&strategy.delete, &strategy.include, &strategy.exclude);
    let named = [delete, include, exclude]
        .iter()
        .any(|names| !names.is_empty());
    if observed_generation == set.metadata.generation || !named {
        return;
    }
    let own = facts.observed.pods.iter();
    let own: BTreeSet<&str> = own.map(|pod| &*pod.metadata.name).collect();
    let to_include = facts.observed.pods_to_include.iter();
    let to_include: BTreeSet<&str> = to_include.map(|pod| &*pod.metadata.name).collect();
    let unknown = |names: &BTreeSet<String>, existing: &[&BTreeSet<&str>]| {
        let is_known = |name: &str| existing.iter().any(|existing| existing.contains(name));
        let names = names.iter().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| !is_known(name)).collect();
        (!names.is_empty()).then(|| messages::list_names(&names, MAX_NAMES))
    };
    if let Some(names) = unknown(delete, &[&own]) {
        let message =
            format!("podToDelete: {names}: no such Pod in the CollaSet; remove these names");
        draft.announce_event(true, "DeleteNotAllowed", message);
    }
    if let Some(names) = unknown(exclude, &[&own]) {
        let message =
            format!("podToExclude: {names}: no such Pod in the CollaSet; remove these names");
        draft.announce_event(true, "ExcludeNotAllowed", message);
    }
    let unmanaged = facts.observed.unmanaged.iter();
    let unmanaged: BTreeSet<&str> = unmanaged.map(|pod| &*pod.metadata.name).collect();
    if let Some(names) = unknown(include, &[&own, &to_include, &unmanaged]) {
        let message = format!(
            "podToInclude: {names}: no such Pod with the label {}={} in the namespace; add the label, or remove these \
             names",
            keys::CONTROL,
            keys::CONTROL_VALUE
        );
        draft.announce_event(true, "IncludeNotAllowed", message);
    }
}

/// Whether a Pod may be excluded now. A Pod in a pair, or a Pod with the label `to-delete`, stays until that is over. A
/// finished Pod leaves even from a pair, and with that label only if it may stay. An origin leaves once its new Pod
/// takes its place, unless its rules have allowed its deletion by then. Under `PersistentSequence` no Pod can leave,
/// because its name belongs to the set.
fn may_leave_set(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Pod) -> bool {
    let name = &pod.metadata.name;
    if facts.strategy.include.contains(name) {
        let message = format!(
            "the spec asks to exclude and to include Pod {name}, so neither is done; take it out of podToInclude, or \
             remove its label {} or its name in podToExclude",
            keys::TO_EXCLUDE
        );
        draft.refused.push(("ExcludeNotAllowed", message.clone()));
        draft.announce_event(true, "DupExIncludedTarget", message);
        return false;
    }
    if facts.strategy.sequence {
        draft.report_refusal("ExcludeNotAllowed", format!("Pod {name} can't be excluded under podNamingSuffixPolicy PersistentSequence: its name belongs to its place in the set; remove its label {}", keys::TO_EXCLUDE));
        return false;
    }
    if pod.is_finished() {
        return pod.label(keys::TO_DELETE).is_none() || facts.may_stay(pod);
    }
    if pairs::has_replacement(facts, draft, id, pod) {
        // While its exclusion is refused, the Pod is treated as an origin.
        return !facts.must_leave(pod) && !facts.is_leaving_refused(id, pod);
    }
    if let Some(message) =
        waits::describe_later_exclusion(facts, pod).filter(|_| !set_operations::is_leaving(pod))
    {
        draft.announce_event(false, "ExcludeLater", message);
    }
    let paired = PAIR_LABELS.iter().any(|key| pod.label(key).is_some())
        || pool::has_entry_mark(draft, id, pool::REPLACE_NEW);
    !paired && pod.label(keys::TO_DELETE).is_none()
}

fn exclude_pod(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Arc<Pod>) {
    draft.leaving.insert(id);
    draft.withdraw_deletion(facts, pod); // the rules may allow the deletion before the PVCs have left
    if release_pvcs(draft, facts.owned_pvcs_with_id(id)) {
        return;
    }
    // Remove the label together with the exclusion, otherwise it would undo a later inclusion (contract Q40). The
    // labels of a pair would cause another replacement.
    for key in [keys::TO_EXCLUDE, keys::REPLACED_BY_REPLACE_UPDATE] {
        draft.patch_label(pod, key, None);
    }
    for key in PAIR_LABELS {
        draft.patch_label(pod, key, None);
    }
    draft.patch_label(pod, keys::ORPHANED, Some("true".to_owned()));
    if pod.annotation(keys::MIN_READY_SECONDS).is_some() {
        draft.patch_annotation(pod, keys::MIN_READY_SECONDS, None);
    }
    release_pod(facts, draft, pod);
    draft.ids.remove(&id);
    let message = format!("Pod {} is excluded", pod.metadata.name);
    draft.announce_once_written(pod, "ExcludeTarget", message);
}

/// Releases a Pod. The release also cancels an operation of the set, which nobody else would end, and withdraws the
/// set's request to delete the Pod.
fn release_pod(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) {
    for operation in [SetOperation::Update, SetOperation::ScaleIn] {
        if operation.is_in_progress(pod) {
            draft.patch_labels(pod, operation.undo_labels(pod));
            draft.patch_annotation(pod, keys::LAST_POD_STATUS, None);
        }
    }
    draft.withdraw_deletion(facts, pod);
    draft.set_ownership(pod, OwnershipChange::Release);
}

/// Releases the PVCs that were to enter with a Pod that does not enter any more. The Pod may have left this set, or
/// belong to another set. Otherwise a scale-in would delete the PVCs, and the instance would wait for the end of that
/// Pod. PVCs of a Pod that is finished, or that `podToInclude` names, are not released.
pub fn return_entering_pvcs(facts: &SetFacts, draft: &mut Draft) {
    let is_of_another = |pod: &Pod| {
        let was_of_a_set = pod.is_managed() && pod.label(keys::INSTANCE_ID).is_some();
        was_of_a_set && !inclusion::has_name_of_set(facts.name, &pod.metadata.name)
    };
    let is_outside = |pod: &Arc<Pod>| {
        let enters = facts.strategy.include.contains(&pod.metadata.name);
        let is_free = pod.controller().is_none() && !pod.is_finished();
        facts.has_left(pod) || is_of_another(pod) && is_free && !enters
    };
    release_pvcs(draft, facts.pvcs_mounted_only_by(is_outside));
}

/// Releases PVCs before their Pod leaves, with a label so that no other Pod of the set takes them. Returns whether
/// there are any. If the set still owned a PVC after the Pod has left, it would delete the PVC when the Pod has ended.
fn release_pvcs<'a>(draft: &mut Draft, pvcs: impl Iterator<Item = &'a Arc<Pvc>>) -> bool {
    let mut any = false;
    for pvc in pvcs {
        any = true;
        draft.release_pvc(pvc, pvcs::left_behind_labels());
    }
    any
}
