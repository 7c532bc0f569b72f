//! Plans the next step of the update of one Pod.

use std::sync::Arc;

use super::super::draft::Draft;
use super::super::pairs as pair;
use super::super::plan::DryRunChange;
use super::super::pool;
use super::super::revision::inplace::InPlaceChange;
use super::super::revision::progress::{self, UpdateProgress};
use super::super::set_facts::{self, SetFacts, Target};
use super::super::set_operations::{self, OperationState, SetOperation};
use super::super::strategy::UpdatePolicy;
use super::slots::{self, UpdateSlots, is_deletion_refused};
use super::way::update_way;
use crate::api::keys;
use crate::domain::inplace::restarting_resources;
use crate::domain::pod::Pod;

/// Plans the next step of the update of one Pod.
pub fn update_pod(
    facts: &SetFacts,
    draft: &mut Draft,
    slots: &mut UpdateSlots,
    (id, pod): (i64, &Arc<Pod>),
    target: &Target,
) {
    if !facts.strategy.paused {
        record_composition(facts, draft, id, pod, target);
    }
    let is_other = set_operations::undo_foreign_run(pod).is_some();
    if is_other || SetOperation::ScaleIn.is_in_progress(pod) {
        return;
    }
    if set_operations::is_leaving(pod) {
        if facts.may_stay(pod) {
            match target.is_behind {
                // The revision of the template may have changed since the pair was opened.
                true if pod.label(keys::TO_REPLACE).is_some() => {
                    replace_pod(facts, draft, slots, pod, target);
                }
                true => {}
                false => withdraw_replacement(facts, draft, pod),
            }
        }
        // A Pod whose deletion a policy refuses may stay forever. Its update is undone, so that the Pod delays no
        // other.
        let may_stay =
            set_operations::awaits_leave_permission(pod) || facts.deletion_refusal(pod).is_some();
        if may_stay && SetOperation::Update.is_in_progress(pod) {
            return_without_update(facts, draft, pod);
        }
        return;
    }
    let turn = SetOperation::Update.operation_state(
        pod,
        facts.strategy.update_delay,
        facts.observed.now_nanos,
    );
    match (target.is_behind, turn) {
        (true, _) if is_updated_by_pair(facts, pod) => {
            replace_pod(facts, draft, slots, pod, target);
        }
        (true, _)
            if turn != OperationState::Idle
                && is_change_refused(facts, id, pod, target)
                && can_return_to_service(facts, pod) =>
        {
            return_without_update(facts, draft, pod);
        }
        (true, _)
            if turn != OperationState::Idle
                && is_updated_by_deletion(facts, id, pod, target)
                && is_deletion_blocked(facts, slots, (id, pod), target)
                && can_return_to_service(facts, pod) =>
        {
            return_without_update(facts, draft, pod);
        }
        (true, OperationState::Idle) => begin_update(facts, draft, slots, (id, pod), target),
        (true, OperationState::Waiting) if slots.must_withdraw_update(pod) => {
            draft.patch_labels(pod, SetOperation::Update.undo_labels(pod));
        }
        (true, OperationState::Waiting) => {
            let delay = facts.strategy.update_delay;
            if SetOperation::Update.is_allowed_by_same_write(pod, delay)
                && matches!(
                    *update_way(facts, id, pod, target),
                    InPlaceChange::Yes { .. }
                )
            {
                carry_out_update(facts, draft, slots, (id, pod), target);
            }
        }
        (true, OperationState::Delayed(nanos)) => draft.requeue_after(nanos),
        (true, OperationState::Allowed) => {
            carry_out_update(facts, draft, slots, (id, pod), target);
        }
        (false, turn) => {
            withdraw_replacement(facts, draft, pod);
            settle_updated_pod(facts, draft, slots, (id, pod), turn);
        }
    }
}

/// Records in the pool of what the Pod would be created again.
fn record_composition(facts: &SetFacts, draft: &mut Draft, id: i64, pod: &Pod, target: &Target) {
    let own = pod
        .label(keys::REVISION)
        .filter(|name| facts.history.find_revision(name).is_some());
    let revision = match own {
        Some(own) if !target.in_scope => own,
        None if !target.in_scope => &facts.history.current.name,
        _ => &facts.history.updated.name,
    };
    pool::set_entry_mark(draft, id, pool::REVISION, revision);
    let recorded = facts.to_record(&target.decorations, draft.ids.get(&id));
    pool::record_decorations(draft, id, &recorded);
}

/// A Pod in a pair is updated by its new Pod, whatever the policy.
fn is_updated_by_pair(facts: &SetFacts, pod: &Pod) -> bool {
    facts.strategy.policy == UpdatePolicy::Replace || pod.label(keys::TO_REPLACE).is_some()
}

fn replace_pod(
    facts: &SetFacts,
    draft: &mut Draft,
    slots: &mut UpdateSlots,
    pod: &Arc<Pod>,
    target: &Target,
) {
    if slots.is_pair_beyond_surge(pod) {
        return withdraw_replacement(facts, draft, pod);
    }
    let revision = &target.template.name;
    if pod.label(keys::TO_REPLACE).is_none() {
        let opened = match pair::serving_half_of_cancelled_pair(facts, draft, pod) {
            None => slots.take_pair_slot(),
            // A pair that an update had opened already has its slot.
            Some(half) => slots::is_pair_of_update(pod, half) || slots.take_reopened_pair_slot(),
        };
        if !opened {
            // The Pod serves until it gets a slot.
            if SetOperation::Update.is_in_progress(pod) {
                return_without_update(facts, draft, pod);
            }
            return;
        }
        let nanos = facts.observed.now_nanos.to_string();
        draft.patch_label(pod, keys::TO_REPLACE, Some(nanos));
        let name = &pod.metadata.name;
        let message = match target.by_decorations {
            true => format!("Pod {name} will be replaced by a Pod with other decorations"),
            false => format!("Pod {name} will be replaced by a Pod of revision {revision}"),
        };
        draft.announce_once_written(pod, "ReplaceUpdateTarget", message);
    }
    // An update by another policy that had begun is not needed any more.
    if SetOperation::Update.is_in_progress(pod) {
        draft.patch_labels(pod, SetOperation::Update.undo_labels(pod));
    }
    draft.patch_label(
        pod,
        keys::REPLACED_BY_REPLACE_UPDATE,
        Some(revision.clone()),
    );
}

/// Cancels a replacement that only an update had asked for, because the Pod left the scope or has the updated revision
/// again. A replacement that users or jobs asked for continues, with a new Pod of the origin's own revision.
fn withdraw_replacement(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.label(keys::REPLACED_BY_REPLACE_UPDATE).is_none() || facts.strategy.paused {
        return;
    }
    draft.patch_label(pod, keys::REPLACED_BY_REPLACE_UPDATE, None);
    if pod
        .label(keys::TO_REPLACE)
        .is_some_and(set_operations::is_set_timestamp)
    {
        draft.patch_label(pod, keys::TO_REPLACE, None);
    }
}

fn begin_update(
    facts: &SetFacts,
    draft: &mut Draft,
    slots: &mut UpdateSlots,
    (id, pod): (i64, &Arc<Pod>),
    target: &Target,
) {
    if draft.removes_pod(pod) {
        return; // an earlier step removes the Pod
    }
    let change = update_way(facts, id, pod, target);
    let deletes = !matches!(*change, InPlaceChange::Yes { .. });
    let is_held = || facts.holding_decoration(id, &target.template).is_some();
    if deletes && (is_pool_unwritten(facts, id, target) || is_held()) {
        return;
    }
    let dry_run_only = is_update_refused(facts, id, pod, target);
    // A dry run without a write can't be combined with other changes, so the other changes are written first.
    if dry_run_only && draft.changes_pod(pod) {
        return;
    }
    let has_slot = match dry_run_only {
        true => slots.has_update_slot(pod, deletes),
        false => slots.take_update_slot(pod, deletes),
    };
    if !has_slot {
        return;
    }
    draft.patch_labels(
        pod,
        SetOperation::Update.begin_labels(pod, deletes, facts.observed.now_nanos),
    );
    announce_resize(facts, draft, pod, target, &change);
    let patch = draft.pod_patch(pod);
    (patch.deletes, patch.dry_run_only) = (deletes, dry_run_only);
    let refused = &facts.observed.refused;
    if !deletes && refused.needs_dry_run(pod, target.name()) {
        draft.pod_patch(pod).dry_run_change = match facts.composition_of(pod) {
            Some(from) if !facts.is_resized(pod) => {
                facts
                    .dry_run_changes
                    .get_or_compute(from.name(), target.name(), || {
                        dry_run_change(target, &change)
                    })
            }
            _ => dry_run_change(target, &change),
        };
    }
}

/// Returns the change that a dry run tries before a Pod goes off traffic for its update in place; `None` if the change
/// is not possible in place.
fn dry_run_change(target: &Target, change: &InPlaceChange) -> Option<Arc<DryRunChange>> {
    let InPlaceChange::Yes {
        labels,
        annotations,
        spec,
        resize,
        ..
    } = change
    else {
        return None;
    };
    let mut labels = labels.clone();
    let revision = (
        keys::REVISION.to_owned(),
        Some(target.template.name.clone()),
    );
    labels.0.extend([revision]);
    Some(Arc::new(DryRunChange {
        revision: target.name().to_owned(),
        labels,
        annotations: annotations.clone(),
        spec: spec.clone(),
        resize: resize.clone(),
    }))
}

/// Whether the in-place change of the Pod was refused, or it is unknown whether it will be while the Pod waits for its
/// rules. The Pod serves unchanged until a dry run has passed.
pub fn is_change_refused(facts: &SetFacts, id: i64, pod: &Pod, target: &Target) -> bool {
    let (refused, name) = (&facts.observed.refused, target.name());
    let waits =
        || SetOperation::Update.is_in_progress(pod) && set_operations::is_awaiting_rules(pod);
    (refused.refuses_change(pod, name) || refused.is_change_in_doubt(name) && waits())
        && matches!(
            *update_way(facts, id, pod, target),
            InPlaceChange::Yes { .. }
        )
}

/// Whether a Pod whose update deletes it must not be deleted for now: its successor could not be created, the revision
/// of its ID can't be stored, or the API server refuses the deletion. Meanwhile the Pod serves.
fn is_deletion_blocked(
    facts: &SetFacts,
    slots: &UpdateSlots,
    (id, pod): (i64, &Pod),
    target: &Target,
) -> bool {
    // A Pod that waits for its rules serves. It must not begin again each time a quota is full for a moment.
    slots.are_deletions_blocked() && !set_operations::is_awaiting_rules(pod)
        || is_deletion_refused(facts, pod)
        || is_pool_unwritten(facts, id, target)
        || facts
            .holding_decoration(id, &target.template)
            .is_some_and(|decoration| decoration.is_refused)
}

/// Whether the update of a Pod was refused, as a change or as a deletion. The controller then only makes a dry run,
/// which takes no slot from other Pods. Once the dry run has passed, the update begins.
pub fn is_update_refused(facts: &SetFacts, id: i64, pod: &Pod, target: &Target) -> bool {
    is_change_refused(facts, id, pod, target)
        || is_deletion_refused(facts, pod) && is_updated_by_deletion(facts, id, pod, target)
}

/// Whether the pool can't be written and does not yet record the revision of the target for an ID.
fn is_pool_unwritten(facts: &SetFacts, id: i64, target: &Target) -> bool {
    let revision = &target.template.name;
    facts.observed.refused.pool && !pool::is_entry_stored(facts, id, pool::REVISION, revision)
}

/// Whether the update of a Pod deletes it.
pub fn is_updated_by_deletion(facts: &SetFacts, id: i64, pod: &Pod, target: &Target) -> bool {
    target.is_behind
        && !is_updated_by_pair(facts, pod)
        && !matches!(
            *update_way(facts, id, pod, target),
            InPlaceChange::Yes { .. }
        )
}

fn carry_out_update(
    facts: &SetFacts,
    draft: &mut Draft,
    slots: &mut UpdateSlots,
    (id, pod): (i64, &Arc<Pod>),
    target: &Target,
) {
    let change = update_way(facts, id, pod, target);
    if announce_resize(facts, draft, pod, target, &change) {
        return; // the resize follows once the annotation is stored
    }
    let before = progress::last_pod_status(pod, &change);
    let InPlaceChange::Yes {
        labels,
        annotations,
        spec,
        resize,
        ..
    } = &*change
    else {
        // The next Pod could not be created while a PodDecoration is not ready. In most cases this lasts milliseconds.
        let is_held = facts.holding_decoration(id, &target.template).is_some();
        if !is_held && slots.take_deletion_slot() {
            delete_for_update(facts, draft, pod, target);
        }
        return;
    };
    let patch = draft.pod_patch(pod);
    patch.in_place_target = Some(target.name().to_owned());
    patch.spec.clone_from(spec);
    patch.resize.clone_from(resize);
    patch.annotations.extend(annotations.clone());
    draft.patch_annotation(pod, keys::LAST_POD_STATUS, Some(before));
    remove_resize_mark(draft, pod); // from this write on the Pod has the revision
    draft.patch_label(pod, keys::REVISION, Some(target.template.name.clone()));
    draft.patch_labels(pod, labels.clone());
}

/// Records in an annotation that the Pod will be resized, if that is not recorded yet. Returns whether it had to be
/// recorded. The resize is a request of its own, and the next request, which changes the revision of the Pod, may be
/// refused.
fn announce_resize(
    facts: &SetFacts,
    draft: &mut Draft,
    pod: &Arc<Pod>,
    target: &Target,
    change: &InPlaceChange,
) -> bool {
    let updated = target.name();
    let resizes = matches!(
        change,
        InPlaceChange::Yes {
            resize: Some(_),
            ..
        }
    );
    let is_new = resizes && set_facts::resize_marks(pod).all(|(name, _)| name != updated);
    if is_new {
        let resized: Vec<&str> = facts.resized_to(pod).iter().map(|r| r.name()).collect();
        let kept_marks = set_facts::resize_marks(pod).filter(|(name, _)| resized.contains(name));
        let marks = kept_marks.chain([(updated, pod.metadata.generation)]);
        let marks: Vec<String> = marks.map(|(name, of)| format!("{name}@{of}")).collect();
        draft.patch_annotation(pod, keys::RESIZING, Some(marks.join(",")));
    }
    is_new
}

/// Deletes a Pod. The set creates it again under its ID with the updated revision.
fn delete_for_update(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>, target: &Target) {
    let refused = &facts.observed.refused;
    if let Some(reason) = refused.resize_refusal(pod, target.name()) {
        report_update_refusal(draft, pod, reason);
    } else if let UpdateProgress::Refused(reason) = progress::update_progress(pod) {
        report_update_refusal(draft, pod, &reason);
    }
    draft.delete_pod(pod);
}

fn report_update_refusal(draft: &mut Draft, pod: &Pod, reason: &str) {
    let name = &pod.metadata.name;
    let message = format!("Pod {name} is recreated, as it can't be resized: {reason}");
    draft.announce_event(true, "ResizeRefused", message);
}

/// Whether the update has changed nothing in the Pod yet, or the kubelet has applied the change. A Pod that can't reach
/// the changed state, for example because an image can't be pulled, can only go forward: its next change is tried
/// again.
fn can_return_to_service(facts: &SetFacts, pod: &Pod) -> bool {
    match pod.annotation(keys::LAST_POD_STATUS) {
        Some(_) => !matches!(progress::update_progress(pod), UpdateProgress::Waiting(_)),
        None => !is_being_resized(facts, pod),
    }
}

/// Whether the kubelet has yet to apply the resize of an update that got no further, and restarts containers for it.
fn is_being_resized(facts: &SetFacts, pod: &Pod) -> bool {
    let mut containers = pod.spec.containers.iter();
    containers.any(|container| restarting_resources(container).next().is_some())
        && facts.is_resized(pod)
        && matches!(progress::resize_progress(pod), UpdateProgress::Waiting(_))
}

/// Returns a Pod to service that should be deleted or leave and can't yet, whatever operation of the set had begun.
pub fn return_to_service(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) {
    if SetOperation::Update.is_in_progress(pod) {
        return_without_update(facts, draft, pod);
    }
    if SetOperation::ScaleIn.is_in_progress(pod) {
        draft.patch_labels(pod, SetOperation::ScaleIn.undo_labels(pod));
    }
}

/// Returns a Pod to service although it is not updated, because its rules delay its deletion or its change is refused.
/// If the update has changed the Pod, it is finished when the kubelet has applied the change. Otherwise it is
/// cancelled.
fn return_without_update(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.annotation(keys::LAST_POD_STATUS).is_none() {
        return cancel_update(facts, draft, pod);
    }
    match progress::update_progress(pod) {
        UpdateProgress::Waiting(_) => {}
        // The annotation stays if the node refuses the change. It is needed if the Pod stays after all.
        UpdateProgress::Refused(_) => {
            draft.patch_labels(pod, SetOperation::Update.finish_labels(pod))
        }
        UpdateProgress::Done => finish_update(draft, pod, facts.is_updated(pod)),
    }
}

/// Cancels an update that has not changed the revision of the Pod. If the update has resized the Pod, the kubelet may
/// be about to restart containers. The cancellation waits for the kubelet, and the Pod must still get the resources of
/// its own revision.
fn cancel_update(facts: &SetFacts, draft: &mut Draft, pod: &Arc<Pod>) {
    if is_being_resized(facts, pod) {
        return;
    }
    if !facts.is_resized(pod) {
        remove_resize_mark(draft, pod);
    }
    draft.patch_labels(pod, SetOperation::Update.undo_labels(pod));
}

fn remove_resize_mark(draft: &mut Draft, pod: &Arc<Pod>) {
    if pod.annotation(keys::RESIZING).is_some() {
        draft.patch_annotation(pod, keys::RESIZING, None);
    }
}

/// Ends an update that the kubelet has applied. `reached` says whether the Pod has its wanted revision.
fn finish_update(draft: &mut Draft, pod: &Arc<Pod>, reached: bool) {
    draft.patch_labels(pod, SetOperation::Update.finish_labels(pod));
    if reached {
        draft.patch_label(pod, keys::UPDATE_INCLUDED, None);
    }
    draft.patch_annotation(pod, keys::LAST_POD_STATUS, None);
    remove_resize_mark(draft, pod);
}

/// Ends the operation of a Pod that needs no update any more. The operation is finished when the kubelet has applied
/// it, and cancelled if it has changed nothing yet.
fn settle_updated_pod(
    facts: &SetFacts,
    draft: &mut Draft,
    slots: &mut UpdateSlots,
    (id, pod): (i64, &Arc<Pod>),
    turn: OperationState,
) {
    if turn == OperationState::Idle {
        // During a rollout, remove the label of an updated Pod, so that the next rollout does not include the Pod.
        // Without a rollout the label is a choice for the next rollout.
        let labelled = pod.label(keys::UPDATE_INCLUDED).is_some() && facts.is_updated(pod);
        if labelled && facts.is_rolling_out && !facts.rollout.is_frozen() {
            draft.patch_label(pod, keys::UPDATE_INCLUDED, None);
        }
        return;
    }
    if pod.annotation(keys::LAST_POD_STATUS).is_none() {
        cancel_update(facts, draft, pod);
        if facts.is_updated(pod) {
            draft.patch_label(pod, keys::UPDATE_INCLUDED, None); // the template was rolled back
        }
        return;
    }
    match progress::update_progress(pod) {
        UpdateProgress::Waiting(_) => {}
        UpdateProgress::Refused(reason) => {
            let is_blocked = is_deletion_refused(facts, pod) || draft.is_id_moving(id);
            if !facts.strategy.paused && !is_blocked && slots.take_deletion_slot() {
                report_update_refusal(draft, pod, &reason);
                draft.delete_pod(pod);
            } else {
                return_without_update(facts, draft, pod); // the Pod serves until it can be created again
            }
        }
        UpdateProgress::Done => finish_update(draft, pod, facts.is_updated(pod)),
    }
}
